"""A broker that was stopped until another one may have started sends nothing before it has
checked."""

import os
import socket
from contextlib import ExitStack
from threading import Event

import pytest
import trio

from flowguard.broker.commits.presence import Presence
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Packet, Pingreq, Pingresp, Puback
from flowguard.errors import LeasedError
from flowguard.stores import MemoryStore
from flowguard.stores.base import StoreLoad
from flowguard.types import MQTT_5, Publish
from tests.flowguard.broker.clock import Clock
from tests.flowguard.broker.test_pauses import send_at_once
from tests.flowguard.broker.test_sends import Crowd
from tests.support.patience import HANG_S
from tests.support.real import Wire, broker, connect, until

LEASE_S = 1_000.0


class Leased(MemoryStore):
    """A store that another broker may own. It answers a check when the test allows it."""

    immediate = False
    lease_s: float | None = LEASE_S

    def __init__(self) -> None:
        super().__init__()
        self.answers = Event()
        self.answers.set()
        self.is_lost = False

    def maintain(self) -> bool:
        assert self.answers.wait(HANG_S)
        if self.is_lost:
            raise LeasedError("somebody has taken over")
        return False


def has_heard(wire: Wire) -> bool:
    with socket.socket(fileno=os.dup(wire.stream.socket.fileno())) as sock:
        try:
            return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False


def publish_after_a_pause(store: Leased, clock: Clock, wire: Wire) -> None:
    """Publish as a stopped process finds it: the message has arrived, and the time has passed."""
    store.answers.clear()
    packets: list[Packet] = [Publish("nobody/here", b"for whom?", 1, packet_id=1), Pingreq()]
    send_at_once([wire], iter([b"".join(encode(packet, MQTT_5) for packet in packets)]))
    clock.jump(LEASE_S)


async def test_after_a_pause_nobody_hears_anything_before_the_lease_is_known(clock: Clock) -> None:
    store = Leased()
    async with broker(store=store, calm=True) as running:
        wire = await connect(running, "p")
        publish_after_a_pause(store, clock, wire)
        await until(lambda: running.node.counters.publish_received == 1)
        assert not has_heard(wire)
        store.answers.set()
        await wire.expect(Puback)
        await wire.expect(Pingresp)
        await wire.close()


async def test_who_was_succeeded_meanwhile_acknowledges_nothing(clock: Clock) -> None:
    store = Leased()
    with pytest.RaisesGroup(LeasedError, flatten_subgroups=True):
        async with broker(store=store, calm=True) as running:
            wire = await connect(running, "p")
            publish_after_a_pause(store, clock, wire)
            store.is_lost = True
            await until(lambda: running.node.counters.publish_received == 1)
            assert not has_heard(wire)
            store.answers.set()
            await trio.sleep_forever()
    assert not has_heard(wire)
    await wire.close()


class Unreachable(Leased):
    """Redis did not answer the check, so the lease may have ended."""

    def load(self) -> StoreLoad:
        return StoreLoad(in_doubt=not self.answers.is_set() or self.is_lost)

    def maintain(self) -> bool:
        assert self.answers.wait(HANG_S)
        return False


async def test_client_with_an_answer_after_a_pause_is_disconnected_if_the_store_is_away(
    clock: Clock,
) -> None:
    store = Unreachable()
    async with broker(store=store, calm=True) as running:
        wire, other = await connect(running, "p"), await connect(running, "other")
        publish_after_a_pause(store, clock, wire)
        await until(lambda: running.reactor._held != {})
        store.is_lost = True
        store.answers.set()
        assert await wire.stream.receive_some() == b""
        await wire.close()
        await other.send(Pingreq())
        await other.expect(Pingresp)
        await other.close()


def test_a_pause_that_comes_while_the_store_is_asked_is_asked_about_again() -> None:
    now_s = [0.0]
    presence = Presence(LEASE_S, lambda: now_s[0])
    now_s[0] = LEASE_S / 4
    assert not presence.look()
    now_s[0] += LEASE_S
    assert presence.look()
    asked_after = presence.pauses
    now_s[0] += LEASE_S
    assert presence.look()
    presence.settle(asked_after)
    assert presence.in_doubt
    presence.settle(presence.pauses)
    assert not presence.look()


def test_a_store_of_ones_own_leaves_no_doubt() -> None:
    now_s = [0.0]
    presence = Presence(None, lambda: now_s[0])
    now_s[0] = 1e9
    assert not presence.look()


def test_a_socket_that_takes_more_again_is_no_work_while_there_is_doubt() -> None:
    """Else the loop would spin on it, for as long as the store does not answer."""
    now_s = [0.0]
    presence = Presence(LEASE_S, lambda: now_s[0])
    with ExitStack() as stack:
        crowd = Crowd(1, stack, presence)
        reactor, (link,) = crowd.reactor, crowd.links
        link.connection.outbound.outbox.write(encode(Pingresp(), MQTT_5) * 500_000)
        crowd.settle()
        assert link.connection.outbound.outbox.blocked
        now_s[0] += LEASE_S
        assert presence.look()
        while crowd.heard():
            pass

        def serve_sockets() -> int:
            events = reactor.poll(8, 0.0)
            for event in events:
                reactor.read(event, crowd.stage.now_s)
            return len(events)

        assert serve_sockets() == 1
        assert serve_sockets() == 0
        assert not crowd.heard()
        presence.settle(presence.pauses)
        reactor.let_go(crowd.stage.now_s)
        assert serve_sockets() == 1
        assert crowd.heard()

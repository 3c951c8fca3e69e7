"""A hook that raises costs its client the connection; the broker goes on."""

from typing import Any

import pytest

from flowguard.broker.memory import bounds_of
from flowguard.broker.server import listen, serve
from flowguard.codec.packets import Auth, Connack, Connect, Disconnect, Subscribe
from flowguard.config import Settings
from flowguard.errors import StoreError
from flowguard.node.connect.authentication import Hooks, Proceed, Step
from flowguard.types import MQTT_5, Properties, Publish, ReasonCode, SubscriptionOptions
from tests.support.real import SlowStore, broker, connect, connect_packet, open_wire, until
from tests.support.stage import Stage

BROKEN = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class Fragile:
    """All hooks in one; each breaks when it meets the word `bad`."""

    def __init__(self, connect: Connect | None = None) -> None:
        if connect is not None and connect.client_id == "bad-factory":
            raise LookupError("factory")

    def authenticate(self, connect: Connect) -> ReasonCode:
        if connect.client_id == "bad":
            raise UnicodeError("authenticator")
        return ReasonCode.SUCCESS

    def may_publish(self, client_id: str, topic: str) -> bool:
        assert topic != "bad"
        return True

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        if filter == "bad":
            raise RecursionError("authorizer")
        return True

    def step(self, data: bytes | None, now_s: float) -> Step:
        if data == b"bad":
            raise MemoryError("step")
        return Proceed()


HOOKS = Hooks(Fragile(), Fragile(), {"fragile": lambda _, connect: Fragile(connect)})


@pytest.mark.parametrize("filters_before", [0, 1])
async def test_an_authorizer_that_raises(filters_before: int) -> None:
    async with broker(hooks=HOOKS) as running:
        witness = await connect(running, "witness")
        subscriber = await connect(running, "subscriber")
        filters = tuple((name, SubscriptionOptions()) for name in ("a", "b")[:filters_before])
        await subscriber.send(Subscribe(1, (*filters, ("bad", SubscriptionOptions()))))
        assert await subscriber.expect(Disconnect) == Disconnect(BROKEN)
        publisher = await connect(running, "publisher")
        await publisher.send(Publish("bad", b""))
        assert await publisher.expect(Disconnect) == Disconnect(BROKEN)
        await witness.ping()
        for wire in (witness, subscriber, publisher):
            await wire.close()
        await until(lambda: running.node.connections_count == 0)
        assert running.node.registry.sessions == {}


@pytest.mark.parametrize(
    ("client_id", "data"), [("bad", b""), ("bad-factory", b""), ("good", b"bad")]
)
async def test_an_authenticator_or_a_method_that_raises(client_id: str, data: bytes) -> None:
    properties = Properties(authentication_method="fragile", authentication_data=data)
    async with broker(hooks=HOOKS) as running:
        witness = await connect(running, "witness")
        wire = await open_wire(running)
        await wire.send(Connect(client_id, MQTT_5, properties=properties))
        assert (await wire.expect(Connack)).reason_code == BROKEN
        await witness.ping()
        assert running.node.guard.gate.in_process == 0
        await wire.close()
        await witness.close()


async def test_a_later_step_that_raises() -> None:
    properties = Properties(authentication_method="fragile", authentication_data=b"good")
    async with broker(hooks=HOOKS) as running:
        wire = await open_wire(running)
        await wire.send(Connect("c", MQTT_5, properties=properties))
        await wire.expect(Auth)
        properties = Properties(authentication_method="fragile", authentication_data=b"bad")
        await wire.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties))
        assert (await wire.expect(Connack)).reason_code == BROKEN
        assert running.node.guard.gate.in_process == 0
        await wire.close()


async def test_a_connect_that_waited_at_the_gate() -> None:
    """The gate decides it in a turn of the node, not in one of its connection."""
    store = SlowStore()
    store.open.clear()
    async with broker(
        {"flow": {"connects_in_process_max": 1}}, store=store, hooks=HOOKS, calm=True
    ) as running:
        first = await open_wire(running)
        await first.send(connect_packet("first", durable=True))
        await until(lambda: running.node.guard.gate.in_process == 1)
        second = await open_wire(running)
        await second.send(Connect("bad"))
        await until(lambda: running.node.guard.gate.buffered == 1)
        store.open.set()
        assert (await first.expect(Connack)).reason_code == 0
        await first.close()
        assert (await second.expect(Connack)).reason_code == BROKEN
        await second.close()
        last = await connect(running, "last")
        await last.close()


def test_without_anybody_to_tell_an_error_is_raised() -> None:
    client = Stage(hooks=HOOKS).connect("c")
    with pytest.raises(AssertionError):
        client.publish("bad")


async def test_a_store_that_cannot_be_read_leaves_no_listener_behind() -> None:
    class Unreadable(SlowStore):
        def sessions(self) -> Any:
            raise StoreError("unreadable")

    listener = listen("127.0.0.1", 0)
    with pytest.raises(StoreError):
        await serve(bounds_of(Settings()), Unreadable(), listener)
    assert listener.fileno() == -1

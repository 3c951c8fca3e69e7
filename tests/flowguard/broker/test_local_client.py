"""A client of the broker's own process gives back what it took, whatever becomes of a call."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

import flowguard
from flowguard.broker.local.local_client import EndedError, LocalClient
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Packet, Pingreq
from flowguard.config import MIB
from flowguard.types import MQTT_5, Properties
from tests.support.real import CALM, TEST_S, SlowStore, offline_subscriber, until

HUGE = bytes(300_000_000)
"""Zeroes that no test writes, so they take no memory."""

WRONG_CALLS: list[tuple[Callable[[LocalClient], Awaitable[None]], type[Exception], str]] = [
    (lambda c: c.publish("a", "text", 1), TypeError, "payload"),  # type: ignore[arg-type]
    (lambda c: c.publish("x" * 65_536, b"", 1), ValueError, "topic has 65,536 bytes"),
    (lambda c: c.publish("a", b"x" * 2_000_000, 1), ValueError, r"session\.packet_size_max"),
    (lambda c: c.publish("a", HUGE, 1), ValueError, r"session\.packet_size_max"),
    (lambda c: c.publish("a", b"x", 2), ValueError, r"session\.maximum_qos"),
    (lambda c: c.publish("a", b"x", 1, retain=True), ValueError, r"session\.retain_available"),
    (lambda c: c.subscribe(["a"]), TypeError, "filter"),  # type: ignore[arg-type]
    (lambda c: c.subscribe("a" * 65_536), ValueError, "filter has 65,536 bytes"),
    (lambda c: c.subscribe("a", qos=3), ValueError, "qos is 3"),
    (lambda c: c.unsubscribe(), ValueError, "no filter"),
]


@pytest.mark.parametrize(("call", "kind", "says"), WRONG_CALLS)
async def test_wrong_arguments_cost_nothing(
    call: Callable[[LocalClient], Awaitable[None]], kind: type[Exception], says: str
) -> None:
    settings = {"session": {"maximum_qos": 1, "retain_available": False, "receive_maximum": 2}}
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker(settings) as broker, broker.client() as client:
            places = client._quota.value
            assert places == 2
            for _ in range(places + 1):
                with pytest.raises(kind, match=says):
                    await call(client)
            assert client._quota.value == places
            assert not client._exchanges
            await client.publish("a", b"x", 1)
            await client.subscribe("a", qos=1)


async def test_what_cannot_be_sent_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if no argument is wrong."""

    def fail(*_: Any) -> bytes:
        raise MemoryError

    with trio.fail_after(TEST_S):
        async with flowguard.open_broker() as broker, broker.client() as client:
            places = client._quota.value
            with monkeypatch.context() as patched:
                patched.setattr(client, "_put", fail)
                for call in (client.publish("a", b"x", 1), client.subscribe("a")):
                    with pytest.raises(MemoryError):
                        await call
            assert client._quota.value == places
            assert not client._exchanges


async def test_the_largest_packet_of_the_broker_passes() -> None:
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker() as broker, broker.client() as client:
            payload = bytes(1_048_576 - len(b"\x30\x80\x80\x40\0\1a\0\1\0"))
            await client.publish("a", payload, 1)
            with pytest.raises(ValueError, match="1,048,577 bytes"):
                await client.publish("a", payload + b"x", 1)


async def test_a_wrong_connect_opens_nothing() -> None:
    async with flowguard.open_broker() as broker:
        adopted: list[socket.socket] = []
        broker.running.adopt = adopted.append
        with pytest.raises(TypeError, match="password"):
            await broker.connect("me", password="secret")  # type: ignore[arg-type]
        assert not adopted


async def test_a_socket_that_the_broker_cannot_take_is_closed() -> None:
    async with flowguard.open_broker() as broker:
        offered: list[socket.socket] = []

        def fail(sock: socket.socket) -> None:
            offered.append(sock)
            raise OSError("no room for another watch")

        broker.running.adopt = fail
        with pytest.raises(OSError, match="watch"):
            await broker.connect("me")
        assert offered[0].fileno() == -1


async def test_who_waits_for_a_place_hears_of_the_end() -> None:
    store = SlowStore()
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker(
            {"flow": {**CALM, "window_max": 5}}, store=store
        ) as broker:
            await offline_subscriber(broker.running, "a")
            client = await broker.connect("me")
            store.open.clear()
            ended: list[int] = []

            async def publish(number: int) -> None:
                with pytest.raises(EndedError):
                    await client.publish("a", b"x", 1)
                ended.append(number)

            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(publish, number)
                await until(lambda: client._quota.statistics().tasks_waiting == 30)
                await client.close()
            assert len(ended) == 40
            with pytest.raises(EndedError):
                await client.publish("a", b"x", 1)
            store.open.set()


async def test_a_client_whose_broker_fails_has_ended() -> None:
    """The client's tasks are cancelled with those of the broker, so no caller may wait for them."""
    async with flowguard.open_broker() as broker:
        client = await broker.connect("me")

        async def wait() -> None:
            with pytest.raises(EndedError):
                await client.receive()

        with trio.fail_after(TEST_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                broker._nursery.cancel_scope.cancel()


async def test_the_keep_alive_of_a_broker_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """Also by a client that has nothing to say for long: the broker would end it."""
    ours, theirs = trio.socket.socketpair()
    client, broker = LocalClient(trio.SocketStream(ours)), trio.SocketStream(theirs)
    connack = Connack(properties=Properties(server_keep_alive=10))
    await broker.send_all(encode(connack, MQTT_5))
    await client.connect(Connect("me"))
    decoder = PacketDecoder(MIB)
    heard: list[Packet] = []
    async with broker, trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        while len(heard) < 3:
            decoder.feed(bytes(await broker.receive_some(1_024)))
            heard += decoder.next_batch(10)
        assert heard[1:] == [Pingreq(), Pingreq()]
        assert trio.current_time() <= 10
        await client.close()

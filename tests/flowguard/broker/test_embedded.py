"""A broker inside another program: on trio, and in a thread for all others."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import trio
import trio.lowlevel
from structlog.testing import capture_logs

import flowguard
from flowguard.app.embedded import EmbeddedBroker
from flowguard.app.in_thread import BrokerThread
from flowguard.broker.local.local_client import EndedError, LocalClient, NotAcceptedError
from flowguard.codec.packets import Connect, Will
from flowguard.config import MIB, FlowSettings, Settings
from flowguard.errors import ConfigError, CorruptionError, SyncError
from flowguard.identity.passwords import PasswordFile
from flowguard.node.connect.authentication import Hooks
from flowguard.records import StoreOp
from flowguard.stores import Fenced, MemoryStore
from flowguard.stores.base import StoreLoad
from flowguard.types import ReasonCode
from tests.support.real import CALM, TEST_S, SlowStore, connect, until


async def test_clients_of_this_process_and_of_others_meet() -> None:
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker() as broker, broker.client("here") as client:
            other = await connect(broker.running, "there")
            await other.subscribe("a/#", 1)
            await client.subscribe("b/#")
            await client.publish("a/1", b"from here", 1)
            message = await other.receive()
            assert message is not None
            assert message.payload == b"from here"
            await other.publish("b/1", b"from there")
            assert (await client.receive()).payload == b"from there"
            await other.close()


@pytest.mark.parametrize("kind", ["memory", "rocks"])
async def test_line_of_the_start_names_store_and_process(kind: str, tmp_path: Path) -> None:
    with capture_logs() as lines, trio.fail_after(TEST_S):
        async with flowguard.open_broker(data=tmp_path if kind == "rocks" else None):
            pass
    (line,) = [line for line in lines if line["event"] == "started"]
    assert (line["store"], line["pid"]) == (kind, os.getpid())


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_every_message_comes_once_and_in_order(qos: int) -> None:
    with trio.fail_after(TEST_S):
        async with (
            flowguard.open_broker() as broker,
            broker.client() as publisher,
            broker.client() as subscriber,
        ):
            await subscriber.subscribe("a", qos=qos)
            async with trio.open_nursery() as nursery:

                async def publish() -> None:
                    for number in range(50):
                        await publisher.publish("a", b"%d" % number, qos)

                nursery.start_soon(publish)
                received = [(await subscriber.receive()).payload for _ in range(50)]
            assert received == [b"%d" % number for number in range(50)]


async def test_publishing_waits_as_long_as_the_store() -> None:
    """The window of a client of this process is one like any other: nothing runs ahead of it."""
    store = SlowStore()
    settings = {"flow": {**CALM, "window_max": 5}}
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker(settings, store=store) as broker:
            await offline(broker, "a")
            async with broker.client() as client:
                store.open.clear()
                done: list[int] = []

                async def publish(number: int) -> None:
                    await client.publish("a", b"x" * 50_000, 1)
                    done.append(number)

                async with trio.open_nursery() as nursery:
                    for number in range(40):
                        nursery.start_soon(publish, number)
                    node = broker.running.node
                    await until(lambda: node.guard.window.in_process == 5)
                    await until(lambda: len(client._exchanges) == 10)  # Receive Maximum
                    assert node.guard.window.in_process == 5
                    assert not done
                    store.open.set()
                assert len(done) == 40


async def offline(broker: EmbeddedBroker, filter: str) -> None:
    """Make a durable session without a connection, so that a PUBLISH to it must be committed."""
    client = await broker.connect("offline", clean_start=False, session_expiry_s=3_600)
    await client.subscribe(filter, qos=1)
    await client.close()
    await until(lambda: broker.running.node.registry.sessions["offline"].outbound is None)


async def test_who_takes_no_messages_leaves_them_in_the_broker() -> None:
    with trio.fail_after(TEST_S):
        async with (
            flowguard.open_broker() as broker,
            broker.client() as publisher,
            broker.client() as slow,
        ):
            await slow.subscribe("a", qos=1)
            for number in range(250):
                await publisher.publish("a", b"%d" % number, 1)
                await publisher.publish("a", b"free", 0)
            await until(lambda: slow.dropped > 0)
            assert len(slow._inbox.messages) <= 200
            got = [await slow.receive() for _ in range(len(slow._inbox.messages))]
            while len([m for m in got if m.qos]) < 250:
                got.append(await slow.receive())
            assert [m.payload for m in got if m.qos] == [b"%d" % n for n in range(250)]


async def test_a_cancelled_publish_keeps_the_connection_whole() -> None:
    store = SlowStore()
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker({"flow": dict(CALM)}, store=store) as broker:
            await offline(broker, "a")
            async with broker.client() as client:
                store.open.clear()
                with trio.move_on_after(0.05):
                    await client.publish("a", b"x" * 200_000, 1)
                store.open.set()
                await client.publish("a", b"y", 2)


class Doorkeeper:
    """Knows one password."""

    def authenticate(self, connect: Connect) -> ReasonCode:
        fits = connect.password == b"secret"
        return ReasonCode.SUCCESS if fits else ReasonCode.NOT_AUTHORIZED


async def test_users_of_the_settings_are_checked_for_clients_of_this_process(
    tmp_path: Path,
) -> None:
    users = tmp_path / "users"
    users.write_text(PasswordFile({}).with_user("ann", b"secret").text())
    network = {"password_file": users, "allow_all_topics": True}
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker({"network": network}) as broker:
            with pytest.raises(NotAcceptedError) as caught:
                await broker.connect("me", username="ann", password=b"guess")
            assert caught.value.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
            async with broker.client("me", username="ann", password=b"secret") as client:
                await client.publish("a", b"x", 1)


async def test_hooks_are_asked_for_clients_of_this_process_too() -> None:
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker(hooks=Hooks(authenticator=Doorkeeper())) as broker:
            with pytest.raises(NotAcceptedError) as caught:
                await broker.connect("me")
            assert caught.value.reason_code == ReasonCode.NOT_AUTHORIZED
            async with broker.client("me", password=b"secret") as client:
                await client.publish("a", b"x", 1)


async def test_a_will_is_published_when_its_client_is_cut_off() -> None:
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker() as broker, broker.client() as heir:
            await heir.subscribe("will")
            client = await broker.connect("mortal", will=Will("will", b"gone"))
            await trio.aclose_forcefully(client._stream)
            assert (await heir.receive()).payload == b"gone"


async def test_the_end_of_the_broker_is_the_end_of_its_clients() -> None:
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker() as broker:
            client: LocalClient = await broker.connect("me")
        with pytest.raises(EndedError):
            await client.receive()
        with pytest.raises(EndedError):
            await client.publish("a", b"x", 1)
        assert [message async for message in client] == []


async def test_who_comes_after_the_end_is_told_so() -> None:
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker() as broker:
            pass
        with pytest.raises(EndedError):
            await broker.connect("late")
        with pytest.raises(EndedError):
            async with broker.client("late"):
                raise AssertionError


async def test_who_comes_while_the_broker_drains_is_told_so() -> None:
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker() as broker:
            broker.running.stop.set()
            with pytest.raises(EndedError):
                await broker.connect("late")


class FailingStore(MemoryStore):
    """One whose failure ends the broker."""

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        raise SyncError("the disk failed")


async def test_who_comes_while_the_broker_fails_is_told_so() -> None:
    async def come_until_the_end(broker: EmbeddedBroker) -> None:
        while True:
            try:
                async with broker.client():
                    pass
            except EndedError:
                break

    async def fail(others: trio.Nursery) -> None:
        async with flowguard.open_broker(store=FailingStore()) as broker:
            others.start_soon(come_until_the_end, broker)
            await broker.connect("durable", clean_start=False, session_expiry_s=60)

    with trio.fail_after(TEST_S):
        async with trio.open_nursery() as others:
            with pytest.raises(ExceptionGroup) as caught:
                await fail(others)
            assert caught.group_contains(SyncError)


async def test_a_client_may_outlive_its_broker() -> None:
    with trio.fail_after(TEST_S):
        async with AsyncExitStack() as outer:
            async with flowguard.open_broker() as broker:
                client = await outer.enter_async_context(broker.client("me"))
            with pytest.raises(EndedError):
                await client.subscribe("a")


async def test_an_error_of_the_block_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with flowguard.open_broker():
            raise ValueError("mine")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"flow": {"window_max": 0}}, r"^flow\.window_max: "),
        ({"flow": 5}, "^flow: "),
        ({"flow": None}, "^flow: "),
        ({"store": [("kind", "memory")]}, "^store: "),
        ({"nothing": {}}, "^nothing: "),
        ({5: {}}, "^5: "),
        ({"node": {"workers": 2}}, r"^node\.workers: "),
        (5, "settings are expected to be Settings, or their sections .* not int"),
        ([("flow", {})], "not list"),
        ("flow", "not str"),
        (FlowSettings(), "not FlowSettings"),
        (Settings, "not ModelMetaclass"),
    ],
)
async def test_impossible_settings_are_refused_with_their_key(settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        async with flowguard.open_broker(settings):
            raise AssertionError


SMALL = {"window_max": 7, "memory_max_bytes": 128 * MIB}


@pytest.mark.parametrize("section", [SMALL, MappingProxyType(SMALL), FlowSettings(**SMALL)])
async def test_a_section_is_a_mapping_or_settings_of_its_own(section: Any) -> None:
    async with flowguard.open_broker(MappingProxyType({"flow": section})) as broker:
        flow = broker.running.node.settings.flow
        assert flow.window_max == 7
        assert flow.journal_bytes_max < FlowSettings().journal_bytes_max, "set by nobody"


class UnreadableStore(MemoryStore):
    def load(self) -> StoreLoad:
        raise CorruptionError("cannot be read")


async def test_what_cannot_start_is_raised_as_it_is() -> None:
    with pytest.raises(CorruptionError):
        async with flowguard.open_broker(store=UnreadableStore()):
            raise AssertionError


def test_a_thread_serves_programs_without_trio(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", {"clean_start": False, "session_expiry_s": 3_600}
    with flowguard.run_broker(data=data) as broker, broker.client("me", **kept) as client:
        client.subscribe("a/#", qos=1)
        client.publish("a/1", b"x", 1)
        assert client.receive().payload == b"x"
    with flowguard.run_broker(data=data) as broker, broker.client("me", **kept) as client:
        client.publish("a/2", b"still subscribed", 1)
        assert client.receive().topic in ("a/1", "a/2")


class PathOfAnother:
    """`os.PathLike`, and no more than that."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path


@pytest.mark.parametrize("kind", [str, Path, PathOfAnother])
def test_the_directory_may_be_a_str_or_any_path(tmp_path: Path, kind: Callable[[str], Any]) -> None:
    data = kind(str(tmp_path / "data"))
    with flowguard.run_broker(data=data) as broker, broker.client() as client:
        client.publish("a", b"x", 1, retain=True)
    with flowguard.run_broker(data=data) as broker, broker.client() as client:
        client.subscribe("a")
        assert client.receive().payload == b"x"


def test_asyncio_programs_publish_through_the_thread() -> None:
    async def main() -> None:
        with flowguard.run_broker() as broker, broker.client() as client:
            client.subscribe("a", qos=1)
            await asyncio.gather(
                *(asyncio.to_thread(client.publish, "a", b"%d" % n, 1) for n in range(20))
            )
            heard = [(await asyncio.to_thread(client.receive)).payload for _ in range(20)]
            assert sorted(heard) == sorted(b"%d" % n for n in range(20))

    asyncio.run(main())


def test_what_cannot_start_says_so_in_the_calling_thread() -> None:
    with pytest.raises(ConfigError), flowguard.run_broker({"flow": {"nothing": 1}}):
        raise AssertionError


async def test_the_wire_of_a_client_of_this_process_has_a_name() -> None:
    async with flowguard.open_broker() as broker, broker.client("me"):
        node = broker.running.node
        session = node.registry.sessions["me"]
        assert session.outbound is not None
        link = session.outbound.connection.transport
        assert link.peer() == "this process"  # type: ignore[union-attr]


def test_a_thread_whose_broker_has_ended_is_told_so() -> None:
    with ExitStack() as outer:
        with flowguard.run_broker() as broker:
            client = outer.enter_context(broker.client("me"))
        calls: list[Callable[[], object]] = [
            lambda: client.publish("a", b"x", 1),
            lambda: client.subscribe("a"),
            lambda: client.unsubscribe("a"),
            client.receive,
            lambda: outer.enter_context(broker.client("late")),
        ]
        for call in calls:
            with pytest.raises(EndedError):
                call()
        assert list(client) == []
        client.close()
        broker.stop()


def test_threads_hear_of_the_end_while_it_comes() -> None:
    """In any state, each call is answered, or the connection has ended."""
    heard: list[BaseException] = []

    def until_the_end(call: Callable[[], object]) -> None:
        try:
            while True:
                call()
        except (EndedError, NotAcceptedError):
            pass
        except BaseException as error:
            heard.append(error)

    for _ in range(5):
        with flowguard.run_broker() as broker, ExitStack() as clients:
            publishing, receiving = (clients.enter_context(broker.client()) for _ in range(2))
            receiving.subscribe("a")
            calls: list[Callable[[], object]] = [
                partial(publishing.publish, "a", b"x", 1),
                receiving.receive,
                partial(come_and_go, broker),
            ]
            threads = [threading.Thread(target=until_the_end, args=(call,)) for call in calls]
            for thread in threads:
                thread.start()
            publishing.publish("a", b"y", 1)
            clients.pop_all()  # They stay open: the broker ends under them.
        for thread in threads:
            thread.join(TEST_S)
            assert not thread.is_alive()
    assert not heard


def come_and_go(broker: BrokerThread) -> None:
    with broker.client():
        pass

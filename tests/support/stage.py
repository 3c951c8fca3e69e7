"""A stage: a whole node without sockets, on virtual time, with clients wired straight to it.

    stage = Stage()
    subscriber = stage.connect("s")
    subscriber.subscribe("a/#", qos=1)
    publisher = stage.connect("p", version=4)
    publisher.publish("a/b", b"x", qos=1)
    assert subscriber.publishes()[0].payload == b"x"

Every call turns the node as the broker does, and commits its journal (unless `hold_commits`), until
nothing moves. Time moves only by `advance`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flowguard.bounds import Bounds
from flowguard.cluster import Cluster, Members
from flowguard.codec.packets import (
    Connack,
    Connect,
    Will,
)
from flowguard.config import FlowSettings, Settings
from flowguard.flow import Tell, tell_nobody
from flowguard.node.applications.separate_lane import SeparateLane
from flowguard.node.connect.authentication import Hooks
from flowguard.node.journal import Batch
from flowguard.node.loop.ports import NodePorts
from flowguard.node.node import Answered, Node, Surroundings
from flowguard.records import SessionRecord
from flowguard.session.connection import ServerConnection
from flowguard.session.outbound.fetch import Fetch
from flowguard.session.outbound.inflight import NO_POSITIONS, NONE_SENT
from flowguard.session.outbound.messages import Outbound
from flowguard.session.outbound.outbox import NO_FRAMES
from flowguard.stores import ApplicationStore, MemoryStore, Store
from flowguard.stores.log.replays import LogBatch, read_next
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties
from tests.support.client import WiredClient
from tests.support.on_disk import StoreOnDisk as StoreOnDisk

P = TypeVar("P")
TICK_S = 0.1
PASSES_MAX = 100_000
"""Maximum number of passes of one `settle`, far more than any test needs."""


class StoreWithLog(StoreOnDisk):
    """Messages may be stored once, and be read by sessions."""

    def read_log(
        self,
        client_id: str,
        filters: Sequence[str],
        count_max: int,
        bytes_max: int,
        place: bytes = b"",
    ) -> LogBatch:
        records = {record.client_id: record for record in self.sessions()}
        record = records.get(client_id) or SessionRecord(client_id, 0)
        own, starts = record.log_place, record.log_starts
        return read_next(
            self.log, place or own, {} if place else starts, filters, count_max, bytes_max
        )


class Sockets(NodePorts["Client"]):
    """Clients are wired to their connections: nothing waits to be read, all can be written."""

    def __init__(self, stage: "Stage") -> None:
        super().__init__(stage.node, lambda: stage.now_s, immediate=False)
        self._stage = stage

    @property
    def has_work(self) -> bool:
        """Without chores that are held."""
        node, stage = self._stage.node, self._stage
        begun = node.journal.has_answers or (len(node.state.chores) > 0 and not stage.hold_chores)
        return bool(begun or node.state.runnable or node.state.dirty or node.guard.has_work)

    def poll(self, count_max: int, stay_s: float) -> "list[Client]":
        return []

    def read(self, event: "Client", now_s: float) -> int:
        raise NotImplementedError

    def receive(self, now_s: float) -> None:
        raise NotImplementedError

    @property
    def sockets_count(self) -> int:
        return 0

    def send(self, connections: list[ServerConnection], now_s: float) -> None:
        for connection in connections:
            client = connection.transport
            assert isinstance(client, Client)
            client.carry()

    def wake(self) -> None:
        pass  # It turns as long as something moves.

    def store(self, batch: Batch) -> None:
        raise NotImplementedError

    def ask_store(self) -> bool:
        return True


class Stage:
    """A node, its store and its clients."""

    def __init__(
        self,
        settings: Settings | dict[str, dict[str, Any]] | None = None,
        *,
        store: Store | None = None,
        hooks: Hooks | None = None,
        now_s: float = 1_000_000.0,
        cluster: Cluster | None = None,
        tell: Tell = tell_nobody,
        shadow: FlowSettings | None = None,
        members: Members | None = None,
    ) -> None:
        self.now_s = now_s
        self.processor_clock: Callable[[], float] = lambda: 0.0
        self.store = store or MemoryStore()
        apart = self.store if isinstance(self.store, ApplicationStore) else None
        self.devices = self.store if apart is None else apart.devices
        checked = Settings.model_validate(settings or {})
        self.node = Node(
            Bounds.of(checked, checked.flow.memory_max_bytes or 1 << 30),
            now_s,
            Surroundings(self._next_id, lambda: 0.5, lambda: self.processor_clock()),
            hooks=hooks,
            cluster=members if cluster is None else (cluster, tell),
            shadow=shadow,
            keeps_apart=apart is not None,
        )
        self.node.recover(self.store, now_s)
        self.turns = Sockets(self).turns
        self.hold_commits = False
        """True: batches are taken from the journal but not committed, as by a slow store."""
        self.held: Batch | None = None
        self.hold_apart = False
        """True: the store of applications takes nothing, and gives no page."""
        self.held_apart: Batch | None = None
        self._held_fetches: list[Fetch] = []
        self.hold_fetches = False
        """True: the store is asked for no page."""
        self.hold_chores = False
        """True: what is done piece by piece is not gone on with."""
        self.hold_replays = False
        """True: it is never the turn of a backlog, as while live work has no end."""
        self.passes = self._ids = 0
        """How often something moved, as a loop would count its turns."""
        self.heard_s: float | None = None
        """Not None: what clients have sent since then is not read, the loop has much to do."""

    def _next_id(self) -> str:
        self._ids += 1
        return f"assigned-{self._ids}"

    def opened(self, client: WiredClient) -> ServerConnection:
        return self.node.opened(client, self.now_s)

    def closed(self) -> None:
        self.node.closed()

    def open(self, version: int = MQTT_5) -> "Client":
        """A connection that has said nothing yet; `version` is how the client decodes."""
        return Client(self, version)

    def connect(
        self,
        client_id: str = "",
        *,
        version: int = MQTT_5,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        **properties: Any,
    ) -> "Client":
        """A client after its CONNACK, which stays in `client.connack`."""
        client = self.open(version)
        connect = Connect(
            client_id,
            version,
            clean_start,
            keep_alive_s,
            will=will,
            properties=Properties(**properties) if properties else NO_PROPERTIES,
        )
        client.send(connect)
        if self.hold_commits:
            return client
        client.connack = client.expect(Connack)
        assert client.connack.reason_code == 0, client.connack
        return client

    def attempt(self, connect: Connect) -> "Client":
        """A client that has sent this CONNECT, whatever the answer."""
        client = self.open(connect.version)
        client.send(connect)
        return client

    def connect_durable(
        self, client_id: str, *, version: int = MQTT_5, **properties: Any
    ) -> "Client":
        """Return a client with a durable session, which resumes an existing one."""
        if version == MQTT_5:
            properties.setdefault("session_expiry_interval", 3_600)
        return self.connect(client_id, version=version, clean_start=False, **properties)

    def restart(self) -> None:
        """Drop the node, connections and all, and build another one over the same store."""
        if isinstance(self.store, StoreWithLog):
            self.store.log.appended_count = 0  # It counts since it was opened.
        self.__init__(  # type: ignore[misc]
            self.node.settings.model_dump(),
            store=self.store,
            hooks=self.node.hooks,
            now_s=self.now_s,
        )

    def advance(self, seconds: float) -> None:
        """Let time pass, tick by tick."""
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.node.tick(self.now_s, self.heard_s)
            self.settle()

    def pause(self, seconds: float) -> None:
        """Pause the process; then its timers fire before it has read anything.

        Packets that clients send next were in their sockets meanwhile.
        """
        heard_s = self.now_s
        self.now_s += seconds
        self.node.tick(self.now_s, heard_s)
        self.settle()

    def _assert_shared_empty(self) -> None:
        """Check that the shared empty objects are still empty."""
        assert not NO_FRAMES
        assert not NONE_SENT
        assert not NO_POSITIONS
        for queue in (self.node.state.empty_queue, self.node.state.empty_stored):
            assert not any((queue.waits, queue.count, queue.size_bytes, queue.disk.gaps))

    def settle(self) -> None:
        """Run until nothing moves, nor is pending: turns of the loop, and between them the
        store's."""
        turns = self.turns
        for _ in range(PASSES_MAX):
            self.passes += 1
            moved = turns.turn(self.now_s)
            moved |= turns.run_round()
            moved |= not self.hold_chores and turns.run_chores()
            moved |= not self.hold_replays and turns.replay(idle=True)
            moved |= self._commit()
            moved |= self._commit_apart()
            moved |= self._fetch()
            if not moved:
                self._assert_shared_empty()
                return
        raise AssertionError("it does not end")

    def _fetch(self) -> bool:
        """Pages are read after a turn: commits may come between a page and its turn."""
        pages = self.node.pages
        fetches = [] if self.hold_fetches else pages.to_read()
        if fetches:
            names = self.node.router.lane.names
            self._held_fetches += [each for each in fetches if each.client_id in names]
            own = [each for each in fetches if each.client_id not in names]
            pages.came(_pages_of(own, self.devices))
        if not self.hold_apart:
            held, self._held_fetches = self._held_fetches, []
            pages.ready.extend(_pages_of(held, self.store))
            fetches += held
        return bool(fetches)

    def _commit_apart(self) -> bool:
        if not self.node.router.lane.is_separate:
            return False
        batch = self.held_apart or self.lane.journal.take(self.now_s)
        self.held_apart = batch if self.hold_apart else None
        if batch is None or self.hold_apart:
            return False
        self.store.commit(batch.ops)
        self.lane.journal.durable(batch, self.now_s, 0.0)
        return True

    @property
    def lane(self) -> SeparateLane:
        """The lane of a node whose store is an `ApplicationStore`."""
        lane = self.node.router.lane
        assert isinstance(lane, SeparateLane)
        return lane

    def release_apart(self) -> None:
        """The store of applications has all that waited for it."""
        self.hold_apart = False
        self.settle()

    def _commit(self) -> bool:
        if self.held is not None and not self.hold_commits:
            batch, self.held = self.held, None
        else:
            taken = self.node.journal.take(self.now_s)
            if taken is None:
                return False
            if self.hold_commits:
                self.held = taken
                return False
            batch = taken
        self.make_durable(batch)
        return True

    def release_fetches(self) -> None:
        """The store gives the pages it was asked for."""
        self.hold_fetches = False
        self.settle()

    def make_durable(self, batch: Batch, latency_s: float = 0.0) -> None:
        """The store has the batch, and no continuation has run."""
        self.node.fence(self.devices.commit(batch.ops), self.now_s)
        self.node.journal.durable(batch, self.now_s, latency_s)

    def answer(self) -> None:
        """Run all continuations of the durable batch, in one time slice."""
        journal = self.node.journal
        while journal.is_answering:
            journal.answer(journal.depth, self.now_s)

    def finish_commit(self, latency_s: float = 0.0) -> bool:
        """The slow store has finished one batch; False: it had none."""
        batch, self.held = self.held, None
        if batch is None:
            return False
        self.make_durable(batch, latency_s)
        self.answer()
        self.settle()
        return True

    def release_commits(self) -> None:
        """The slow store has finished."""
        self.hold_commits = False
        self.settle()


@dataclass(eq=False)
class Client(WiredClient):
    """A client of a stage."""

    stage: Stage


def _pages_of(fetches: list[Fetch], store: Store) -> list[Answered | Outbound]:
    return [(fetch, fetch.entries(store)) for fetch in fetches]

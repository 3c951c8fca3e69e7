"""A world around turns, on virtual time: conversations by name, and how long each piece takes."""

from collections import deque
from typing import Final

from flowguard.config import FlowSettings
from flowguard.flow import NodeWindow, Observer
from flowguard.node.journal import Batch, Journal
from flowguard.node.loop.pages import Pages
from flowguard.node.loop.turns import SLICE_S, Next, Ports, Turns
from flowguard.records import PutSession
from flowguard.session.chores import Chores

OP: Final = PutSession("", 0, None)
PIECE_S: Final = SLICE_S / 4
"""Default duration of a piece of work."""


class Steps:
    """A chore of `count` pieces, of `PIECE_S` each."""

    def __init__(self, world: "World", count: int) -> None:
        self.world = world
        self.left = count

    def step(self, now_s: float) -> bool:
        self.world.spend("chore")
        self.left -= 1
        return self.left > 0


class World(Ports[str, str, str]):
    """Connections by name; `said` records all calls of a turn.

    A `lively` connection has more to do after each run, and never ends.
    """

    def __init__(self, *, immediate: bool = True, shared: bool = False) -> None:
        self.now_s = 100.0
        self.said: list[str] = []
        self.ready: deque[str] = deque()
        self.sizes: dict[str, int] = {}
        self.runnable: list[str] = []
        self.roomless: set[str] = set()
        self.lively: set[str] = set()
        self.ended: set[str] = set()
        self.dirty: list[str] = []
        self.sent: list[list[str]] = []
        self.committed: list[int] = []
        self.answered: list[int] = []
        self.is_free = True
        self.piece_s = PIECE_S
        self.others_at_s = 0.0
        """When others can run, next."""
        self.pages: Pages[str, str] = Pages()
        self.chores = Chores(None)
        flow = FlowSettings()
        self.window = NodeWindow()
        self.observer = Observer()
        self.journal = Journal.create(flow, self.window, self.observer)
        if shared:
            self.window.shared = True
        self.turns: Turns[str, str, str, str] = Turns(
            self,
            lambda: self.now_s,
            self.journal,
            self.pages,
            self.chores,
            immediate=immediate,
        )

    def spend(self, what: str) -> None:
        self.said.append(what)
        self.now_s += self.piece_s

    def wait_for_commit(self, number: int) -> None:
        """Append work that is answered with `number` after its commit."""

        def answer(_: float) -> None:
            self.spend("answer")
            self.answered.append(number)

        self.journal.append([OP], answer, self.now_s)

    def run_until(self, wanted: Next, *, turns_max: int = 1_000) -> int:
        """Go on, with no other task to run, until `wanted`; return the number of steps before."""
        for count in range(turns_max):
            following = self.turns.go_on()
            if following is wanted:
                return count
            if following is not Next.TURN:
                self.turns.resume()
        raise AssertionError(f"no {wanted} in {turns_max} steps")

    # --- as turns see it ---------------------------------------------------------------------

    def spare_s(self, now_s: float) -> float:
        return max(0.0, self.others_at_s - now_s)

    def poll(self, count_max: int, stay_s: float) -> list[str]:
        if stay_s:
            self.said.append("stay")
            if not self.ready:
                self.now_s += stay_s
        return [self.ready.popleft() for _ in range(min(count_max, len(self.ready)))]

    def read(self, event: str, now_s: float) -> int:
        assert now_s <= self.now_s
        self.said.append(f"read {event}")
        return self.sizes.get(event, 10)

    def receive(self, now_s: float) -> None:
        self.spend("receive")

    @property
    def sockets_count(self) -> int:
        return 1_000

    def send(self, connections: list[str], now_s: float) -> None:
        self.said.append("send")
        self.sent.append(connections)

    def wake(self) -> None:
        self.said.append("wake")

    @property
    def has_runnable(self) -> bool:
        return bool(self.runnable)

    def take_runnable(self) -> list[str]:
        runnable, self.runnable = self.runnable, []
        return runnable

    def has_room(self, connection: str) -> bool:
        return connection not in self.roomless

    def run_again(self, connection: str, now_s: float) -> bool:
        if connection in self.ended:
            return False
        self.spend(f"run {connection}")
        if connection in self.lively:
            self.runnable.append(connection)
        return True

    def leave(self) -> list[str]:
        dirty, self.dirty = self.dirty, []
        return dirty

    @property
    def has_work(self) -> bool:
        return bool(self.runnable or self.dirty or self.journal.is_answering or len(self.chores))

    def admit(self, now_s: float) -> None:
        self.said.append("admit")

    def store(self, batch: Batch) -> None:
        self.committed.append(len(batch.ops))

    def ask_store(self) -> bool:
        return self.is_free

    def replay(self, piece: str, now_s: float) -> None:
        self.spend(f"replay {piece}")

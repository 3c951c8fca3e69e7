"""Turns: the scheduling rounds of a loop, and when it lets other tasks run.

A turn has these parts, each bounded in count or in time:

1. Read the ready sockets, in slices, and answer the clients that waited for the last commit.
2. Run conversations that had more packets than their window, or waited for capacity (`Rounds`).
3. Run background tasks (chores), piece by piece.
4. Send backlogs (`Pages`).

Every slice ends the same way: waiting work is run, the store is asked to commit, and every
connection with data to send gets one send. Between the parts the loop lets other tasks run when
they have waited for `SLICE_S`. The limit is `AWAITED_S` if the store has answered or has work.

Yielding to other tasks when the loop is idle costs as much as three messages. So a loop waits for
its sockets by itself if it knows that no other task can run (`Ports.spare_s`).

Turns know no socket, task or store: `Ports` connect them to these, and `clock` measures time. The
reactor drives turns with sockets, a simulated broker with clients and a clock that their work
advances, the tests with clients on virtual time. Each of them calls `go_on` repeatedly and does
what it returns, so all get the same turns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

from flowguard.node.journal import Batch, Journal
from flowguard.node.loop.pages import Pages
from flowguard.node.loop.rounds import Rounds
from flowguard.node.loop.sends import Sends
from flowguard.session.chores import Chores

E = TypeVar("E")
C = TypeVar("C")
Q = TypeVar("Q")
P = TypeVar("P")

EVENTS_MAX: Final = 128
"""Maximum number of events per turn; more would use more memory than the caches hold."""
SLICE_CONNECTIONS: Final = 64
SLICE_BYTES: Final = 256 * 1024
SLICE_S: Final = 0.005
"""Maximum time that other tasks wait, in seconds, unless the store has work."""
AWAITED_S: Final = 0.0005
"""This limit if the store has answered or has work; a longer wait would double commit latency."""
ROUND_TURN_S: Final = 0.0005
"""Minimum time in a turn for conversations that waited; then sockets are read again."""
ANSWERS: Final = 64
"""Number of answers per slice after a commit; a turn sends them for `SLICE_S` at most."""
ACCEPTS_MAX: Final = 128
"""Maximum number of accepted connections per turn and listener; protects existing clients."""
SOCKETS: Final = 0
"""The parts of a turn."""
ROUNDS: Final = 1
BACKLOGS: Final = 2
NOTHING: Final = -1
"""Result of a read without data and without the end of a stream."""


class Next(Enum):
    """Action of the driver of turns before it calls `go_on` again."""

    TURN = 0
    """Nothing: the next turn may begin."""
    YIELD = 1
    """Let every other task run that can, then call `resume`."""
    IDLE = 2
    """Wait until something is ready or `Ports.wake` is called, then call `resume`."""


# Looking an enum's member up costs as much as asking the kernel what is ready.
TURN: Final = Next.TURN
YIELD: Final = Next.YIELD
IDLE: Final = Next.IDLE


@mypyc_attr(allow_interpreted_subclasses=True)
class Ports(ABC, Generic[E, C, P]):
    """Interface of a loop to sockets, conversations and a store.

    `E` is an event of `poll`, `C` a conversation, `P` a piece of a backlog.
    """

    # --- sockets -----------------------------------------------------------------------------

    @abstractmethod
    def poll(self, count_max: int, stay_s: float) -> list[E]:
        """Return events in the order in which they occurred; wait for them up to `stay_s`."""

    def spare_s(self, now_s: float) -> float:
        """Return how long no other task can run without ending `poll`; 0 if one may run."""
        return 0.0

    @abstractmethod
    def read(self, event: E, now_s: float) -> int:
        """Read once for an event, and return the number of bytes.

        Return `NOTHING` if there were none, or the event is not of a client.
        """

    @abstractmethod
    def receive(self, now_s: float) -> None:
        """Pass all data to the conversations that was read since the last call.

        Reading and handling apart from each other keeps their code and data in the caches.
        """

    @property
    @abstractmethod
    def sockets_count(self) -> int:
        """Maximum number of sockets that may be ready at once."""

    @abstractmethod
    def send(self, connections: list[C], now_s: float) -> None:
        """Send pending data to these connections, once."""

    @abstractmethod
    def wake(self) -> None:
        """End or skip the wait of `poll`, as there is work that no socket announces."""

    # --- conversations -----------------------------------------------------------------------

    @property
    @abstractmethod
    def has_runnable(self) -> bool:
        """True if `take_runnable` would return a conversation."""

    @abstractmethod
    def take_runnable(self) -> list[C]:
        """Return the conversations that began to wait for another run since the last call."""

    @abstractmethod
    def has_room(self, connection: C) -> bool:
        """Return True if a run would make progress, or if the conversation has ended."""

    @abstractmethod
    def run_again(self, connection: C, now_s: float) -> bool:
        """Run it once more within its capacity; return False if it has ended."""

    @abstractmethod
    def leave(self) -> list[C]:
        """Return the conversations with data that is about to be sent."""

    # --- work --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """True if another turn would find work without new events."""

    @abstractmethod
    def admit(self, now_s: float) -> None:
        """Continue conversations that waited and may go on now."""

    @abstractmethod
    def store(self, batch: Batch) -> None:
        """Commit a batch before this returns; only for a store that never waits."""

    @abstractmethod
    def ask_store(self) -> bool:
        """Start the store's work, a batch or a page; True if it waits for other tasks to run."""

    @abstractmethod
    def replay(self, piece: P, now_s: float) -> None:
        """Process a piece of a backlog."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Turns(Generic[E, C, Q, P]):
    def __init__(
        self,
        ports: Ports[E, C, P],
        clock: Callable[[], float],
        journal: Journal,
        pages: Pages[Q, P],
        chores: Chores,
        *,
        immediate: bool,
        round_turn_s: float = ROUND_TURN_S,
    ) -> None:
        """`journal` has the window of a node and its observer.

        If `immediate`, the store never waits, and commits at the end of each slice.
        """
        assert journal.window is not None
        self._ports = ports
        self._clock = clock
        self._journal = journal
        self._window = journal.window
        self._observer = journal.observer
        self._pages = pages
        self._chores = chores
        self._immediate = immediate
        self._round_turn_s = round_turn_s
        self._rounds: Rounds[C] = Rounds()
        self._sends: Sends[C] = Sends()
        self.awaited = False
        """True if the task that asks the store has work; the store's thread sets it, too."""
        self._part = SOCKETS
        self._worked = False
        """True if this turn has found work."""
        self._was_idle = True
        """True if the turn before has found no work."""
        self.has_replayed = False
        """True if the last turn has sent backlogs."""
        self._served_s = 0.0
        """Time that the sockets of this turn took."""
        self._started_s = self._yielded_s = self._paused_s = clock()
        """Start times: of the wait of sockets, of the wait of other tasks, and of their run."""
        self._is_paused = False
        self.heard_s = self._lap_s = self._lap_before_s = self._started_s
        """Time until which all data that had arrived has been read, and starts of two laps."""
        self._lap_left = 0
        """Number of sockets that are left of the present lap over all sockets."""
        self.idle_s = 0.0
        """Total time that the loop has waited for sockets by itself, in seconds."""

    # --- the loop ----------------------------------------------------------------------------

    def go_on(self) -> Next:
        """Do the next parts, until the turn ends or other tasks have to run."""
        if self._part == SOCKETS:
            self._started_s = self._clock()
            self._worked = self.turn(self._started_s)
            self._part = ROUNDS
            if self._clock() - self._yielded_s > SLICE_S:
                return self.pause(self._started_s)
        if self._part == ROUNDS:
            self._worked |= self.run_round()
            self._worked |= self.run_chores()
            self._part = BACKLOGS
            if self.is_awaited:
                # The store gets what the sockets had before backlogs are sent.
                return self.pause(self._started_s)
        # Backlogs also come after the other tasks, which may have to begin or answer a commit.
        self._part = SOCKETS
        self.has_replayed = self.replay(idle=self._was_idle and not self._worked)
        self._was_idle = not self._worked and not self.has_replayed
        if self._was_idle:
            # Backlogs that wait for their turn cause no event.
            return YIELD if self._pages.waits else IDLE
        ended_s = self._clock()
        if ended_s - self._yielded_s > SLICE_S:
            return self.pause(self._started_s)
        self._observer.drift(ended_s - self._started_s, ended_s)
        self._started_s = ended_s
        return TURN

    @property
    def is_awaited(self) -> bool:
        """True if other tasks have to run now because of the store."""
        return self.awaited and self._clock() - self._yielded_s > AWAITED_S

    @property
    def is_under_way(self) -> bool:
        """True if parts of this turn are left."""
        return self._part != SOCKETS

    def pause(self, since_s: float) -> Next:
        """Let other tasks run now; sockets have waited since `since_s`."""
        self._is_paused = True
        self._paused_s = self._clock()
        if self._paused_s > since_s:
            self._observer.drift(self._paused_s - since_s, self._paused_s)
        return YIELD

    def rest(self) -> None:
        """Let other tasks run because the loop is idle; no socket waits for them."""
        self._is_paused = False
        self._was_idle = True

    def resume(self) -> None:
        now_s = self._clock()
        if self._is_paused:
            self._is_paused = False
            self._observer.drift(now_s - self._paused_s, now_s)
        self._started_s = self._yielded_s = now_s

    @property
    def _turn_s(self) -> float:
        """Time limit of each of the other parts, at least what the sockets took."""
        return max(self._round_turn_s, self._served_s)

    # --- sockets -----------------------------------------------------------------------------

    def turn(self, now_s: float) -> bool:
        """Serve the ready sockets once, and return False if there was no work."""
        ports, journal = self._ports, self._journal
        self._served_s = 0.0
        if self._lap_left <= 0:
            self._lap_s = now_s
            self._lap_left = ports.sockets_count
        spare_s = ports.spare_s(now_s)
        if spare_s and not (self._has_more or ports.has_work or self._pages.waits):
            events = ports.poll(EVENTS_MAX, spare_s)
            # No task has waited for the loop meanwhile.
            self._started_s = self._yielded_s = self._clock()
            self.idle_s += self._started_s - now_s
            now_s = self._started_s
        else:
            events = ports.poll(EVENTS_MAX, 0.0)
        started_s = now_s
        if events:
            self._serve(events, now_s)
            now_s = self._clock()
            self._served_s = now_s - started_s
        self._lap_left -= len(events)
        if self._lap_left <= 0 or len(events) < EVENTS_MAX:
            # Ready sockets form a line. A lap over all sockets serves each socket that was in the
            # line at its start. Sockets accepted meanwhile are served in the next lap.
            self._lap_left = 0
            self.heard_s, self._lap_before_s = self._lap_before_s, self._lap_s
        answered = journal.has_answers
        if answered:
            now_s = self._answer(now_s)
        self.end_slice(now_s)
        return bool(events or self._sends) or answered or ports.has_work

    @property
    def _has_more(self) -> bool:
        """True if conversations wait for a run or a send."""
        return self._ports.has_runnable or len(self._rounds) > 0 or len(self._sends) > 0

    def has_heard(self, now_s: float) -> None:
        """Note that no socket is ready, so that all data until now has been read."""
        self.heard_s = self._lap_before_s = now_s

    def _serve(self, events: list[E], now_s: float) -> None:
        """Read every ready socket once, in slices."""
        ports = self._ports
        count = size_bytes = 0
        for event in events:
            read_bytes = ports.read(event, now_s)
            if read_bytes == NOTHING:
                continue
            count += 1
            size_bytes += read_bytes
            if size_bytes >= SLICE_BYTES or count >= SLICE_CONNECTIONS:
                ports.receive(now_s)
                self.end_slice(now_s)
                count = size_bytes = 0
                now_s = self._clock()
        ports.receive(now_s)

    def _answer(self, now_s: float) -> float:
        """Answer clients that waited for the last commit; the next one begins after all answers."""
        journal = self._journal
        until_s = now_s + SLICE_S
        while journal.has_answers and now_s < until_s:
            journal.answer(ANSWERS, now_s)
            self.end_slice(now_s)
            now_s = self._clock()
        return now_s

    # --- conversations that wait -------------------------------------------------------------

    def run_round(self) -> bool:
        """Run conversations that had more packets than their window, or waited for capacity.

        They run in slices, for `ROUND_TURN_S` or as long as the sockets took. The round goes on in
        the next turn. Return False if no conversation waited.
        """
        ports, rounds = self._ports, self._rounds
        runnable = ports.take_runnable()
        if not runnable and not len(rounds):
            return False
        began_s = slice_s = now_s = self._clock()
        until_s = began_s + self._turn_s
        self._join_round(runnable, began_s, until_s)
        count = 0
        while now_s < until_s and not rounds.is_over:
            if not ports.run_again(rounds.next(), slice_s):
                continue
            count += 1
            if count % SLICE_CONNECTIONS == 0:
                self.end_slice(slice_s)
                slice_s = self._clock()
            now_s = self._clock()
        self._observer.kept_waiting(rounds.wait_s(now_s))
        self.end_slice(now_s)
        return True

    def _join_round(self, runnable: list[C], now_s: float, until_s: float) -> None:
        """Let conversations that began to wait join the round.

        While clients share the window, its pool decides on their order. A conversation without a
        permit waits for the pool, not for the loop. It is run once to ask for the permit, if this
        is possible before `until_s`.
        """
        if not self._window.shared:
            self._rounds.join(runnable, now_s)
            return
        ports, with_room = self._ports, []
        for connection in runnable:
            if ports.has_room(connection) or self._clock() >= until_s:
                with_room.append(connection)
            else:
                ports.run_again(connection, now_s)
        self._rounds.follow(with_room, now_s)

    # --- chores and backlogs -----------------------------------------------------------------

    def run_chores(self) -> bool:
        """Run pieces of background tasks for `ROUND_TURN_S`, or as long as the sockets took.

        Each piece is a slice of its own. Return False if there are none.
        """
        if not len(self._chores):
            return False
        self._chores.run(self._turn_s, self._clock, self.end_slice)
        return True

    def replay(self, *, idle: bool) -> bool:
        """Process pieces of backlogs if it is their turn; True if it was."""
        pages = self._pages
        if not pages.ready:
            return False
        now_s = self._clock()
        if not pages.begins(now_s, idle=idle):
            return False
        while (piece := pages.next(now_s)) is not None:
            self._ports.replay(piece, now_s)
            now_s = self._clock()
        self.end_slice(now_s)
        return True

    # --- slices ------------------------------------------------------------------------------

    def end_slice(self, now_s: float) -> None:
        """Admit work that waited, commit or ask the store to do it, and send."""
        ports, sends, journal = self._ports, self._sends, self._journal
        ports.admit(now_s)
        if self._immediate:
            if not journal.is_empty:
                self._commit(now_s)
        elif journal.wants_store or self._pages.is_hungry:
            self.awaited |= ports.ask_store()
        connections = ports.leave()
        if connections or len(sends):
            more = ports.has_runnable or len(self._rounds) > 0 or journal.has_answers
            ports.send(sends.next(connections, now_s, more=more), now_s)
            if len(sends):
                ports.wake()

    def _commit(self, now_s: float) -> None:
        ports, journal = self._ports, self._journal
        while not journal.is_answering and (batch := journal.take(now_s)) is not None:
            ports.store(batch)
            journal.durable(batch, now_s, 0.0)
            journal.answer(len(batch.continuations), now_s)

    @property
    def has_waiting(self) -> bool:
        return len(self._rounds) > 0

    @property
    def is_quiet(self) -> bool:
        """True if no work, commit or send is pending."""
        ports = self._ports
        waits = ports.has_runnable or len(self._rounds) or len(self._sends) or len(self._chores)
        return self._journal.is_done and not waits

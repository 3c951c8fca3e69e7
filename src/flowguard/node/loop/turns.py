"""Turns: what a loop does with a node, part by part, and when it lets others run.

A turn reads what is ready, in slices, and answers who waited for the last commit. Then come rounds
of conversations that had more than their window or waited for room, chores piece by piece, and
backlogs last. Every slice ends the same way: work that waited is run, the store is asked to commit,
and every connection with something to say gets one send. All parts are bounded, in count or in
time. Between them the loop lets other tasks run when they have waited for `SLICE_S`, or, where the
store has answered or is to be asked, for `AWAITED_S`.

To let others run because nothing is left to do costs as much as three messages do. So a loop that
knows that no other can run (`Ports.spare_s`) waits for its sockets by itself.

It knows no socket, no task and no store: `Ports` are the world around it, and `clock` tells how
long a piece of it took. The reactor drives it with sockets, a simulated broker with clients and a
clock that their work moves on, the tests with clients on virtual time. They call `go_on` again and
again and do what it answers, and all of them get the same turns.
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
"""Per turn: more at once only spreads the work over more memory than the caches hold."""
SLICE_CONNECTIONS: Final = 64
SLICE_BYTES: Final = 256 * 1024
SLICE_S: Final = 0.005
"""So long other tasks may wait for their chance, unless one has something to do."""
AWAITED_S: Final = 0.0005
"""So long where the store has answered, or is to be asked: who waits for it waits twice else."""
ROUND_TURN_S: Final = 0.0005
"""So long at least conversations that waited are run in a turn; then sockets are read again."""
ANSWERS: Final = 64
"""Who waited for a commit is told in slices of so many, for `SLICE_S` in a turn."""
ACCEPTS_MAX: Final = 128
"""Connections taken in, per turn and listener: accepting never starves those already in."""
SOCKETS: Final = 0
"""The parts of a turn."""
ROUNDS: Final = 1
BACKLOGS: Final = 2
NOTHING: Final = -1
"""What reading has brought: not even the end of a stream."""


class Next(Enum):
    """The driver of turns does this before it calls `go_on` again."""

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
    """The world around a loop: sockets, conversations, a store.

    `E` is what `poll` finds ready, `C` a conversation, `P` a piece of a backlog.
    """

    # --- sockets -----------------------------------------------------------------------------

    @abstractmethod
    def poll(self, count_max: int, stay_s: float) -> list[E]:
        """Return what is ready, in the order in which it became so; wait for it up to `stay_s`."""

    def spare_s(self, now_s: float) -> float:
        """How long nobody else can run, unless it ends `poll`; 0: somebody may."""
        return 0.0

    @abstractmethod
    def read(self, event: E, now_s: float) -> int:
        """Read one of them once; how many bytes. `NOTHING`: there were none, it was no client."""

    @abstractmethod
    def receive(self, now_s: float) -> None:
        """Hand over to the conversations what was read since the last call.

        Each kind of work finds its code and data where it left them, in the caches.
        """

    @property
    @abstractmethod
    def sockets_count(self) -> int:
        """How many may be ready at once, at most."""

    @abstractmethod
    def send(self, connections: list[C], now_s: float) -> None:
        """Send these what there is for them, once."""

    @abstractmethod
    def wake(self) -> None:
        """There is work that no socket announces: do not wait, or no longer."""

    # --- conversations -----------------------------------------------------------------------

    @property
    @abstractmethod
    def has_runnable(self) -> bool:
        """Whether `take_runnable` would give somebody."""

    @abstractmethod
    def take_runnable(self) -> list[C]:
        """Return the conversations that have come to wait for another run since the last call."""

    @abstractmethod
    def has_room(self, connection: C) -> bool:
        """Whether it would get on, if it was run; True where it is over."""

    @abstractmethod
    def run_again(self, connection: C, now_s: float) -> bool:
        """Run it once more, so far as it has room; False: it is over."""

    @abstractmethod
    def leave(self) -> list[C]:
        """Return the conversations that have something to say, which is about to leave."""

    # --- work --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether another turn would find something to do, though nothing new came in."""

    @abstractmethod
    def admit(self, now_s: float) -> None:
        """Let conversations go on that waited and may."""

    @abstractmethod
    def store(self, batch: Batch) -> None:
        """Commit it before this returns; only where the store never waits for anything."""

    @abstractmethod
    def ask_store(self) -> bool:
        """A batch or a page waits for the store; True: it only waits for the others' turn."""

    @abstractmethod
    def replay(self, piece: P, now_s: float) -> None:
        """It is the turn of this piece of a backlog."""


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

        `immediate`: the store never waits for anything, and is asked at the end of a slice.
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
        """The task that asks the store has something to do; its thread says so, too."""
        self._part = SOCKETS
        self._worked = False
        """This turn has found something to do."""
        self._was_idle = True
        """The turn before has not."""
        self.has_replayed = False
        """The last turn ended with the backlogs'."""
        self._served_s = 0.0
        """How long the sockets of this turn took."""
        self._started_s = self._yielded_s = self._paused_s = clock()
        """Since when sockets wait for what is done now; since when others wait; since when it is
        they who run."""
        self._is_paused = False
        self.heard_s = self._lap_s = self._lap_before_s = self._started_s
        """Until when whatever had come has been read."""
        self._lap_left = 0
        """Of a lap over all sockets: when it began, and the one before, and what is left of it."""
        self.idle_s = 0.0
        """How long it has waited for sockets by itself, in all."""

    # --- the loop ----------------------------------------------------------------------------

    def go_on(self) -> Next:
        """Do what comes next, until the turn is over or others have to run."""
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
                # With what the sockets had, and before backlogs have their turn.
                return self.pause(self._started_s)
        # Backlogs come after the other tasks, too: a commit may have to be begun, or answered.
        self._part = SOCKETS
        self.has_replayed = self.replay(idle=self._was_idle and not self._worked)
        self._was_idle = not self._worked and not self.has_replayed
        if self._was_idle:
            # Backlogs that wait for their turn announce nothing.
            return YIELD if self._pages.waits else IDLE
        ended_s = self._clock()
        if ended_s - self._yielded_s > SLICE_S:
            return self.pause(self._started_s)
        self._observer.drift(ended_s - self._started_s, ended_s)
        self._started_s = ended_s
        return TURN

    @property
    def is_awaited(self) -> bool:
        """Whether others are to run now, because of the store."""
        return self.awaited and self._clock() - self._yielded_s > AWAITED_S

    @property
    def is_under_way(self) -> bool:
        """Whether parts of this turn are left."""
        return self._part != SOCKETS

    def pause(self, since_s: float) -> Next:
        """Others run now; sockets have waited for what was done since then."""
        self._is_paused = True
        self._paused_s = self._clock()
        if self._paused_s > since_s:
            self._observer.drift(self._paused_s - since_s, self._paused_s)
        return YIELD

    def rest(self) -> None:
        """Others run because there is nothing else to do, and nobody waits for them."""
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
        """The time that each of the other parts may take: no less than the sockets took."""
        return max(self._round_turn_s, self._served_s)

    # --- sockets -----------------------------------------------------------------------------

    def turn(self, now_s: float) -> bool:
        """One pass over what is ready; False when there was nothing to do."""
        ports, journal = self._ports, self._journal
        self._served_s = 0.0
        if self._lap_left <= 0:
            self._lap_s = now_s
            self._lap_left = ports.sockets_count
        spare_s = ports.spare_s(now_s)
        if spare_s and not (self._has_more or ports.has_work or self._pages.waits):
            events = ports.poll(EVENTS_MAX, spare_s)
            # Nobody has waited for us meanwhile.
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
            # Who is ready stands in a line, and whoever was in it when a lap over all sockets began
            # was served when it is over. Who was let in meanwhile speaks in the next one.
            self._lap_left = 0
            self.heard_s, self._lap_before_s = self._lap_before_s, self._lap_s
        answered = journal.has_answers
        if answered:
            now_s = self._answer(now_s)
        self.end_slice(now_s)
        return bool(events or self._sends) or answered or ports.has_work

    @property
    def _has_more(self) -> bool:
        """Whether conversations wait for a turn, or for being sent."""
        return self._ports.has_runnable or len(self._rounds) > 0 or len(self._sends) > 0

    def has_heard(self, now_s: float) -> None:
        """Nothing is ready: whatever had come has been read."""
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
        """Answer those who waited for the last commit; the next one begins when all have heard."""
        journal = self._journal
        until_s = now_s + SLICE_S
        while journal.has_answers and now_s < until_s:
            journal.answer(ANSWERS, now_s)
            self.end_slice(now_s)
            now_s = self._clock()
        return now_s

    # --- conversations that wait -------------------------------------------------------------

    def run_round(self) -> bool:
        """Conversations that had more than their window of packets, or waited for room.

        In slices, for `ROUND_TURN_S` or as long as the sockets took; the round goes on in the next
        turn. Returns False when nobody waited.
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
        """Let those who have come to wait join the round.

        While clients take turns the pool has decided on the order, and who has no permit waits for
        that, not for the loop: it has only to say so, for which there is time until `until_s`.
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
        """Pieces of them, for `ROUND_TURN_S` or as long as the sockets took; False: there are none.

        Each is a slice of its own.
        """
        if not len(self._chores):
            return False
        self._chores.run(self._turn_s, self._clock, self.end_slice)
        return True

    def replay(self, *, idle: bool) -> bool:
        """Backlogs, if it is their turn."""
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
        """Admit, commit or ask for it, send."""
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
        """Nobody waits for a turn, and nothing for being sent."""
        ports = self._ports
        waits = ports.has_runnable or len(self._rounds) or len(self._sends) or len(self._chores)
        return self._journal.is_done and not waits

"""Deadlines: never early, never lost, and nothing kept for objects that have ended.

1. A call is made once, by the first `fire` at or after its instant, in order; unless cancelled.
2. Cancelled timers never are more than half of all that are held.
3. The wheel shows a connection once, within a tenth of a second after the instant requested last,
   not before.
4. Neither makes more than DUE_MAX calls at once; the rest keeps its order.
5. Neither holds a connection or a session that has ended, however far its deadline is.

`test_due` has the work that a node does for both, a piece at a time.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowguard.codec.packets import Will
from flowguard.node.upkeep.timers import DUE_MAX, Timer, Timers, Wheel
from flowguard.session.connection import ServerConnection
from tests.support.stage import Stage


class Calls(RuleBasedStateMachine):
    """Timers against a plain list of deadlines."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = Timers()
        self.now_s = 0.0
        self.count = 0
        self.waiting: dict[int, float] = {}
        self.handles: dict[int, Timer] = {}
        self.called: list[int] = []

    @rule(delay_s=st.integers(0, 20))
    def ask(self, delay_s: int) -> None:
        self.count += 1
        number = self.count
        self.waiting[number] = self.now_s + delay_s
        self.handles[number] = self.timers.at(
            self.now_s + delay_s, lambda now_s: self.called.append(number), "t"
        )

    @precondition(lambda self: self.handles)
    @rule(choice=st.integers(min_value=0))
    def cancel(self, choice: int) -> None:
        """Also what was called or cancelled before: safe, and nothing happens."""
        number = list(self.handles)[choice % len(self.handles)]
        self.timers.cancel(self.handles[number])
        self.waiting.pop(number, None)

    @rule(seconds=st.integers(0, 10))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds
        self.called.clear()
        self.timers.fire(self.now_s, self.now_s)
        due = [number for number, due_s in self.waiting.items() if due_s <= self.now_s]
        assert self.called == sorted(due, key=lambda number: (self.waiting[number], number))
        for number in due:
            del self.waiting[number]

    @invariant()
    def cancelled_ones_are_never_the_majority(self) -> None:
        assert len(self.waiting) <= len(self.timers) <= 2 * len(self.waiting)


TestCalls = Calls.TestCase
TWENTIETHS = st.integers(0, 8).map(lambda count: count / 20)
"""Seconds, in halves of a slot of the wheel: instants often lie in the slot of now."""
SLOT_S = 0.1


class Looks(RuleBasedStateMachine):
    """The wheel, with three connections, against a dict of deadlines."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        stage = Stage()
        self.connections = [stage.open().connection for _ in range(3)]
        self.wheel = Wheel(self.now_s)
        for connection in self.connections:
            connection.watched_slot = 0  # The stage's own node watches its newcomers.
        self.due_s: dict[ServerConnection, float] = {}

    @rule(index=st.integers(0, 2), delay_s=TWENTIETHS | st.floats(0.0, 30.0))
    def watch(self, index: int, delay_s: float) -> None:
        connection = self.connections[index]
        self.wheel.watch(connection, self.now_s + delay_s)
        self.due_s[connection] = self.now_s + delay_s

    @rule(index=st.integers(0, 2))
    def forget(self, index: int) -> None:
        self.wheel.forget(self.connections[index])
        self.due_s.pop(self.connections[index], None)

    @rule(seconds=TWENTIETHS | st.floats(0.0, 10.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        for connection in self.wheel.due(self.now_s):
            assert self.due_s.pop(connection) <= self.now_s
        assert all(due_s > self.now_s - SLOT_S - 1e-9 for due_s in self.due_s.values())


TestLooks = Looks.TestCase


def test_calls_due_at_once_are_made_a_bounded_number_at_a_time_in_their_order() -> None:
    timers = Timers()
    called: list[int] = []
    for number in range(2 * DUE_MAX + 5):
        timers.at(10.0, lambda now_s, number=number: called.append(number), "t")  # type: ignore[misc]
    timers.at(9.0, lambda now_s: called.append(-1), "t")
    counts = []
    for _ in range(4):
        timers.fire(10.0, 10.0)
        counts.append(len(called))
    assert counts == [DUE_MAX, 2 * DUE_MAX, 2 * DUE_MAX + 6, 2 * DUE_MAX + 6]
    assert called == list(range(-1, 2 * DUE_MAX + 5))


def test_connections_due_at_once_are_shown_a_bounded_number_at_a_time() -> None:
    stage = Stage()
    wheel = Wheel(stage.now_s)
    connections = [stage.open().connection for _ in range(2 * DUE_MAX + 5)]
    for number, connection in enumerate(connections):
        connection.watched_slot = 0
        wheel.watch(connection, stage.now_s + (1 if number < DUE_MAX + 3 else 2))
    wheel.forget(connections[DUE_MAX])
    shown = [wheel.due(stage.now_s + 3) for _ in range(4)]
    assert [len(each) for each in shown] == [DUE_MAX, DUE_MAX, 4, 0]
    del connections[DUE_MAX]
    assert [each for some in shown for each in some] == connections


def test_a_connection_watched_again_while_its_slot_is_worked_off_is_shown_again() -> None:
    stage = Stage()
    wheel = Wheel(stage.now_s)
    connections = [stage.open().connection for _ in range(DUE_MAX + 1)]
    for connection in connections:
        connection.watched_slot = 0
        wheel.watch(connection, stage.now_s)
    first = wheel.due(stage.now_s + 1)
    wheel.watch(first[0], stage.now_s)
    assert wheel.due(stage.now_s + 1) == [connections[-1], first[0]]


def test_a_client_that_comes_and_goes_leaves_no_timer_behind_each_time() -> None:
    stage = Stage()
    will = Will("w", b"")
    will.properties = type(will.properties)(will_delay_interval=4_000_000)
    for clean in (False, True) * 50:
        client = stage.connect(
            "c", clean_start=clean, will=will, session_expiry_interval=4_000_000_000
        )
        client.close()
    assert len(stage.node.timers) <= 4


def test_connections_that_are_over_are_not_kept_until_their_keep_alive() -> None:
    stage = Stage()
    for _ in range(50):
        stage.connect("c", keep_alive_s=65_535).close()
    assert sum(len(bucket) for bucket in stage.node.wheel._buckets.values()) == 0

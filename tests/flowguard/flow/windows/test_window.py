"""Invariants of the windows, from one client's and from the node's side:

1. The capacity is never negative, and 0 while the node is closed.
2. The limit is never below one packet, after any resize.
3. Admitted packets stay admitted: a shrunken limit cancels nothing, it only stops admission.
4. Conservation: admitted = settled + in process.
5. With an open node and nothing in process one packet is always possible.
6. Clients are active with packets in process, or waiting, or both; each counts once.
7. A packet of higher cost or with a limit of its own joins others only if it fits; until then there
   is no capacity.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowguard.flow import AdmissionWindow, NodeWindow, Pause
from flowguard.flow.windows.window import UNBOUNDED

CLIENTS = st.integers(0, 2)


class Windows(RuleBasedStateMachine):
    """Three clients of one node, against three plain counts."""

    @initialize(limit_max=st.integers(1, 100), own_max=st.integers(1, 100))
    def node_starts(self, limit_max: int, own_max: int) -> None:
        self.node = NodeWindow(limit_max)
        self.own_max = [UNBOUNDED, UNBOUNDED, own_max]
        self.windows = [AdmissionWindow(self.node, most) for most in self.own_max]
        self.costs: list[list[int]] = [[], [], []]
        self.needs = [0, 0, 0]
        self.waits = [False] * 3

    @rule(limit=st.integers(-5, 200))
    def load_changes(self, limit: int) -> None:
        self.node.resize(limit)
        assert self.node.limit == max(1, limit)

    @rule(own_max=st.integers(1, 200))
    def its_roles_change(self, own_max: int) -> None:
        self.windows[2].limit_max = self.own_max[2] = own_max

    def _limit(self, client: int) -> int:
        return min(self.node.limit, self.own_max[client])

    @rule(closed=st.booleans())
    def journal_fills_or_empties(self, closed: bool) -> None:
        self.node.closed = closed

    @rule(client=CLIENTS, wanted=st.integers(1, 120))
    def client_sends(self, client: int, wanted: int) -> None:
        for _ in range(min(wanted, self.windows[client].room())):
            self._admit(client, 1)

    @rule(client=CLIENTS, cost=st.integers(1, 100), limit_max=st.integers(1, 200))
    def client_sends_what_weighs_more(self, client: int, cost: int, limit_max: int) -> None:
        window = self.windows[client]
        if not window.room():
            return
        if not window.fits(cost, limit_max):
            limit = self._limit(client)
            assert window.in_process + cost > min(limit, limit_max)
            self.needs[client] = cost + max(0, limit - limit_max)
            return
        self._admit(client, cost)

    def _admit(self, client: int, cost: int) -> None:
        others = bool(self.costs[client])
        self.windows[client].admit(cost)
        self.costs[client].append(cost)
        self.needs[client] = 0
        assert not others or self.windows[client].in_process <= self._limit(client)

    @precondition(lambda self: any(self.costs))
    @rule(client=CLIENTS)
    def work_is_done(self, client: int) -> None:
        if self.costs[client]:
            self.windows[client].settle(self.costs[client].pop(0))

    @rule(client=CLIENTS, waits=st.booleans())
    def turn_is_over(self, client: int, waits: bool) -> None:
        self.windows[client].rest(waits)
        self.waits[client] = waits

    @invariant()
    def counts_agree_and_room_follows(self) -> None:
        for client, window in enumerate(self.windows):
            costs, needs = self.costs[client], self.needs[client]
            assert window.in_process == sum(costs)
            room = max(0, self._limit(client) - sum(costs))
            if costs and needs > room:
                room = 0
            assert window.is_full is (room == 0)
            assert window.room() == (0 if self.node.closed else room)
            assert self.node.closed or costs or window.room() >= 1
        both = zip(self.costs, self.waits, strict=True)
        assert self.node.active == sum(bool(costs) or waits for costs, waits in both)


TestWindows = Windows.TestCase


def test_a_calm_node_gives_each_client_a_hundred_packets() -> None:
    assert AdmissionWindow(NodeWindow()).room() == 100


def test_shrinking_keeps_admitted_packets_and_admits_again_only_below_the_new_limit() -> None:
    node = NodeWindow()
    window = AdmissionWindow(node)
    for _ in range(100):
        window.admit()
    node.resize(1)
    assert window.in_process == 100
    for _ in range(100):
        assert window.room() == 0
        window.settle()
    assert window.room() == 1


def test_one_client_at_its_limit_takes_nothing_from_another() -> None:
    node = NodeWindow(2)
    busy, idle = AdmissionWindow(node), AdmissionWindow(node)
    busy.admit()
    busy.admit()
    assert (busy.room(), idle.room()) == (0, 2)


@given(st.integers(1, 100))
def test_admission_without_room_and_settling_without_admission_are_bugs(limit: int) -> None:
    node = NodeWindow(limit)
    window = AdmissionWindow(node)
    with pytest.raises(AssertionError):
        window.settle()
    for _ in range(limit):
        window.admit()
    with pytest.raises(AssertionError):
        window.admit()


def test_a_permit_is_of_no_use_while_the_bytes_of_others_fill_the_budget() -> None:
    node = NodeWindow(10, units_max=100, bytes_max=1_000)
    one, other = AdmissionWindow(node), AdmissionWindow(node)
    one.admit(1, 600)
    other.admit(1, 600)
    assert node.shared
    one.settle(1, 600)
    one.permit(3)
    assert one.room() == 3
    one.admit(1, 600)
    assert one.room() == 0
    other.settle(1, 600)
    assert one.room() == 2


def test_credits_are_spent_by_weight_and_what_was_spent_beyond_them_is_owed() -> None:
    node = NodeWindow(1_000)
    node.credits = 100
    window = AdmissionWindow(node)
    node.credits_round = 1
    window.admit(250)
    window.spend(1)
    room = []
    for _ in range(4):
        room.append(window.room())
        node.credits_round += 1
    assert room == [0, 0, 50, 100]


def test_a_window_without_room_says_why_in_the_order_in_which_it_asks() -> None:
    node = NodeWindow(3, units_max=2, bytes_max=1_000)
    window = AdmissionWindow(node)
    assert window.pause() is None
    node.credits = 1
    window.spend(1)
    assert window.pause() is Pause.CREDITS
    node.credits = None
    window.admit(2)
    assert window.pause() is Pause.TURN
    window.permit(1)
    assert window.pause() is None
    node.in_process_bytes = 1_000
    assert window.pause() is Pause.TURN
    node.resize(2)
    assert window.pause() is Pause.WINDOW
    node.closed = True
    assert window.pause() is Pause.CLOSED

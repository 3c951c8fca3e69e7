"""Invariants of the waiting room:

1. Who goes in next has the earliest rank: its arrival, plus 2 s per class; first in, first out.
2. At most one entry per client id; who was superseded is handed out once, and frees its bytes.
3. Who has waited out its patience is never next; it keeps its entry until it is taken.
4. Neither entries nor bytes exceed their bounds, and bytes are those of the entries.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow.policy import Arrival, Resumption
from flowguard.flow.verdict import Reason
from flowguard.flow.waiting import AGEING_S, WaitingRoom
from tests.flowguard.flow.gates import CLIENT_IDS, PATIENCE_S, Guest


class Rooms(RuleBasedStateMachine):
    """The room against a plain list that is searched."""

    @initialize(entries_max=st.integers(0, 8), bytes_max=st.sampled_from([0, 200, 1_000]))
    def room_is_built(self, entries_max: int, bytes_max: int) -> None:
        self.entries_max, self.bytes_max = entries_max, bytes_max
        self.room: WaitingRoom[int] = WaitingRoom(
            entries_max=entries_max, bytes_max=bytes_max, patience_s=PATIENCE_S
        )
        self.now_s = 0.0
        self.keys = 0
        self.guests: list[Guest] = []
        self.superseded: list[int] = []

    def pop(self, guest: Guest) -> int:
        self.guests.remove(guest)
        return guest.key

    @rule(
        crowd=st.lists(
            st.tuples(CLIENT_IDS, st.integers(1, 120), st.sampled_from(Resumption)),
            min_size=1,
            max_size=6,
        )
    )
    def connects_arrive(self, crowd: list[tuple[str, int, Resumption]]) -> None:
        for one in crowd:
            self.connect_arrives(*one)

    def connect_arrives(self, client_id: str, size_bytes: int, resumption: Resumption) -> None:
        self.keys += 1
        arrival = Arrival(client_id, size_bytes, resumption)
        self.room.supersede(client_id)
        for guest in list(self.guests):
            if client_id and guest.arrival.client_id == client_id:
                self.superseded.append(self.pop(guest))
        used_bytes = sum(guest.arrival.size_bytes for guest in self.guests)
        reason = self.room.why_not(size_bytes)
        if len(self.guests) >= self.entries_max:
            assert reason is Reason.GATE_BUFFER_FULL
        elif used_bytes + size_bytes > self.bytes_max:
            assert reason is Reason.GATE_BUFFER_BYTES
        else:
            assert reason is None
            self.room.add(self.keys, arrival, self.now_s, self.now_s)
            self.guests.append(Guest(self.keys, arrival, self.now_s))

    @rule(seconds=st.sampled_from([0.0, 1.0, AGEING_S, PATIENCE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.room.expire(self.now_s)
        for guest in self.guests:
            guest.late = self.now_s - guest.since_s >= PATIENCE_S

    @rule(choice=st.integers(min_value=0))
    def somebody_leaves(self, choice: int) -> None:
        known = [guest.key for guest in self.guests] + self.superseded + [-1]
        key = known[choice % len(known)]
        self.room.leave(key)
        self.guests = [guest for guest in self.guests if guest.key != key]
        self.superseded = [other for other in self.superseded if other != key]
        assert key not in self.room

    @rule()
    def next_goes_in(self) -> None:
        hopeful = [guest for guest in self.guests if not guest.late]
        best = min(hopeful, key=lambda guest: guest.rank, default=None)
        assert self.room.take_next() == (None if best is None else self.pop(best))

    @rule()
    def late_is_taken(self) -> None:
        key = self.room.take_late()
        late = [guest for guest in self.guests if guest.late]
        assert (key is None) == (not late)
        if key is not None:
            self.pop(next(guest for guest in late if guest.key == key))

    @rule()
    def superseded_is_taken(self) -> None:
        oldest = self.superseded.pop(0) if self.superseded else None
        assert self.room.take_superseded() == oldest

    @rule()
    def all_are_taken(self) -> None:
        taken = []
        while (key := self.room.take_any()) is not None:
            taken.append(key)
        assert sorted(taken) == sorted([guest.key for guest in self.guests] + self.superseded)
        self.guests, self.superseded = [], []

    @invariant()
    def it_holds_who_is_in_it(self) -> None:
        if not hasattr(self, "room"):
            return
        assert len(self.room) == len(self.guests) <= self.entries_max
        assert self.room.size_bytes == sum(g.arrival.size_bytes for g in self.guests)
        assert self.room.size_bytes <= self.bytes_max
        assert self.room.hopeful == sum(not guest.late for guest in self.guests)
        assert self.room.has_superseded == bool(self.superseded)
        for key in range(1, self.keys + 1):
            here = key in self.superseded or any(guest.key == key for guest in self.guests)
            assert (key in self.room) == here


TestRooms = Rooms.TestCase


def room_with(*arrivals: tuple[str, Resumption, float]) -> WaitingRoom[str]:
    room: WaitingRoom[str] = WaitingRoom(entries_max=10, bytes_max=10_000, patience_s=PATIENCE_S)
    for name, resumption, now_s in arrivals:
        room.add(name, Arrival("", 100, resumption), now_s, now_s)
    return room


def everybody(room: WaitingRoom[str]) -> str:
    taken = ""
    while (key := room.take_next()) is not None:
        taken += key
    return taken


def test_resumptions_go_before_new_clients_and_those_held_here_first() -> None:
    room = room_with(
        ("n", Resumption.NEW, 0.0),
        ("e", Resumption.ELSEWHERE, 0.5),
        ("h", Resumption.HERE, 1.0),
        ("i", Resumption.HERE, 1.5),
    )
    assert everybody(room) == "hien"


def test_a_new_client_that_waited_four_seconds_goes_before_a_resumption_of_just_now() -> None:
    assert everybody(room_with(("n", Resumption.NEW, 0.0), ("h", Resumption.HERE, 3.9))) == "hn"
    assert everybody(room_with(("n", Resumption.NEW, 0.0), ("h", Resumption.HERE, 4.0))) == "nh"


def test_who_is_late_has_no_hope_but_keeps_its_entry_until_it_is_taken() -> None:
    room = room_with(("a", Resumption.NEW, 0.0), ("b", Resumption.HERE, 1.0))
    room.expire(PATIENCE_S)
    assert (room.hopeful, len(room), room.size_bytes) == (1, 2, 200)
    assert room.take_next() == "b"
    assert room.take_next() is None
    assert room.take_late() == "a"
    assert (room.hopeful, len(room), room.size_bytes) == (0, 0, 0)


def test_resumptions_without_end_do_not_starve_a_new_client() -> None:
    room = room_with(("n", Resumption.NEW, 0.0))
    for second in range(4):
        room.add(f"{second}", Arrival("", 100, Resumption.HERE), float(second), 0.0)
        assert room.take_next() == f"{second}"
    room.add("late", Arrival("", 100, Resumption.HERE), 4.5, 4.5)
    assert room.take_next() == "n"

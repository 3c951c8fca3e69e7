"""Invariants of the connect queue:

1. First in, first out.
2. At most one entry per client id; a superseded one is handed out once, and frees its bytes.
3. A CONNECT beyond the timeout is never next; it keeps its entry until it is taken.
4. Neither entries nor bytes exceed their bounds, and bytes are those of the entries.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow.gate.waiting import WaitingRoom
from flowguard.flow.policy import Arrival
from flowguard.flow.verdict import Reason
from tests.flowguard.flow.gates import CLIENT_IDS, PATIENCE_S, Guest


class Rooms(RuleBasedStateMachine):
    """The queue against a plain list that is searched."""

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
            st.tuples(CLIENT_IDS, st.integers(1, 120)),
            min_size=1,
            max_size=6,
        )
    )
    def connects_arrive(self, crowd: list[tuple[str, int]]) -> None:
        for one in crowd:
            self.connect_arrives(*one)

    def connect_arrives(self, client_id: str, size_bytes: int) -> None:
        self.keys += 1
        arrival = Arrival(client_id, size_bytes)
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

    @rule(seconds=st.sampled_from([0.0, 1.0, 2.0, PATIENCE_S]))
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
        assert self.room.take_next() == (self.pop(hopeful[0]) if hopeful else None)

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


def test_a_late_connect_keeps_its_entry_until_it_is_taken() -> None:
    room: WaitingRoom[str] = WaitingRoom(entries_max=10, bytes_max=10_000, patience_s=PATIENCE_S)
    room.add("a", Arrival("", 100), 0.0, 0.0)
    room.add("b", Arrival("", 100), 1.0, 1.0)
    room.expire(PATIENCE_S)
    assert (room.hopeful, len(room), room.size_bytes) == (1, 2, 200)
    assert room.take_next() == "b"
    assert room.take_next() is None
    assert room.take_late() == "a"
    assert (room.hopeful, len(room), room.size_bytes) == (0, 0, 0)

"""Invariants of the gate (design/overload.md 6.8, no. 10 and 11):

1. At most `limit` CONNECTs are in process, however they arrive, leave, or the limit is moved.
2. Every CONNECT gets exactly one outcome: admitted, refused, or gone by itself; none afterwards.
3. The buffer never holds more entries or bytes than it may; its bytes are those of its entries.
4. First in, first out: nobody is admitted while somebody older waits and is not too old.
5. Who has waited `patience_s` is refused, and not admitted, once its turn comes.
6. No refusal with an empty buffer and a free place.
7. Refusals are counted by reason, and each has one.
"""

from collections import OrderedDict

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow import ConnectGate, Reason, Verdict

PATIENCE_S = 8.0


class Gate(RuleBasedStateMachine):
    """The gate against a set of those inside and an ordered dict of those who wait."""

    @initialize(
        limit=st.integers(1, 4), buffer_max=st.integers(0, 5), bytes_max=st.integers(0, 300)
    )
    def gate_is_built(self, limit: int, buffer_max: int, bytes_max: int) -> None:
        self.limit, self.buffer_max, self.bytes_max = limit, buffer_max, bytes_max
        self.gate: ConnectGate[int] = ConnectGate(
            limit=limit, buffer_max=buffer_max, buffer_bytes_max=bytes_max, patience_s=PATIENCE_S
        )
        self.now_s = 0.0
        self.offered = 0
        self.inside: set[int] = set()
        self.waiting: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self.refused: list[int] = []
        self.left: list[int] = []

    def waiting_bytes(self) -> int:
        return sum(size for _, size in self.waiting.values())

    @rule(size_bytes=st.integers(1, 120))
    def connect_arrives(self, size_bytes: int) -> None:
        key = self.offered
        self.offered += 1
        verdict = self.gate.offer(key, size_bytes, self.now_s)
        if len(self.inside) < self.limit and not self.waiting:
            assert verdict is Verdict.ADMIT
            self.inside.add(key)
        elif (
            len(self.waiting) < self.buffer_max
            and self.waiting_bytes() + size_bytes <= self.bytes_max
        ):
            assert verdict is Verdict.DELAY
            self.waiting[key] = (self.now_s, size_bytes)
        else:
            assert verdict is Verdict.REJECT
            self.refused.append(key)

    @rule(choice=st.integers(min_value=0))
    def connack_is_sent_or_connection_breaks(self, choice: int) -> None:
        known = sorted(self.inside) + list(self.waiting)
        if known:
            key = known[choice % len(known)]
            self.gate.settle(key)
            self.gate.settle(key)  # Safe to repeat: an end and an answer may both report.
            self.inside.discard(key)
            self.waiting.pop(key, None)
            self.left.append(key)

    @rule(seconds=st.sampled_from([0.5, 4.0, PATIENCE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(limit=st.integers(1, 6))
    def limit_moves(self, limit: int) -> None:
        if limit >= len(self.inside):
            self.gate.limit = self.limit = limit

    @rule()
    def turn(self) -> None:
        while (found := self.gate.admit_next(self.now_s)) is not None:
            key, verdict = found
            oldest, (since_s, _) = self.waiting.popitem(last=False)
            assert key == oldest
            if self.now_s - since_s >= PATIENCE_S:
                assert verdict is Verdict.REJECT
                self.refused.append(key)
            else:
                assert verdict is Verdict.ADMIT
                self.inside.add(key)
        if self.waiting:
            assert len(self.inside) >= self.limit
            since_s, _ = next(iter(self.waiting.values()))
            assert self.now_s - since_s < PATIENCE_S

    @rule()
    def node_drains(self) -> None:
        while (key := self.gate.abandon_next()) is not None:
            oldest, _ = self.waiting.popitem(last=False)
            assert key == oldest
            self.refused.append(key)
        assert not self.waiting

    @invariant()
    def everybody_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "gate"):
            return
        assert self.gate.is_ready == (bool(self.waiting) and len(self.inside) < self.limit)
        assert self.gate.in_process == len(self.inside) <= self.limit
        assert self.gate.buffered == len(self.waiting) <= self.buffer_max
        assert self.gate.buffered_bytes == self.waiting_bytes() <= self.bytes_max
        assert sum(self.gate.refused.values()) == len(self.refused)
        placed = [*self.inside, *self.waiting, *self.refused, *self.left]
        assert sorted(placed) == list(range(self.offered))


TestGate = Gate.TestCase


def gate_of(
    limit: int = 1, buffer_max: int = 10, buffer_bytes_max: int = 10_000
) -> ConnectGate[str]:
    return ConnectGate(
        limit=limit,
        buffer_max=buffer_max,
        buffer_bytes_max=buffer_bytes_max,
        patience_s=PATIENCE_S,
    )


def test_beyond_the_places_connects_wait_and_beyond_the_buffer_they_are_refused() -> None:
    gate = gate_of(limit=1, buffer_max=1)
    verdicts = [gate.offer(name, 100, 0.0) for name in "abc"]
    assert verdicts == [Verdict.ADMIT, Verdict.DELAY, Verdict.REJECT]
    assert gate.refused == {Reason.GATE_BUFFER_FULL: 1}


def test_a_buffer_full_of_bytes_refuses_although_entries_are_free() -> None:
    gate = gate_of(limit=1, buffer_bytes_max=150)
    assert gate.offer("a", 100, 0.0) is Verdict.ADMIT
    assert gate.offer("b", 100, 0.0) is Verdict.DELAY
    assert gate.offer("c", 100, 0.0) is Verdict.REJECT
    assert gate.offer("d", 50, 0.0) is Verdict.DELAY
    assert gate.refused == {Reason.GATE_BUFFER_BYTES: 1}


def test_who_waits_goes_before_who_comes_even_if_a_place_is_free() -> None:
    gate = gate_of(limit=1)
    gate.offer("a", 100, 0.0)
    gate.offer("b", 100, 0.0)
    gate.settle("a")
    assert gate.offer("c", 100, 0.0) is Verdict.DELAY
    assert gate.admit_next(0.0) == ("b", Verdict.ADMIT)
    assert gate.admit_next(0.0) is None


def test_a_connect_that_waited_too_long_is_refused_although_no_place_is_free() -> None:
    gate = gate_of(limit=1)
    gate.offer("a", 100, 0.0)
    gate.offer("b", 100, 0.0)
    assert gate.admit_next(PATIENCE_S - 0.1) is None
    assert gate.admit_next(PATIENCE_S) == ("b", Verdict.REJECT)
    assert gate.refused == {Reason.GATE_DEADLINE: 1}


def test_a_client_that_leaves_the_buffer_frees_its_bytes_and_is_never_admitted() -> None:
    gate = gate_of(limit=1)
    for name in "abc":
        gate.offer(name, 100, 0.0)
    gate.settle("b")
    assert gate.buffered_bytes == 100
    gate.settle("a")
    assert gate.admit_next(0.0) == ("c", Verdict.ADMIT)


def test_without_a_buffer_the_gate_refuses_at_its_limit() -> None:
    gate = gate_of(limit=2, buffer_max=0)
    verdicts = [gate.offer(name, 100, 0.0) for name in "abc"]
    assert verdicts == [Verdict.ADMIT, Verdict.ADMIT, Verdict.REJECT]

"""The guard of a host, by its five calls, whatever happens in whatever order:

1. Every packet and every CONNECT hears exactly one verdict, refusals with their cause: of `start`
   and `offer`, or, if it had to wait, of its callback.
2. No more is in process than the window in force allowed when it was admitted; queues are bounded.
3. Packets of a client are admitted in the order in which they were offered.
4. When all is done, and nobody waits, every count is zero.
"""

import itertools
import threading
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker_adapter import Guard, GuardedClient, GuardedPacket
from broker_adapter.host_guard import Kind
from flowguard.config import MIB, FlowSettings
from flowguard.flow import Admission, Pause, Reason, Verdict

PICK = st.integers(0, 1_000)
WAITING_MAX = 4
PATIENCE_S = 1.0
TICK_S = 0.1


class ToyHost(RuleBasedStateMachine):
    """A host that records its verdicts."""

    @initialize(
        window_max=st.sampled_from([1, 3, 100]),
        unfinished_max=st.sampled_from([1, 5, 4_096]),
        window_floor=st.sampled_from([0.05, 1.0]),
        policy=st.sampled_from(["flowguard", "flowguard", "rate-limit-v1", "static-1"]),
    )
    def host_starts(
        self, window_max: int, unfinished_max: int, window_floor: float, policy: str
    ) -> None:
        settings = FlowSettings.model_validate(
            {
                "policy": policy,
                "window_max": window_max,
                "window_floor": min(window_floor, window_max),
                "unfinished_max": unfinished_max,
                "unfinished_bytes_max": MIB,
                "connects_in_process_max": 2,
                "connect_buffer_max": 2,
                "connect_patience_s": PATIENCE_S,
            }
        )
        self.rejections: list[tuple[Kind, Admission]] = []
        self.guard = Guard(
            settings,
            waiting_max=WAITING_MAX,
            draw=lambda: 0.5,
            on_reject=lambda client, kind, admission: self.rejections.append((kind, admission)),
        )
        self.window_max = window_max
        self.is_rated = policy == "rate-limit-v1"
        self.unfinished_max = unfinished_max
        self.now_s = 1_000.0
        self.clients: list[GuardedClient] = []
        self.verdicts: dict[GuardedClient, list[Admission]] = {}
        self.offered: dict[GuardedClient, list[GuardedPacket]] = {}
        self.told: list[GuardedPacket] = []
        self.working: list[GuardedPacket] = []

    # --- the five calls ----------------------------------------------------------------------

    @rule(client_id=st.sampled_from(["", "", "a", "b"]), tenant=st.sampled_from(["x", "y"]))
    def a_connect_is_offered(self, client_id: str, tenant: str) -> None:
        client = self.guard.client(client_id, tenant)
        self.clients.append(client)
        heard = self.verdicts[client] = []
        self.offered[client] = []
        admission = self.guard.offer(client, self.now_s, size_bytes=100, decided=heard.append)
        if admission.verdict is not Verdict.DELAY:
            heard.append(admission)

    @rule(pick=PICK)
    def a_connect_is_answered(self, pick: int) -> None:
        if self.clients:
            client = self.clients[pick % len(self.clients)]
            if [a.verdict for a in self.verdicts[client]] == [Verdict.ADMIT]:
                self.guard.answered(client, self.now_s)

    @rule(pick=PICK, costs=st.lists(st.sampled_from([1, 1, 2, 300]), min_size=1, max_size=8))
    def packets_start(self, pick: int, costs: list[int]) -> None:
        if not self.clients:
            return
        client = self.clients[pick % len(self.clients)]
        for cost in costs:
            packet = self.guard.start(
                client, self.now_s, cost=cost, size_bytes=cost * 100, told=self._hear
            )
            self.offered[client].append(packet)
            assert packet not in self.told
            if packet.admission.verdict is Verdict.ADMIT:
                assert packet.pause is None
                self.working.append(packet)
            elif packet.admission.verdict is Verdict.DELAY:
                assert packet.pause in (Pause.WINDOW, Pause.TURN, Pause.CREDITS)

    def _hear(self, packet: GuardedPacket) -> None:
        assert packet not in self.told
        assert packet not in self.working
        self.told.append(packet)
        if packet.admission.verdict is Verdict.ADMIT:
            self.working.append(packet)

    @rule(pick=PICK)
    def a_packet_is_done(self, pick: int) -> None:
        if self.working:
            self.guard.done(self.working.pop(pick % len(self.working)), self.now_s)

    @rule(pick=PICK, which=PICK)
    def a_packet_is_given_up_wherever_it_is(self, pick: int, which: int) -> None:
        if self.clients:
            packets = self.offered[self.clients[pick % len(self.clients)]]
            if packets:
                packet = packets.pop(which % len(packets))
                if packet in self.working:
                    self.working.remove(packet)
                self.guard.done(packet, self.now_s)

    @rule(pick=PICK)
    def a_client_is_gone(self, pick: int) -> None:
        if self.clients:
            client = self.clients.pop(pick % len(self.clients))
            self.guard.gone(client, self.now_s)
            assert not client.waiting
            assert len(self.verdicts[client]) == 1
            for packet in self.offered.pop(client):
                assert packet.admission.verdict is not Verdict.DELAY

    @rule(after_s=st.sampled_from([0.0, TICK_S, 0.6 * PATIENCE_S, 3 * PATIENCE_S]))
    def time_passes(self, after_s: float) -> None:
        self.now_s += after_s
        self.guard.tick(self.now_s)

    # --- what has to hold --------------------------------------------------------------------

    @invariant()
    def counts_are_those_of_what_is_there(self) -> None:
        if not hasattr(self, "guard"):
            return
        guard = self.guard
        assert guard.in_process == sum(packet.cost for packet in self.working)
        assert guard.in_process_bytes == sum(packet.size_bytes for packet in self.working)
        waiting = [packet for client in self.clients for packet in client.waiting]
        assert guard.waiting_count == len(waiting)
        assert all(packet.admission.verdict is Verdict.DELAY for packet in waiting)
        for client in self.clients:
            assert len(client.waiting) <= WAITING_MAX
            mine = [packet.cost for packet in self.working if packet.client is client]
            # Under a rate a window is what a tick brings, not what is in process.
            assert self.is_rated or sum(mine) <= self.window_max or len(mine) == 1

    @invariant()
    def who_waits_waits_for_something(self) -> None:
        if hasattr(self, "guard"):
            for client in self.clients:
                assert not client.waiting or self.working or self.guard.grant.credits is not None

    @invariant()
    def packets_keep_their_order(self) -> None:
        if hasattr(self, "guard"):
            for packets in self.offered.values():
                # Rejected ones aside, a waiting client arrived after all that are admitted.
                states = [p.admission.verdict for p in packets]
                waits = [i for i, state in enumerate(states) if state is Verdict.DELAY]
                admits = [i for i, state in enumerate(states) if state is Verdict.ADMIT]
                assert not waits or not admits or max(admits) < min(waits)

    @invariant()
    def each_rejection_is_reported_once(self) -> None:
        if hasattr(self, "guard"):
            packets = [each.reason for kind, each in self.rejections if kind == "packet"]
            assert Counter(packets) == self.guard.refused
            connects = [each for kind, each in self.rejections if kind == "connect"]
            heard = [each for verdicts in self.verdicts.values() for each in verdicts]
            rejected = [each for each in heard if each.verdict is Verdict.REJECT]
            assert Counter(map(id, connects)) == Counter(map(id, rejected))

    @invariant()
    def refusals_name_their_cause(self) -> None:
        if hasattr(self, "guard"):
            refused = [p for p in self.told if p.admission.verdict is Verdict.REJECT]
            refused += [
                p
                for packets in self.offered.values()
                for p in packets
                if p.admission.verdict is Verdict.REJECT
            ]
            for packet in refused:
                assert packet.admission.reason in (
                    Reason.QUEUE_MESSAGES,
                    Reason.NODE_QUEUE_BYTES,
                    Reason.GATE_DEADLINE,
                )
                assert packet.admission.retry_after_s >= 0.5
            for verdicts in self.verdicts.values():
                assert len(verdicts) <= 1

    def teardown(self) -> None:
        """All work ends, whatever order it began in: nothing is held."""
        if not hasattr(self, "guard"):
            return
        for _ in range(300):
            while self.working:
                self.guard.done(self.working.pop(), self.now_s)
            self.now_s += TICK_S
            self.guard.tick(self.now_s)
            for client, verdicts in self.verdicts.items():
                if verdicts and verdicts[0].verdict is Verdict.ADMIT:
                    self.guard.answered(client, self.now_s)
        assert all(len(verdicts) == 1 for c, verdicts in self.verdicts.items() if c in self.clients)
        guard = self.guard
        assert (guard.in_process, guard.in_process_bytes, guard.waiting_count) == (0, 0, 0)
        assert (guard.connects_in_process, guard.connects_waiting) == (0, 0)


TestToyHost = ToyHost.TestCase


def test_window_is_reported_when_a_tick_changes_it() -> None:
    windows: list[float] = []
    guard = Guard(on_window=lambda grant: windows.append(grant.window))
    for now_s in (0.0, 0.1, 0.2):
        guard.tick(now_s)
    assert windows == []
    guard.tick(2.0)
    assert windows == [guard.grant.window]
    assert windows[0] < 100


def test_callback_that_fails_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Verdict] = []
    counts = itertools.count(1)

    def fail(*_: object) -> None:
        raise RuntimeError(f"no {next(counts)}")

    guard = Guard(FlowSettings(window_max=1), waiting_max=1, on_reject=fail)
    client = guard.client()
    for now_s in (0.0, 1.0, 9.9, 10.0):
        for _ in range(3):
            packet = guard.start(
                client, now_s, told=lambda each: heard.append(each.admission.verdict)
            )
            heard.append(packet.admission.verdict)
    guard.tick(10.0)
    assert heard.count(Verdict.REJECT) == 11
    assert (guard.in_process, guard.waiting_count) == (1, 0)
    late = Guard(on_window=fail)
    for now_s in (0.0, 2.0):
        late.tick(now_s)
    assert late.grant.window < 100
    errors = [record.getMessage() for record in caplog.records]
    assert errors == [
        "error in on_reject, and 0 unlogged before it",
        "error in on_reject, and 6 unlogged before it",
        "error in on_window, and 0 unlogged before it",
    ]
    assert all("RuntimeError: no" in record.exc_text for record in caplog.records)


def test_calls_may_come_from_several_threads() -> None:
    guard = Guard(FlowSettings(window_max=3), waiting_max=10)
    clients = [guard.client() for _ in range(4)]
    started, refused, failures = [], [], []

    def told(packet: GuardedPacket) -> None:
        (started if packet.admission.verdict is Verdict.ADMIT else refused).append(packet)

    def work(number: int) -> None:
        try:
            for step in range(500):
                client = clients[(number + step) % len(clients)]
                packet = guard.start(client, 1.0, told=told)
                assert guard.in_process <= 3 * len(clients)
                if step % 50 == 0:
                    guard.tick(1.0)
                guard.done(packet, 1.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (guard.in_process, guard.waiting_count) == (0, 0)


def test_a_window_shrinks_when_work_takes_longer_than_its_objective_and_says_why() -> None:
    guard = Guard(FlowSettings(store_objective_s=0.05), draw=lambda: 0.5)
    client, now_s = guard.client(), 0.0
    packets = [guard.start(client, now_s) for _ in range(100)]
    assert {packet.admission.verdict for packet in packets} == {Verdict.ADMIT}
    for _ in range(10):
        now_s += TICK_S
        guard.tick(now_s)
    assert guard.grant.window < 20
    assert "store latency at" in guard.grant.why
    late = guard.start(client, now_s)
    assert (late.admission.verdict, late.pause) == (Verdict.DELAY, Pause.WINDOW)


@pytest.mark.parametrize("flooding", [False, True])
def test_windows_shrink_only_if_clients_with_more_than_a_packet_hold_the_work(
    flooding: bool,
) -> None:
    """Each packet takes four times the objective, whatever the windows are."""
    guard, now_s = Guard(FlowSettings(store_objective_s=0.05)), 0.0
    clients = [guard.client() for _ in range(1 if flooding else 20)]
    each = 20 // len(clients)
    for _ in range(30):
        packets = [guard.start(client, now_s) for client in clients for _ in range(each)]
        for _ in range(2):
            now_s += TICK_S
            guard.tick(now_s)
        for packet in packets:
            guard.done(packet, now_s)
    assert guard.grant.pressure.value > 2.0
    assert guard.grant.leverage == pytest.approx(1.0 if flooding else 0.0, abs=0.1)
    assert (guard.grant.window == 100) is not flooding


def test_a_loop_that_is_away_is_pressure() -> None:
    guard = Guard()
    for now_s in (0.0, 0.1, 2.0, 2.1):
        guard.tick(now_s)
    assert guard.grant.pressure.cause == "loop"
    assert guard.grant.window < 100


def test_who_waits_too_long_is_refused_with_a_time_to_come_back() -> None:
    guard = Guard(FlowSettings(window_max=1), patience_s=1.0, draw=lambda: 0.5)
    client, heard = guard.client(), []
    first = guard.start(client, 0.0)
    second = guard.start(client, 0.0, told=heard.append)
    guard.tick(0.9)
    assert not heard
    guard.tick(1.0)
    assert heard == [second]
    assert second.admission.reason is Reason.GATE_DEADLINE
    assert second.admission.retry_after_s > 0
    assert guard.refused == {Reason.GATE_DEADLINE: 1}
    guard.done(first, 1.0)
    assert guard.start(client, 1.0).admission.verdict is Verdict.ADMIT


def test_sizes_that_wait_are_bounded_too() -> None:
    guard = Guard(FlowSettings(window_max=1, unfinished_bytes_max=MIB))
    client = guard.client()
    guard.start(client, 0.0)
    assert guard.start(client, 0.0, size_bytes=MIB).admission.verdict is Verdict.DELAY
    refused = guard.start(client, 0.0, size_bytes=1)
    assert refused.admission.reason is Reason.NODE_QUEUE_BYTES
    assert refused.pause is None, "it does not wait"


def test_floods_that_fill_all_that_may_wait_leave_room_to_who_has_nothing_waiting() -> None:
    guard = Guard(FlowSettings(unfinished_max=100, unfinished_bytes_max=MIB), waiting_max=10_000)
    floods = [guard.client() for _ in range(3)]
    for _ in range(1_000):
        for flood in floods:
            guard.start(flood, 0.0)
    assert guard.refused == {Reason.NODE_QUEUE_BYTES: 3_000 - 100 - guard.waiting_count}
    quiet = guard.client()
    for _ in range(5):
        assert guard.start(quiet, 0.0).admission.verdict is Verdict.DELAY


def test_a_flood_in_its_queue_leaves_queues_to_others_however_few_may_be_in_process() -> None:
    guard = Guard(FlowSettings(unfinished_max=100))
    flood, quiet = guard.client(), guard.client()
    while guard.start(flood, 0.0).admission.verdict is not Verdict.REJECT:
        pass
    assert guard.waiting_count == 100
    assert guard.start(quiet, 0.0).admission.verdict is Verdict.DELAY


def test_a_client_that_is_gone_hears_what_becomes_of_its_connect() -> None:
    guard = Guard(FlowSettings(connects_in_process_max=1))
    first, second, third = guard.client(), guard.client(), guard.client()
    heard: list[Admission] = []
    assert guard.offer(first, 0.0).verdict is Verdict.ADMIT
    for client in (second, third):
        assert guard.offer(client, 0.0, decided=heard.append).verdict is Verdict.DELAY
    guard.gone(second, 0.0)
    guard.answered(third, 0.0)
    assert [(one.verdict, one.reason) for one in heard] == [(Verdict.DROP, None)] * 2
    guard.answered(first, 0.0)
    guard.gone(third, 0.0)
    assert len(heard) == 2
    assert (guard.connects_in_process, guard.connects_waiting) == (0, 0)


def test_a_connect_that_is_offered_again_is_an_error_and_the_first_goes_on() -> None:
    guard = Guard(FlowSettings(connects_in_process_max=1))
    inside, waiting = guard.client(), guard.client()
    heard: list[Admission] = []
    guard.offer(inside, 0.0)
    guard.offer(waiting, 0.0, decided=heard.append)
    for client in (inside, waiting):
        with pytest.raises(ValueError, match="a CONNECT that is not over"):
            guard.offer(client, 0.0)
    guard.answered(inside, 0.0)
    assert [one.verdict for one in heard] == [Verdict.ADMIT]


@pytest.mark.parametrize("by", ["its host", "patience"])
def test_a_heavy_packet_that_is_given_up_keeps_no_place(by: str) -> None:
    guard = Guard(FlowSettings(window_max=10, store_objective_s=60.0), patience_s=1.0)
    client = guard.client()
    for _ in range(5):
        guard.start(client, 0.0)
    heavy = guard.start(client, 0.0, cost=8)
    behind = guard.start(client, 0.5)
    if by == "patience":
        guard.tick(1.0)
    else:
        guard.done(heavy, 1.0)
    assert behind.admission.verdict is Verdict.ADMIT
    assert guard.start(client, 1.0).admission.verdict is Verdict.ADMIT


def test_packets_that_wait_go_on_when_the_window_grows() -> None:
    guard = Guard(FlowSettings(window_max=10, store_objective_s=60.0), patience_s=1e9)
    client, now_s = guard.client(), 0.0
    for _ in range(30):
        now_s += 1.0
        guard.tick(now_s)
    assert guard.grant.window == 1, "ticks came late"
    guard.start(client, now_s)
    waiting = [guard.start(client, now_s) for _ in range(4)]
    assert {packet.pause for packet in waiting} == {Pause.WINDOW}
    while guard.grant.window < 5:
        now_s += TICK_S
        guard.tick(now_s)
    assert guard.in_process == 5


def test_a_packet_that_starts_at_once_is_told_to_nobody_else() -> None:
    guard = Guard(FlowSettings(unfinished_max=100))
    client, told = guard.client(), list[GuardedPacket]()
    packets = [guard.start(client, 0.0) for _ in range(100)]
    for packet in packets:
        guard.done(packet, 0.1)
    packet = guard.start(client, 0.2, told=told.append)  # By a turn: the budget was spent.
    assert (packet.admission.verdict, packet.pause, told) == (Verdict.ADMIT, None, [])


def test_wrong_arguments_are_errors_and_change_nothing() -> None:
    guard = Guard(FlowSettings(window_max=1))
    client = guard.client()
    for cost, size_bytes in ((0, 0), (-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="cost: 1 or more; size_bytes: 0 or more; not"):
            guard.start(client, 0.0, cost=cost, size_bytes=size_bytes)
    with pytest.raises(TypeError):
        guard.start(client, 0.0, size_bytes=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size_bytes: 0 or more, not -1"):
        guard.offer(client, 0.0, size_bytes=-1)
    assert (guard.in_process, guard.waiting_count, guard.connects_in_process) == (0, 0, 0)
    assert guard.start(client, 0.0).admission.verdict is Verdict.ADMIT


def test_after_a_rest_the_first_tick_is_not_late() -> None:
    guard = Guard()
    guard.tick(0.0)
    guard.rest()
    for tick in range(3):
        guard.tick(100.0 + tick * TICK_S)
    assert guard.grant.window == 100

"""The guard of a host, by its five calls, whatever happens in whatever order:

1. Every packet and every CONNECT hears exactly one verdict, refusals with their cause.
2. No more is in process than the window in force allowed when it was admitted; queues are bounded.
3. Packets of a client are admitted in the order in which they were offered.
4. When all is done, and nobody waits, every count is zero.
"""

import threading

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker_adapter import Guard, GuardedClient, GuardedPacket
from flowguard.config import MIB, FlowSettings
from flowguard.flow import Admission, Pause, Reason, Verdict

PICK = st.integers(0, 1_000)
WAITING_MAX = 4
PATIENCE_S = 1.0
TICK_S = 0.1


class ToyHost(RuleBasedStateMachine):
    """A host that remembers what it was told."""

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
        self.guard = Guard(settings, waiting_max=WAITING_MAX, draw=lambda: 0.5)
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
            if packet.admission.verdict is Verdict.ADMIT and packet not in self.told:
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
                # Refused ones aside, whoever waits came after all that are admitted.
                states = [p.admission.verdict for p in packets]
                waits = [i for i, state in enumerate(states) if state is Verdict.DELAY]
                admits = [i for i, state in enumerate(states) if state is Verdict.ADMIT]
                assert not waits or not admits or max(admits) < min(waits)

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
                assert packet.admission.reason in (Reason.QUEUE_MESSAGES, Reason.GATE_DEADLINE)
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
    assert "store at" in guard.grant.why
    late = guard.start(client, now_s)
    assert (late.admission.verdict, late.pause) == (Verdict.DELAY, Pause.WINDOW)


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
    assert refused.admission.reason is Reason.QUEUE_BYTES

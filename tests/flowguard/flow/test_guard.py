"""The guard behind a toy broker, by its five calls alone, under every policy:

1. Never more in process than was admitted, nor admitted than limits and budgets allow.
2. A slot is given back exactly once, for any order of done and gone.
3. Every CONNECT offered gets exactly one verdict with its cause; none after it has ended.
4. A waiting client goes on once there is capacity: no packet and no CONNECT is forgotten.
5. At rest nothing is held, and no ended client is remembered.
"""

import gc
from typing import get_args
from weakref import ref

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.config import MIB, FlowSettings, PolicyName
from flowguard.flow import Admission, Arrival, Reason, Verdict
from flowguard.flow.gate.concurrency import LIMIT_START
from flowguard.flow.guard import DECISIONS_MAX, Guard
from flowguard.flow.load.signals import TICK_S
from tests.flowguard.flow.toy_broker import ToyBroker, ToyClient

PATIENCE_S = 1.0
SIZE_MAX = 500_000
PICK = st.integers(0, 1_000)
COSTS = st.sampled_from([1, 1, 1, 2, 7, 300])
SIZES = st.sampled_from([0, 16, 1_000, SIZE_MAX])
CLIENT_IDS = st.sampled_from(["", "", "", "a", "b"])


class Guarding(RuleBasedStateMachine):
    """All events of a host, in any order."""

    @initialize(
        policy=st.sampled_from(["flowguard"] * 6 + list(get_args(PolicyName))),
        shadow=st.sampled_from([None, None, "flowguard", "static-10"]),
        unfinished_max=st.sampled_from([1, 5, 40]),
        unfinished_bytes_max=st.sampled_from([MIB, 64 * MIB]),
        window_floor=st.sampled_from([0.05, 1.0]),
        connects_max=st.sampled_from([1, 3]),
        buffer_max=st.integers(0, 4),
        journal_max=st.sampled_from([3, 20, 1_000]),
    )
    def broker_starts(self, policy: PolicyName, shadow: PolicyName | None, **limits: int) -> None:
        self.settings = FlowSettings(
            policy=policy,
            shadow_policy=shadow,
            unfinished_max=limits["unfinished_max"],
            unfinished_bytes_max=limits["unfinished_bytes_max"],
            window_floor=limits["window_floor"],
            connects_in_process_max=limits["connects_max"],
            connect_buffer_max=limits["buffer_max"],
            connect_patience_s=PATIENCE_S,
        )
        self.broker = ToyBroker(self.settings, limits["journal_max"])
        self.guard = self.broker.guard
        self.clients: list[ToyClient] = []

    # --- the five calls ----------------------------------------------------------------------

    @rule(client_id=CLIENT_IDS, tenant=st.sampled_from(["x", "y"]), size_bytes=st.integers(80, 900))
    def a_connect_is_offered(self, client_id: str, tenant: str, size_bytes: int) -> None:
        client = ToyClient(self.broker, client_id, tenant, size_bytes)
        self.clients.append(client)
        free = self.guard.gate.in_process < self.guard.gate.limit
        admission = self.broker.connect(client)
        assert free or admission.verdict is not Verdict.ADMIT
        assert admission.verdict is not Verdict.DROP

    @rule(pick=PICK)
    def a_connect_is_answered(self, pick: int) -> None:
        if self.broker.serving:
            self.broker.answer(self.broker.serving[pick % len(self.broker.serving)])

    @rule(pick=PICK, packets=st.lists(st.tuples(COSTS, SIZES), min_size=1, max_size=12))
    def packets_start_as_far_as_there_is_room(
        self, pick: int, packets: list[tuple[int, int]]
    ) -> None:
        if self.broker.connected:
            self.broker.send(self.broker.connected[pick % len(self.broker.connected)], packets)

    @rule(picks=st.lists(PICK, min_size=1, max_size=8))
    def packets_are_done(self, picks: list[int]) -> None:
        for pick in picks:
            if self.broker.journal:
                self.broker.done(pick % len(self.broker.journal))

    @rule(pick=PICK)
    def a_client_is_gone(self, pick: int) -> None:
        here = [client for client in self.clients if not client.is_gone]
        if here:
            self.broker.leave(here[pick % len(here)])

    @rule(after_s=st.sampled_from([0.0, TICK_S, 0.6 * PATIENCE_S]), pressure=st.floats(0.0, 20.0))
    def time_passes(self, after_s: float, pressure: float) -> None:
        self.broker.tick(after_s, pressure)

    @rule()
    def a_slice_ends(self) -> None:
        self.broker.turn()

    # --- what must hold ----------------------------------------------------------------------

    @invariant()
    def what_is_in_process_was_admitted_and_is_counted_once(self) -> None:
        window, journal = self.guard.window, self.broker.journal
        for client in self.clients:
            if client.window is not None:
                own = [cost for owner, (cost, _) in journal if owner is client]
                assert client.window.in_process == sum(own)
                assert (client.window in window.busy) is bool(own)
                assert client.window.room() >= 0
        assert window.in_process == sum(cost for _, (cost, _) in journal)
        assert window.in_process_bytes == sum(size_bytes for _, (_, size_bytes) in journal)
        assert len(journal) + window.permits <= window.units_max
        assert window.in_process_bytes < window.bytes_max + SIZE_MAX
        granted = self.guard.grant.window
        assert 1 <= window.limit < max(1.0, granted) + 1.0  # 1.5 is one and two by turns.
        wanting = {owner for owner, _ in journal} | {c for c in self.clients if c.unread}
        assert window.active <= len(wanting)

    @invariant()
    def each_connect_has_one_verdict_with_its_cause(self) -> None:
        gate = self.guard.gate
        assert gate.in_process == len(self.broker.serving)
        assert gate.buffered <= len(self.broker.waiting)
        assert len(self.broker.waiting) == gate.buffered or gate.is_ready
        assert gate.buffered <= self.settings.connect_buffer_max
        refused: dict[Reason, int] = {}
        for client in self.clients:
            assert len(client.admissions) + (client in self.broker.waiting) <= 1
            assert client.admissions or client.is_gone or client in self.broker.waiting
            for admission in client.admissions:
                if admission.verdict is Verdict.ADMIT:
                    assert admission.reason is None
                    continue
                assert admission.reason is not None
                refused[admission.reason] = refused.get(admission.reason, 0) + 1
                superseded = admission.reason is Reason.GATE_SUPERSEDED
                assert (admission.verdict is Verdict.DROP) is superseded
                hinted = self.settings.policy == "flowguard" and not superseded
                assert (admission.retry_after_s > 0.0) or not hinted
        assert refused == gate.refused

    @invariant()
    def no_more_are_remembered_than_are_there(self) -> None:
        there = len(self.broker.connected)
        assert len(self.guard.pool) + len(self.guard.starved) <= 2 * there
        assert len(self.guard.decisions) <= DECISIONS_MAX

    def teardown(self) -> None:
        """All is done and calm: all go on, all leave, and nothing is left."""
        if not hasattr(self, "broker"):
            return
        broker = self.broker
        for _ in range(200):
            broker.tick(TICK_S)
            while broker.journal:
                broker.done(0)
            while broker.serving:
                broker.answer(broker.serving[0])
            broker.turn()
            while self.guard.has_work or broker.runnable:
                broker.turn()
        self.what_is_in_process_was_admitted_and_is_counted_once()
        self.each_connect_has_one_verdict_with_its_cause()
        assert not broker.waiting
        assert not any(client.unread for client in broker.connected)
        for client in self.clients:
            if not client.is_gone:
                broker.leave(client)
        broker.turn()
        window, gate = self.guard.window, self.guard.gate
        assert (window.in_process, window.in_process_bytes, window.permits) == (0, 0, 0)
        assert (window.active, len(window.busy), window.closed, window.shared) == (
            0,
            0,
            False,
            False,
        )
        assert (len(self.guard.pool), len(self.guard.starved)) == (0, 0)
        assert (gate.in_process, gate.buffered, gate.buffered_bytes) == (0, 0, 0)
        assert not self.guard.has_work


TestGuarding = Guarding.TestCase


# --- examples ------------------------------------------------------------------------------------


def broker_of(policy: PolicyName = "flowguard", **flow: int) -> ToyBroker:
    settings = FlowSettings(policy=policy, unfinished_bytes_max=MIB, **flow)
    return ToyBroker(settings, journal_max=1_000)


def client_of(broker: ToyBroker, client_id: str = "") -> ToyClient:
    return ToyClient(broker, client_id, tenant="")


def connected(broker: ToyBroker) -> ToyClient:
    client = client_of(broker)
    broker.connect(client)
    broker.answer(client)
    return client


def test_who_finds_no_place_waits_and_is_told_when_there_is_one() -> None:
    broker = broker_of(connects_in_process_max=1)
    first, second = client_of(broker), client_of(broker)
    broker.connect(first)
    assert broker.connect(second).verdict is Verdict.DELAY
    broker.answer(first)
    broker.turn()
    assert [admission.verdict for admission in second.admissions] == [Verdict.ADMIT]


@pytest.mark.parametrize(
    ("policy", "limits", "reason"),
    [
        ("flowguard", {"connect_buffer_max": 0}, Reason.GATE_BUFFER_FULL),
        ("flowguard", {"connect_buffer_bytes_max": 1}, Reason.GATE_BUFFER_BYTES),
        ("reject-at-limit", {}, Reason.GATE_LIMIT),
    ],
)
def test_who_is_refused_reads_why_and_when_to_come_back(
    policy: PolicyName, limits: dict[str, int], reason: Reason
) -> None:
    broker = broker_of(policy, connects_in_process_max=1, **limits)
    broker.connect(client_of(broker))
    refused = broker.connect(client_of(broker))
    assert (refused.verdict, refused.reason) == (Verdict.REJECT, reason)
    assert (refused.retry_after_s > 0.0) is (policy == "flowguard")


def test_a_refusal_is_booked_with_what_it_took() -> None:
    broker = broker_of(connects_in_process_max=1, connect_buffer_max=1)
    for _ in range(3):
        broker.connect(client_of(broker))
    gate = broker.guard.gate
    assert broker.guard.refused_count == 1
    assert gate.may_accept(broker.now_s)
    broker.guard.refused(1.0, broker.now_s)
    assert not gate.may_accept(broker.now_s + 3.0)
    assert gate.may_accept(broker.now_s + 3.5)


def test_a_loop_full_of_messages_refuses_less() -> None:
    """The loop spent its time on messages, apart from admitting and rejecting CONNECTs and
    handshakes."""
    shares = []
    for messages_s, handshakes_s in ((0.0, 0.0), (0.05, 0.0), (0.0, 0.05)):
        broker = broker_of(connects_in_process_max=1)
        for _ in range(2):
            broker.connect(client_of(broker))
        for _ in range(50):
            broker.guard.observer.worked(0.05 + messages_s + handshakes_s)
            broker.guard.observer.connecting(0.05)
            broker.guard.observer.shook_hands(handshakes_s)
            broker.tick(TICK_S)
        broker.guard.gate.spent(0.3, broker.now_s)
        waits_s = 0.0
        while not broker.guard.gate.may_accept(broker.now_s + waits_s):
            waits_s += 0.01
        shares.append(0.27 / waits_s)
    assert shares == pytest.approx([0.3, 0.15, 0.3], rel=0.05)


def test_a_client_that_asks_again_is_waited_for_once() -> None:
    broker = broker_of(connects_in_process_max=1)
    broker.connect(client_of(broker))
    first, again = client_of(broker, "c"), client_of(broker, "c")
    broker.connect(first)
    broker.connect(again)
    broker.turn()
    assert [(a.verdict, a.reason) for a in first.admissions] == [
        (Verdict.DROP, Reason.GATE_SUPERSEDED)
    ]
    assert again in broker.waiting


def test_a_full_host_starts_nothing_and_wakes_everybody_once_it_has_room() -> None:
    broker = broker_of()
    broker.journal_max = 2
    one, two = connected(broker), connected(broker)
    broker.send(one, [(1, 0)] * 5)
    broker.send(two, [(1, 0)])
    assert [owner for owner, _ in broker.journal] == [one, one]
    assert len(broker.guard.starved) == 2
    broker.turn()
    assert len(broker.journal) == 2
    broker.done(0)
    broker.turn()
    assert len(broker.journal) == 2
    assert len(broker.guard.starved) > 0


@pytest.mark.parametrize("done_first", [True, False])
def test_a_packet_gives_its_place_back_once_whether_or_not_its_client_is_gone(
    done_first: bool,
) -> None:
    broker = broker_of()
    client = connected(broker)
    broker.send(client, [(3, 1_000)])
    if done_first:
        broker.done(0)
        broker.leave(client)
    else:
        broker.leave(client)
        assert broker.guard.window.in_process == 3
        broker.done(0)
    window = broker.guard.window
    assert (window.in_process, window.in_process_bytes, window.active) == (0, 0, 0)


def test_who_is_gone_takes_its_turn_with_it() -> None:
    broker = broker_of(unfinished_max=2)
    one, two = connected(broker), connected(broker)
    broker.send(one, [(1, 0)] * 4)
    broker.send(two, [(1, 0)] * 4)
    while broker.journal:
        broker.done(0)
    broker.guard.turn(broker.now_s)  # Both have permits now, and neither has used them.
    broker.leave(one)
    assert broker.guard.window.permits == 1
    for _ in range(8):
        broker.turn()
        while broker.journal:
            broker.done(0)
    assert not two.unread
    assert broker.guard.window.permits == 0


@pytest.mark.parametrize(
    ("policy", "limits", "journal_max"),
    [
        ("flowguard", {}, 1),
        ("flowguard", {"unfinished_max": 1}, 1_000),
        ("rate-limit-v1", {}, 1_000),
    ],
    ids=["its host was full", "others had their turn", "its rate was spent"],
)
def test_who_is_gone_is_not_run_again(
    policy: PolicyName, limits: dict[str, int], journal_max: int
) -> None:
    broker = broker_of(policy, **limits)
    broker.journal_max = journal_max
    client = connected(broker)
    broker.tick(TICK_S)
    broker.send(client, [(1, 0)] * 200)
    while broker.journal and policy != "flowguard":
        broker.done(0)
    assert client.unread
    broker.runnable.clear()
    broker.leave(client)
    while broker.journal:
        broker.done(0)
    broker.turn()  # The toy asserts that no ended client is scheduled.
    broker.tick(TICK_S)
    broker.turn()
    assert not broker.guard.has_work


def test_who_has_spent_its_rate_goes_on_with_the_next_tick() -> None:
    broker = broker_of("rate-limit-v1")
    client = connected(broker)
    broker.tick(TICK_S)
    broker.send(client, [(1, 0)] * 150)
    assert len(client.unread) == 50
    broker.turn()
    assert len(client.unread) == 50
    broker.tick(TICK_S)
    broker.turn()
    assert not client.unread


def test_nobody_is_given_a_turn_while_the_budget_for_bytes_is_spent() -> None:
    broker = broker_of()
    one, two = connected(broker), connected(broker)
    broker.send(one, [(1, MIB)] * 2)
    broker.send(two, [(1, 0)])
    assert len(broker.journal) == 1
    broker.guard.turn(broker.now_s)
    assert (broker.runnable, broker.guard.window.permits) == ([], 0)
    broker.done(0)
    broker.turn()
    assert broker.journal
    assert broker.guard.window.in_process_bytes <= MIB


@pytest.mark.parametrize("shadow", [None, "static-10"])
def test_the_guard_forgets_whoever_is_gone(shadow: PolicyName | None) -> None:
    settings = FlowSettings(
        connects_in_process_max=2,
        connect_buffer_max=2,
        unfinished_max=2,
        unfinished_bytes_max=MIB,
        shadow_policy=shadow,
    )
    broker = ToyBroker(settings, journal_max=3)
    crowd = [client_of(broker, str(number)) for number in range(5)]
    for client in crowd:
        broker.connect(client)
    broker.answer(crowd[0])
    broker.answer(crowd[1])
    for client in crowd[:2]:
        broker.send(client, [(1, 0)] * 5)
    broker.turn()
    for client in crowd:
        broker.leave(client)
    while broker.journal:
        broker.done(0)
    broker.turn()
    broker.tick(TICK_S)
    known = [ref(client) for client in crowd]
    del client, crowd
    gc.collect()
    assert [weak() for weak in known] == [None] * 5


def test_connects_that_wait_take_turns_with_all_other_work_by_time() -> None:
    served: list[ToyClient] = []

    def serve(client: ToyClient, admission: Admission, now_s: float) -> None:
        served.append(client)
        guard.observer.connecting(0.004)
        guard.answered(client, now_s)

    settings = FlowSettings(unfinished_bytes_max=MIB)
    guard: Guard[ToyClient] = Guard(settings, 64 * MIB, serve, draw=lambda: 0.5)
    broker = ToyBroker(settings, 20)
    clients = [ToyClient(broker, "", "") for _ in range(3 * LIMIT_START)]
    for client in clients:
        guard.offer(client, Arrival("", 100), 1.0)
    for client in clients[:LIMIT_START]:
        guard.answered(client, 1.0)
    guard.turn(2.0)
    assert len(served) == 13  # 50 ms: other work had the loop for a long time.
    guard.turn(2.052)
    assert len(served) == 14  # There was no other work, so only one follows.
    guard.turn(2.056 + 0.019)
    assert len(served) == 18  # 19 ms of other work, less what the last CONNECT overdrew.

"""Each invariant finds a world that was broken for it, and nothing in one that was not."""

from typing import Any

import pytest

from flowguard.config import MIB, FlowSettings, PolicyName
from flowguard.flow import AdmissionWindow, Arrival, Verdict
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.gate.refusals import RefusalBudget
from flowguard.flow.gate.waiting import WaitingRoom
from flowguard.flow.guard import Guard
from flowguard.flow.policies import POLICIES
from flowguard.flow.verdict import Reason
from simulations.crowd.connection import CONNECTED, Connection
from simulations.invariants import (
    CONSERVATION,
    IDLE,
    KEEP_ALIVE,
    ONE_OUTCOME,
    REFUSAL_BUDGET,
    UNFINISHED_BYTES,
    WINDOW,
    Invariants,
)
from simulations.process.broker import Broker
from simulations.process.packets import Packets
from simulations.scenario import (
    Fault,
    NetworkPlan,
    NodePlan,
    PopulationPlan,
    PublishPlan,
    RetryPlan,
    Scenario,
)
from simulations.world import World

CROWD = Scenario(
    seed=7,
    nodes=3,
    duration_s=8.0,
    node=NodePlan(connect_s=0.02, listen_backlog=64, noise=0.1),
    network=NetworkPlan(replicas=2),
    populations={
        "crowd": PopulationPlan(
            clients=600,
            node="random",
            timeout_s=2.0,
            keep_alive_s=1.0,
            retry=RetryPlan(kind="fixed", first_s=0.3),
        )
    },
    faults=(Fault(kind="node_down", node=1, at_s=2.0, until_s=4.0),),
)
"""More than its nodes can connect in time, and one of them dies."""
FLOOD = Scenario(
    seed=7,
    duration_s=2.0,
    node=NodePlan(memory_max_bytes=512 * MIB),
    flow=FlowSettings(unfinished_bytes_max=2 * MIB),
    populations={
        "readers": PopulationPlan(clients=10, subscribes=True, keep_alive_s=1.0),
        "writers": PopulationPlan(
            clients=60,
            start_over_s=0.1,
            keep_alive_s=1.0,
            publish=PublishPlan(outstanding=100, payload_bytes=100_000, to="readers", v5=False),
        ),
    },
)
"""More bytes than the node may have in process: clients take turns."""
STORM = CROWD.model_copy(
    update={
        "duration_s": 4.0,
        "node": NodePlan(connect_s=0.02, accept_s=0.002),
        "flow": FlowSettings(connect_buffer_max=20),
        "faults": (),
    }
)
"""Accepting is dear, and there is much of it."""
CALM = Scenario(
    seed=7,
    duration_s=4.0,
    populations={
        "few": PopulationPlan(
            clients=10, keep_alive_s=1.0, publish=PublishPlan(rate_per_s=5.0, payload_bytes=100)
        )
    },
)


def run(scenario: Scenario, policy: PolicyName = "flowguard") -> World:
    world = World(scenario, policy)
    Invariants(world)
    world.run()
    return world


def assert_violates(invariant: str, scenario: Scenario, policy: PolicyName = "flowguard") -> None:
    world = run(scenario, policy)
    assert world.violation is not None
    assert world.violation.invariant == invariant
    assert world.violation.seed == 7
    assert world.ended_by == "violation"
    assert world.ended_s is not None
    assert world.ended_s <= scenario.duration_s


@pytest.mark.parametrize(
    "scenario", [CROWD, FLOOD, STORM, CALM], ids=["crowd", "flood", "storm", "calm"]
)
@pytest.mark.parametrize("policy", POLICIES)
def test_whoever_decides_a_world_that_is_whole_violates_nothing(
    policy: PolicyName, scenario: Scenario
) -> None:
    world = run(scenario, policy)
    assert world.violation is None, str(world.violation)
    assert world.ended_s == scenario.duration_s


def test_looking_changes_nothing() -> None:
    traces = []
    for looks in (False, True):
        world = World(CROWD, "flowguard", traced=True)
        if looks:
            Invariants(world)
        world.run()
        traces.append((world.engine.trace, world.engine.events_count))
    assert traces[0] == traces[1]


def test_a_violation_names_the_seed_that_shows_it_and_showing_it_again_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RefusalBudget, "allows", lambda self, now_s: True)
    violations = [run(STORM).violation for _ in range(2)]
    assert violations[0] is not None
    assert violations[0] == violations[1]
    assert "invariant 16 refusal budget violated at node" in str(violations[0])
    assert str(violations[0]).endswith("(policy flowguard, seed 7)")


# --- 1, 2, 3: windows ----------------------------------------------------------------------------


def test_1_a_client_with_a_packet_more_than_its_window_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room, admit = AdmissionWindow.room, AdmissionWindow.admit

    def one_more(self: AdmissionWindow, cost: int = 1, size_bytes: int = 0) -> None:
        """As if the limit were one higher than it is."""
        node = self._node
        node.limit += 1
        admit(self, cost, size_bytes)
        node.limit -= 1

    def room_for_one_more(self: AdmissionWindow) -> int:
        return room(self) + (self.in_process == self._node.limit)

    monkeypatch.setattr(AdmissionWindow, "admit", one_more)
    monkeypatch.setattr(AdmissionWindow, "room", room_for_one_more)
    plan = PublishPlan(outstanding=200, v5=False)
    population, narrow = PopulationPlan(clients=1, publish=plan), FlowSettings(window_max=10)
    assert_violates(WINDOW, Scenario(seed=7, flow=narrow, populations={"w": population}))


def test_1_a_window_that_is_wider_than_granted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = Guard.tick

    def lies(self: Guard[Connection], now_s: float) -> None:
        tick(self, now_s)
        self.window.resize(2 * self.window.limit)

    monkeypatch.setattr(Guard, "tick", lies)
    assert_violates(WINDOW, FLOOD)


def test_2_a_window_that_forgets_what_is_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = AdmissionWindow.settle

    def forgets_bytes(self: AdmissionWindow, cost: int = 1, size_bytes: int = 0) -> None:
        settle(self, cost, size_bytes // 2)

    monkeypatch.setattr(AdmissionWindow, "settle", forgets_bytes)
    assert_violates(CONSERVATION, CALM)


def test_2_a_gate_that_keeps_the_place_of_who_is_gone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle = ConnectGate.settle

    def forgets_the_dead(self: ConnectGate[Connection], key: Connection, now_s: float) -> None:
        if not key.ended_by_peer:
            settle(self, key, now_s)

    monkeypatch.setattr(ConnectGate, "settle", forgets_the_dead)
    world = run(CROWD)
    assert world.violation is not None
    assert world.violation.invariant in (CONSERVATION, ONE_OUTCOME)


def test_2_packets_that_wait_and_are_not_counted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Packets.add

    def miscounts(self: Packets, connection: Connection, packet: Any) -> None:
        add(self, connection, packet)
        if connection.client == 5:
            self.waiting_count -= 1

    monkeypatch.setattr(Packets, "add", miscounts)
    assert_violates(CONSERVATION, FLOOD)


def test_2_an_attempt_without_an_end_is_found() -> None:
    world = World(CROWD, "flowguard")
    Invariants(world)
    world.populations[0].attempts_count = 1
    world.run()
    assert world.violation is not None
    assert (world.violation.invariant, world.violation.node) == (CONSERVATION, None)


def test_3_more_bytes_than_the_budget_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    room = AdmissionWindow.room

    def ignores_bytes(self: AdmissionWindow) -> int:
        node = self._node
        bytes_max, node.bytes_max = node.bytes_max, 1 << 62
        shared, node.shared = node.shared, False
        result = room(self)
        node.bytes_max, node.shared = bytes_max, shared
        return result

    monkeypatch.setattr(AdmissionWindow, "room", ignores_bytes)
    assert_violates(UNFINISHED_BYTES, FLOOD)
    assert run(FLOOD, "static-100").violation is None  # It has no such budget.


# --- 5: keep-alive -------------------------------------------------------------------------------


def test_5_a_client_that_is_cut_off_for_a_silence_of_ours_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Broker.read

    def reads_only_connects(self: Broker, connection: Connection, now_s: float) -> None:
        if connection.state < CONNECTED:
            read(self, connection, now_s)

    monkeypatch.setattr(Broker, "read", reads_only_connects)
    assert_violates(KEEP_ALIVE, CALM)
    assert run(CALM, "static-10").violation is None  # Its loop may drown.


def test_5_a_loop_that_is_behind_cuts_off_nobody_whose_socket_it_has_not_read() -> None:
    """More are ready than a turn reads, and a tick comes before the rest of them is."""
    behind = Scenario(
        seed=7,
        duration_s=10.0,
        node=NodePlan(ping_s=0.002),
        populations={"idle": PopulationPlan(clients=400, start_over_s=0.5, keep_alive_s=1.0)},
        faults=(Fault(kind="pause", at_s=4.0, until_s=7.0),),
    )
    world = run(behind)
    assert world.violation is None
    assert world.populations[0].connected_count == 400
    assert sum(world.populations[0].attempts) == 400


# --- 10, 11, 16: CONNECTs ------------------------------------------------------------------------


def test_10_a_gate_that_refuses_while_nobody_waits_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer = ConnectGate.offer

    def moody(
        self: ConnectGate[Connection], key: Connection, arrival: Arrival, now_s: float
    ) -> Verdict:
        if key.client == 3:
            return self._reject(Reason.GATE_LIMIT)
        return offer(self, key, arrival, now_s)

    monkeypatch.setattr(ConnectGate, "offer", moody)
    assert_violates(IDLE, CALM)
    assert run(CALM, "static-10").violation is None  # It promises nothing.


def test_10_a_gate_that_does_not_accept_while_nobody_waits_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ConnectGate, "may_accept", lambda self, now_s: False)
    assert_violates(IDLE, CROWD)


def test_11_a_second_outcome_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    admit_next = ConnectGate.admit_next
    admitted: list[Connection] = []

    def repeats(
        self: ConnectGate[Connection], now_s: float, heard_s: float | None = None
    ) -> tuple[Connection, Verdict] | None:
        found = admit_next(self, now_s, heard_s)
        if found is not None:
            admitted.append(found[0])
        elif admitted:
            return admitted.pop(0), Verdict.REJECT
        return found

    monkeypatch.setattr(ConnectGate, "admit_next", repeats)
    assert_violates(ONE_OUTCOME, CROWD)


def test_11_an_outcome_after_the_socket_was_closed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WaitingRoom, "leave", lambda self, key: None)
    world = run(CROWD.model_copy(update={"flow": FlowSettings(connect_patience_s=5.0)}))
    assert world.violation is not None
    assert world.violation.invariant == ONE_OUTCOME


def test_11_a_connect_that_the_gate_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add = WaitingRoom.add

    def loses(
        self: WaitingRoom[Connection],
        key: Connection,
        arrival: Arrival,
        since_s: float,
        came_s: float,
    ) -> None:
        if key.client % 100:
            add(self, key, arrival, since_s, came_s)

    monkeypatch.setattr(WaitingRoom, "add", loses)
    assert_violates(ONE_OUTCOME, CROWD)


def test_11_a_client_that_waits_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = ConnectGate.offer

    def anonymous(
        self: ConnectGate[Connection], key: Connection, arrival: Arrival, now_s: float
    ) -> Verdict:
        """Nobody is known, so nobody is superseded."""
        return offer(self, key, Arrival("", arrival.size_bytes), now_s)

    monkeypatch.setattr(ConnectGate, "offer", anonymous)
    monkeypatch.setattr("simulations.process.broker.Broker.hang_up", lambda self, connection: None)
    assert_violates(ONE_OUTCOME, CROWD)


def test_11_a_buffer_beyond_its_cap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingRoom, "why_not", lambda self, size_bytes: None)
    assert_violates(ONE_OUTCOME, STORM)


def test_16_refusing_without_a_budget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RefusalBudget, "allows", lambda self, now_s: True)
    assert_violates(REFUSAL_BUDGET, STORM)
    assert run(STORM, "static-10").violation is None  # It promises nothing.

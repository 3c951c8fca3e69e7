"""Turns in the pool: fair by cost, weight and tenant; no client starves; an ended one leaves
nothing."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowguard.flow.windows.pool import PROGRESS_S, FairPool


def serve_for(
    pool: FairPool[str],
    clients: dict[str, tuple[str, float, int]],
    services: int,
    seed: int,
    step_s: float = 0.001,
) -> Counter[str]:
    """Serve clients (tenant, weight, highest cost) that always want more; return the cost
    served."""
    rng = random.Random(seed)
    served: Counter[str] = Counter()
    now_s = 0.0
    for name, (tenant, weight, _) in clients.items():
        pool.wait(name, tenant, weight, 0, now_s)
    for _ in range(services):
        now_s += step_s
        name = pool.next(now_s)
        assert name is not None
        tenant, weight, cost_max = clients[name]
        cost = rng.randint(1, cost_max)
        served[name] += cost
        pool.wait(name, tenant, weight, cost, now_s)
    return served


@given(st.integers(2, 20), st.integers(1, 100), st.integers(0, 10**6))
@settings(max_examples=settings.default.max_examples)
def test_backlogged_clients_of_equal_weight_are_served_equal_cost(
    count: int, cost_max: int, seed: int
) -> None:
    """For packets of any weight, the difference stays below two of the heaviest packets."""
    rng = random.Random(seed)
    clients = {f"c{n}": ("t", 1.0, rng.randint(1, cost_max)) for n in range(count)}
    # As long as no client waits so long that progress goes before fairness.
    served = serve_for(FairPool(), clients, services=2_000, seed=seed, step_s=1e-6)
    heaviest = max(cost for _, _, cost in clients.values())
    assert max(served.values()) - min(served[name] for name in clients) <= 2 * heaviest


def test_cost_is_served_in_proportion_to_weight() -> None:
    clients = {"light": ("t", 1.0, 10), "heavy": ("t", 3.0, 10)}
    served = serve_for(FairPool(), clients, services=10_000, seed=1, step_s=1e-6)
    assert served["heavy"] / served["light"] == pytest.approx(3, rel=0.01)


def test_tenants_share_equally_however_many_clients_they_have() -> None:
    clients = {f"a{n}": ("many", 1.0, 5) for n in range(50)} | {"b": ("one", 1.0, 5)}
    served = serve_for(FairPool(), clients, services=20_000, seed=2, step_s=1e-6)
    many = sum(cost for name, cost in served.items() if name != "b")
    assert served["b"] / many == pytest.approx(1, rel=0.01)


def test_who_comes_back_after_a_pause_has_saved_nothing_up() -> None:
    pool: FairPool[str] = FairPool()
    serve_for(pool, {"a": ("t", 1.0, 1)}, services=1_000, seed=3)
    pool.wait("late", "t", 1.0, 0, 1.0)
    order = []
    for _ in range(10):
        name = pool.next(1.0)
        assert name is not None
        order.append(name)
        pool.wait(name, "t", 1.0, 1, 1.0)
    assert Counter(order) == {"a": 5, "late": 5}


def test_who_has_waited_long_enough_is_next_whatever_it_owes() -> None:
    pool: FairPool[str] = FairPool()
    pool.wait("greedy", "t", 1.0, 0, 0.0)
    assert pool.next(0.0) == "greedy"
    pool.wait("greedy", "t", 1.0, 1_000_000, 0.0)
    now_s = 0.0
    while True:
        now_s += 0.1
        pool.wait("modest", "t", 1.0, 1, now_s)
        if pool.next(now_s) == "greedy":
            break
    assert now_s == pytest.approx(PROGRESS_S, abs=0.11)


@given(st.integers(2, 200), st.integers(0, 10**6))
@settings(max_examples=2 * settings.default.max_examples // 5)
def test_each_waiting_client_is_served_in_time_if_the_node_is_fast_enough(
    count: int, seed: int
) -> None:
    """Progress: with M clients and one service per T_prog / M no client waits twice T_prog."""
    rng = random.Random(seed)
    pool: FairPool[int] = FairPool()
    since_s = dict.fromkeys(range(count), 0.0)
    for client in range(count):
        pool.wait(client, f"t{client % 3}", 1.0, rng.randint(1, 10_000), 0.0)
    now_s = 0.0
    for _ in range(5 * count):
        now_s += PROGRESS_S / count
        client = pool.next(now_s)
        assert client is not None
        assert now_s - since_s[client] <= 2 * PROGRESS_S + 1e-6
        since_s[client] = now_s
        pool.wait(client, f"t{client % 3}", 1.0, rng.randint(1, 10_000), now_s)


def test_after_forgetting_nobody_owes_anything() -> None:
    pool: FairPool[str] = FairPool()
    pool.wait("a", "t", 1.0, 0, 0.0)
    assert pool.next(0.0) == "a"
    pool.forget()
    pool.wait("b", "t", 1.0, 0, 0.0)
    pool.wait("a", "t", 1.0, 0, 0.0)
    assert [pool.next(0.0), pool.next(0.0), pool.next(0.0)] == ["b", "a", None]


class PoolMachine(RuleBasedStateMachine):
    """Against a set: a waiting client is served exactly once, one that left never."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: FairPool[int] = FairPool()
        self.waiting: set[int] = set()
        self.now_s = 0.0

    @rule(client=st.integers(0, 30), cost=st.integers(0, 100))
    def wait(self, client: int, cost: int) -> None:
        self.pool.wait(client, f"t{client % 4}", 1.0 + client % 3, cost, self.now_s)
        self.waiting.add(client)

    @rule(client=st.integers(0, 30))
    def leave(self, client: int) -> None:
        self.pool.leave(client)
        self.waiting.discard(client)

    @rule(passed_s=st.floats(0, 2))
    def serve(self, passed_s: float) -> None:
        self.now_s += passed_s
        client = self.pool.next(self.now_s)
        if client is None:
            assert not self.waiting
        else:
            self.waiting.remove(client)

    @precondition(lambda self: not self.waiting)
    @rule()
    def forget(self) -> None:
        self.pool.forget()

    @invariant()
    def as_many_wait_as_should(self) -> None:
        assert len(self.pool) == len(self.waiting)

    def teardown(self) -> None:
        while self.waiting:
            self.serve(0.0)
        assert self.pool.next(self.now_s) is None


TestPoolMachine = PoolMachine.TestCase

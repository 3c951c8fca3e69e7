"""Policies by name: what `flow.policy`, `flow.shadow_policy` and `--policy NAME` mean.

| name | window | CONNECTs | whose law |
|---|---|---|---|
| flowguard | by its own law, the least of its path | limit, buffer, ladder | ours |
| unlimited | none | all at once | nobody's: the measure of what protection does |
| static-1, -10, -100 | that many | as flowguard | brokers with a fixed cap |
| reject-at-limit | as flowguard | its limit, then 137 | flowguard without the buffer |
| rate-limit-v1 | none; PUBLISH per tick | 500 a second, then 137 | HiveMQ before 4.28.10 |
| level-map | of the level of now | as flowguard | HiveMQ-like, without memory |
| emqx-flag, flashmq-gate | the maximum | sockets closed while a flag is up | EMQX, FlashMQ |
| vegas, gradient2 | a learned limit by clients | as flowguard | Netflix |
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from flowguard.config import FlowSettings, PolicyName
from flowguard.flow.adaptive import Flowguard, RestartableGate, Tell, tell_nobody
from flowguard.flow.baselines.flags import DriftFlag, Flag, Flagged, RunQueueFlag
from flowguard.flow.baselines.gates import OpenGate, RejectGate, TokenBucketGate
from flowguard.flow.baselines.learned import Gradient2, Learned, Limit, Vegas
from flowguard.flow.baselines.level_map import LevelMap, Levels
from flowguard.flow.baselines.rate_limit import CREDITS_MAX, RateLimit
from flowguard.flow.baselines.static import WINDOW_UNLIMITED, Judge, Static
from flowguard.flow.cluster import Cluster
from flowguard.flow.gate import ConnectGate
from flowguard.flow.law import WindowLaw
from flowguard.flow.policy import Policy
from flowguard.flow.pressure import objectives_of, pressure_of

K = TypeVar("K")
WITH_BUDGETS: Final[frozenset[PolicyName]] = frozenset(("flowguard", "reject-at-limit"))
"""Under these all clients together are bounded, too; the others never heard of it."""

MINDED: Final = frozenset(
    (
        "policy",
        "window_max",
        "window_floor",
        "queue_objective_s",
        "loop_objective_s",
        "store_objective_s",
        "replication_objective_s",
        "memory_objective",
        "connects_in_process_max",
        "connect_objective_s",
        "connect_buffer_max",
        "connect_buffer_bytes_max",
        "connect_patience_s",
        "refusal_share",
    )
)
"""Settings that policies and their gates look at: a shadow judges no others."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What is to be built."""

    name: PolicyName
    settings: FlowSettings
    cluster: Cluster | None
    tell: Tell

    @property
    def judge(self) -> Judge:
        return partial(pressure_of, objectives=objectives_of(self.settings))


def make_policy(
    name: PolicyName,
    settings: FlowSettings,
    cluster: Cluster | None = None,
    tell: Tell = tell_nobody,
) -> Policy[K]:
    """A new policy in its first state; what has a number in `settings` takes it from there.

    `flowguard`, `reject-at-limit`, `level-map` and `rate-limit-v1` mind the cluster: each tick may
    `tell` a record for the other nodes, and what was heard of them is to be merged by the caller.
    The others know their own node only. A shadow gets no cluster: it has nothing to say.
    """
    return POLICIES[name](_Order(name, settings, cluster, tell))


def _flowguard(order: _Order) -> Policy[Any]:
    return _adaptive(order, ConnectGate(order.settings))


def _reject_at_limit(order: _Order) -> Policy[Any]:
    return _adaptive(order, RejectGate(ConnectGate(order.settings)))


def _adaptive(order: _Order, gate: RestartableGate[Any]) -> Policy[Any]:
    settings = order.settings
    law = WindowLaw(settings.window_max, settings.window_floor)
    objectives = objectives_of(settings)
    return Flowguard(order.name, law, gate, objectives, order.cluster, order.tell)


def _unlimited(order: _Order) -> Policy[Any]:
    return Static(order.name, WINDOW_UNLIMITED, OpenGate(), order.judge)


def _static(order: _Order) -> Policy[Any]:
    gate: ConnectGate[Any] = ConnectGate(order.settings)
    return Static(order.name, STATIC_WINDOWS[order.name], gate, order.judge)


def _rate_limit(order: _Order) -> Policy[Any]:
    levels = Levels(CREDITS_MAX, order.cluster, order.tell)
    return RateLimit(order.name, levels, TokenBucketGate(), order.judge)


def _level_map(order: _Order) -> Policy[Any]:
    levels = Levels(order.settings.window_max, order.cluster, order.tell)
    return LevelMap(order.name, levels, ConnectGate(order.settings), order.judge)


def _flagged(order: _Order) -> Policy[Any]:
    drift_max_s = order.settings.loop_objective_s
    flag: Flag = RunQueueFlag(drift_max_s) if order.name == "emqx-flag" else DriftFlag()
    return Flagged(order.name, order.settings.window_max, flag, order.judge)


def _learned(order: _Order) -> Policy[Any]:
    limit: Limit = Vegas() if order.name == "vegas" else Gradient2()
    gate: ConnectGate[Any] = ConnectGate(order.settings)
    return Learned(order.name, limit, order.settings.window_max, gate, order.judge)


STATIC_WINDOWS: Final[dict[PolicyName, int]] = {
    "static-1": 1,
    "static-10": 10,
    "static-100": 100,
}
POLICIES: Final[dict[PolicyName, Callable[[_Order], Policy[Any]]]] = {
    "flowguard": _flowguard,
    "unlimited": _unlimited,
    "static-1": _static,
    "static-10": _static,
    "static-100": _static,
    "reject-at-limit": _reject_at_limit,
    "rate-limit-v1": _rate_limit,
    "level-map": _level_map,
    "emqx-flag": _flagged,
    "flashmq-gate": _flagged,
    "vegas": _learned,
    "gradient2": _learned,
}
"""How each name of the settings is built."""

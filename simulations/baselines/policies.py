"""The baseline laws by name, for `flow.policy` and `flow.shadow_policy`.

| name | window | CONNECTs | source |
|---|---|---|---|
| unlimited | none | all at once | none: it shows what the other laws achieve |
| static-1, -10, -100 | that many | as flowguard | brokers with a fixed cap |
| reject-at-limit | as flowguard | its limit, then 137 | flowguard without the connect queue |
| rate-limit-v1 | none; PUBLISH per tick | 500 a second, then 137 | HiveMQ before 4.28.10 |
| level-map | of the present level | as flowguard | HiveMQ-like, without memory |
| emqx-flag, flashmq-gate | the maximum | sockets closed while a flag is up | EMQX, FlashMQ |
| vegas, gradient2 | a learned limit by clients | as flowguard | Netflix |
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from flowguard.config import PolicyName
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.load.pressure import objectives_of, pressure_of
from flowguard.flow.policies import Order, adaptive
from flowguard.flow.policy import Gate, Policy
from simulations.baselines.flags import DriftFlag, Flag, Flagged, RunQueueFlag
from simulations.baselines.gates import OpenGate, RejectGate, TokenBucketGate
from simulations.baselines.learned import Gradient2, Learned, Limit, Vegas
from simulations.baselines.level_map import CREDITS_MAX, Levelled, Levels, level_map, rate_limit
from simulations.baselines.static import WINDOW_UNLIMITED, Baseline, Law, Static


def _reject_at_limit(order: Order) -> Policy[Any]:
    return adaptive(order, RejectGate(ConnectGate(order.settings)))


def _unlimited(order: Order) -> Policy[Any]:
    return _baseline(order, OpenGate(), Static(WINDOW_UNLIMITED))


def _static(order: Order) -> Policy[Any]:
    window = int(order.name.removeprefix("static-"))
    return _baseline(order, ConnectGate(order.settings), Static(window))


def _rate_limit(order: Order) -> Policy[Any]:
    levels = Levels(CREDITS_MAX, order.cluster, order.tell)
    gate: TokenBucketGate[Any] = TokenBucketGate()
    return _baseline(order, gate, Levelled(levels, gate, rate_limit))


def _level_map(order: Order) -> Policy[Any]:
    levels = Levels(order.settings.window_max, order.cluster, order.tell)
    gate: ConnectGate[Any] = ConnectGate(order.settings)
    return _baseline(order, gate, Levelled(levels, gate, level_map))


def _flagged(order: Order) -> Policy[Any]:
    drift_max_s = order.settings.loop_objective_s
    flag: Flag = RunQueueFlag(drift_max_s) if order.name == "emqx-flag" else DriftFlag()
    gate: OpenGate[Any] = OpenGate()
    return _baseline(order, gate, Flagged(order.settings.window_max, flag, gate))


def _learned(order: Order) -> Policy[Any]:
    limit: Limit = Vegas() if order.name == "vegas" else Gradient2()
    law = Learned(limit, order.settings.window_max)
    return _baseline(order, ConnectGate(order.settings), law)


def _baseline(order: Order, gate: Gate[Any], law: Law) -> Policy[Any]:
    judge = partial(pressure_of, objectives=objectives_of(order.settings))
    return Baseline(order.name, gate, judge, law)


OTHERS: Final[dict[PolicyName, Callable[[Order], Policy[Any]]]] = {
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

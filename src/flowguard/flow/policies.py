"""Policies by name: what `flow.policy`, `flow.shadow_policy` and `--policy NAME` mean.

Here is one, `flowguard`: its own law for windows, and a limit and a buffer for CONNECTs. The
laws that it is compared with are in `simulations.baselines`, which a broker imports only if its
settings name one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from flowguard.cluster.pressure import Cluster
from flowguard.config import FlowSettings, PolicyName
from flowguard.errors import ConfigError
from flowguard.flow.adaptive import Flowguard, RestartableGate, Tell, tell_nobody
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.law import WindowLaw
from flowguard.flow.load.pressure import objectives_of
from flowguard.flow.policy import Policy

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
    )
)
"""Settings on which the windows of a policy depend: a shadow evaluates only these."""


@dataclass(frozen=True, slots=True)
class Order:
    name: PolicyName
    settings: FlowSettings
    cluster: Cluster | None
    tell: Tell


def make_policy(
    name: PolicyName,
    settings: FlowSettings,
    cluster: Cluster | None = None,
    tell: Tell = tell_nobody,
) -> Policy[K]:
    """A new policy in its first state; what has a number in `settings` takes it from there.

    Raises ConfigError for a law of others that was not loaded.

    `flowguard`, `reject-at-limit`, `level-map` and `rate-limit-v1` mind the cluster: each tick may
    `tell` a record for the other nodes, and what was heard of them is to be merged by the caller.
    The others know their own node only. A shadow gets no cluster: it has nothing to say.
    """
    build = POLICIES.get(name)
    if build is None:
        raise ConfigError(f"flow.policy: {name} is another broker's law, which is not loaded here")
    return build(Order(name, settings, cluster, tell))


def _flowguard(order: Order) -> Policy[Any]:
    return adaptive(order, ConnectGate(order.settings))


def adaptive(order: Order, gate: RestartableGate[Any]) -> Policy[Any]:
    settings = order.settings
    law = WindowLaw(settings.window_max, settings.window_floor)
    objectives = objectives_of(settings)
    return Flowguard(order.name, law, gate, objectives, order.cluster, order.tell)


POLICIES: Final[dict[PolicyName, Callable[[Order], Policy[Any]]]] = {"flowguard": _flowguard}
"""How a name of the settings is built; `simulations.baselines.load` adds the laws of others."""

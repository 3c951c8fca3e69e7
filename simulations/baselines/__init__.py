"""Baselines to compare flowguard with: overload laws of other brokers, as policies of one
interface.

Each is the strongest honest form that the public sources allow. If a number is not published, the
file names the chosen one and the reason. They exist to be compared in `simulations`, and as shadow
policies (`flowguard.flow.shadow`). They are not recommended (docs/explain/overload.md, "The laws of
others"). A broker does not import them unless its settings name one.
"""

from flowguard.flow.policies import POLICIES
from simulations.baselines.policies import OTHERS


def load() -> None:
    """Register the baselines for `flow.policy`, `flow.shadow_policy` and `--policy NAME`."""
    POLICIES.update(OTHERS)

"""Baselines to compare flowguard with: the overload laws of others, as policies of one interface.

Each is the strongest honest form that the public sources allow; where a number is not published,
the file says which one was chosen, and why. They are here to be beaten in `simulations`, and to
shadow (`flowguard.flow.shadow`), not to be recommended (docs/explain/overload.md, "The laws of
others"). A broker does not import them unless its settings name one.
"""

from flowguard.flow.policies import POLICIES
from simulations.baselines.policies import OTHERS


def load() -> None:
    """Make them known to `flow.policy`, `flow.shadow_policy` and `--policy NAME`."""
    POLICIES.update(OTHERS)

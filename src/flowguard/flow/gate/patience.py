"""Patience: the connect timeout of clients, learned from those that give up.

Serving a client that has given up is wasted work, and the client connects again: with a limit
longer than the timeout of its clients a node serves no other ones. The protocol does not transmit
the timeout. But while CONNECTs wait, clients that time out hang up, all at about the same age.
"""

from collections import deque
from statistics import median_low
from typing import Final, final

from flowguard.flow.load.signals import TICK_S

SHARE: Final = 0.8
"""Share of the age at which clients give up, so that they are served before."""
LEAST_S: Final = 1.0
AGES_MAX: Final = 128
AGES_MIN: Final = 16
"""Number of clients that must have given up before the limit is learned from them."""
MEMORY_S: Final = 5.0
RELIEF_PER_TICK: Final = 1.02**TICK_S
"""Growth of the limit while no client gives up, to find out if timeouts are longer now."""


@final
class Patience:
    """The limit of one node's gate; `limit_s` is between `LEAST_S` and `longest_s`."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._ages: deque[tuple[float, float]] = deque(maxlen=AGES_MAX)
        """When a client gave up, and how long it had waited."""
        self.limit_s = longest_s

    def use(self, longest_s: float) -> None:
        """Use this limit from now on; what is learned makes it shorter again."""
        self._longest_s = self.limit_s = longest_s

    def gave_up(self, age_s: float, now_s: float) -> None:
        """A client whose CONNECT waited has hung up."""
        self._ages.append((now_s, age_s))

    def tick(self, now_s: float) -> None:
        """Every `TICK_S`: learn from the clients that gave up lately, or relax."""
        ages = self._ages
        while ages and now_s - ages[0][0] > MEMORY_S:
            ages.popleft()
        relaxed_s = min(self._longest_s, self.limit_s * RELIEF_PER_TICK)
        if len(ages) < AGES_MIN:
            self.limit_s = relaxed_s
            return
        learned_s = SHARE * median_low([age_s for _, age_s in ages])
        least_s = min(LEAST_S, self._longest_s)
        self.limit_s = max(least_s, min(relaxed_s, learned_s))

"""Shadow: a second policy gets the samples of the first one, and decides nothing.

`Shadow` is itself a policy and takes the place of the real one. A tick returns the real grant, and
gives the shadow the same sample. Two equal policies report the same window, with these limits:

- The shadow gets no CONNECTs, and judges windows only: a crowd of waiting CONNECTs does not put
  pressure on its window. A simulation shows the effect of other limits on a crowd
  (docs/operate/simulation.md).
- The samples show the load that the real policy admits. So the shadow reports its next step, not
  the state that it would have led to.
- Pauses are judged by the window alone: clients that a limit of rate (`Grant.credits`) would have
  paused are not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from flowguard.flow.load.signals import Sample
from flowguard.flow.policy import Gate, Grant, Policy

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Actions that the shadow would have taken since the start; windows of the last tick."""

    policy: str
    window: float
    """Window of the shadow, to compare with `window_real`."""
    window_real: float
    why: str
    stricter_ticks: int
    """Ticks in which its window was the smaller one."""
    looser_ticks: int
    paused: int
    """Clients with more in process than its window, in the last tick; 0 if it was not stricter."""
    paused_ticks: int
    """The sum of `paused` over all ticks."""


@final
class Shadow(Generic[K]):
    """The real policy, watched by another one."""

    def __init__(
        self,
        real: Policy[K],
        shadow: Policy[Any],
        clients_over: Callable[[float], int] | None = None,
    ) -> None:
        self.name = real.name
        self.gate: Gate[K] = real.gate
        self._enforced = real
        self._shadow = shadow
        self.clients_over = clients_over
        """Returns the number of clients with more cost units in process than its argument, or None
        if pauses are not counted. Called at most once a tick, and only while the shadow is
        stricter."""
        self._grant: Grant | None = None
        self._real_window = 0.0
        self._stricter_ticks = 0
        self._looser_ticks = 0
        self._paused = 0
        self._paused_ticks = 0

    def tick(self, sample: Sample) -> Grant:
        """Return the real policy's grant."""
        grant = self._enforced.tick(sample)
        other = self._shadow.tick(sample)
        self._grant = other
        self._real_window = grant.window
        self._paused = 0
        if other.window > grant.window:
            self._looser_ticks += 1
        elif other.window < grant.window:
            self._stricter_ticks += 1
            # A client that has nothing in process may always start one packet.
            window = max(1.0, other.window)
            if self.clients_over is not None and sample.in_process > window:
                self._paused = self.clients_over(window)
                self._paused_ticks += self._paused
        return grant

    def report(self) -> ShadowReport:
        grant = self._grant
        return ShadowReport(
            policy=self._shadow.name,
            window=0.0 if grant is None else grant.window,
            window_real=self._real_window,
            why="" if grant is None else grant.why,
            stricter_ticks=self._stricter_ticks,
            looser_ticks=self._looser_ticks,
            paused=self._paused,
            paused_ticks=self._paused_ticks,
        )

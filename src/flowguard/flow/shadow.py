"""Shadow: a second policy gets the samples of the first one, and decides nothing.

`Shadow` is a policy itself and stands where the real one would. Its tick returns the real grant,
and gives the shadow the same sample. Two equal policies report the same window, but:

- The shadow sees no CONNECTs, and judges windows only: a crowd of CONNECTs that waits does not
  press its window. What other limits do with a crowd, a simulation tells
  (docs/operate/simulation.md).
- The samples show the load that the real policy lets in. So the shadow tells what it would do
  next, not where it would have led.
- Pauses are judged by the window alone: what a limit of rate (`Grant.credits`) would have held back
  is not counted.
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
    """Its window, beside `window_real`."""
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
        """How many clients have more than so many cost units in process; None: pauses are not
        counted. Asked at most once a tick, and only while the shadow is the stricter one."""
        self._grant: Grant | None = None
        self._real_window = 0.0
        self._stricter_ticks = 0
        self._looser_ticks = 0
        self._paused = 0
        self._paused_ticks = 0

    def tick(self, sample: Sample) -> Grant:
        """The real policy's grant."""
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

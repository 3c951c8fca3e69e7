"""Shadow: a second policy sees what the first one sees, and decides nothing.

`Shadow` is a policy itself and stands where the real one would. Its gate hands every call to the
real gate, returns the real answer, and then lets the shadow's gate have the same CONNECT; its tick
returns the real grant, and then gives the shadow the same sample. What the shadow would have done
is counted (`report`). Two equal policies report the same, to the last CONNECT.

What the shadow cannot know, and what is taken for it:

- The load is what the real policy has let in, refused clients return as they return in reality. So
  the shadow tells what it would do next, not where it would have led.
- Serving a CONNECT takes the shadow as long as it took in reality. In the shadow it ends no sooner
  than in reality, where the time becomes known, and no sooner than that time after its admission
  there. One that reality refused takes the mean of those it served.
- A client that leaves while it waits in reality leaves the shadow.
- The shadow admits from its buffer when the real gate is asked to, or has nobody to admit; at the
  latest with the next tick.
- Where it would close new sockets when a CONNECT comes, and the real one would not, it would have
  closed this one: such a CONNECT counts as closed and is not offered to it.
- Pauses are judged by the window alone: what a limit of rate (`Grant.credits`) would have held back
  is not counted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, final

from flowguard.flow.mirror import MirrorGate
from flowguard.flow.policy import Gate, Grant, Policy
from flowguard.flow.signals import Sample
from flowguard.flow.verdict import Reason

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
    admitted: int
    """CONNECTs."""
    refused: Mapping[Reason, int]
    """CONNECTs it would have rejected or dropped, by reason."""
    closed: int
    """CONNECTs whose sockets it would have closed before TLS and MQTT."""
    in_process: int
    """CONNECTs in its gate."""
    buffered: int
    """CONNECTs in its buffer."""


@final
class Shadow(Generic[K]):
    """The real policy, watched by another one."""

    def __init__(
        self,
        real: Policy[K],
        shadow: Policy[int],
        clients_over: Callable[[float], int] | None = None,
    ) -> None:
        self.name = real.name
        self._enforced = real
        self._shadow = shadow
        self._mirror: MirrorGate[K] = MirrorGate(real.gate, shadow.gate)
        self.gate: Gate[K] = self._mirror
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
        self._mirror.before_tick(sample.now_s)
        other = self._shadow.tick(sample)
        self._mirror.after_tick(sample.now_s)
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
        """The report of the shadow so far."""
        gate = self._shadow.gate
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
            admitted=self._mirror.admitted,
            refused=dict(gate.refused),
            closed=self._mirror.closed,
            in_process=gate.in_process,
            buffered=gate.buffered,
        )

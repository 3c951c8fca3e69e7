"""The kit: experiments in turn, with a knock before and after each."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, final

import trio

from flowguard import __version__
from flowguard.address import Address, Scheme
from flowguard.types import MQTT_5
from loadgen.kit import connecting, messaging
from loadgen.kit.knock import Knock, greet, knock
from loadgen.kit.memory import MemoryWatch
from loadgen.kit.plan import EXPERIMENTS, RESTART, Experiment, KitOutcome, KitPlan
from loadgen.kit.report import Finding, KitFigure, KitReport, Survival
from loadgen.storm.plan import Target

RECOVERY_S: Final = 15.0
"""Time after an experiment in which a broker must serve one client again."""
RUNS: Final[dict[str, Callable[[KitPlan], Awaitable[KitOutcome]]]] = {
    "connect-storm": connecting.connect_storm,
    "retry-storm": connecting.retry_storm,
    "slow-subscriber": messaging.slow_subscriber,
    "flood-with-pings": messaging.flood_with_pings,
    "noisy-neighbour": messaging.noisy_neighbour,
    "wide-fan-out": messaging.wide_fan_out,
    "restart": connecting.restart,
}


@final
class Kit:
    """All chosen experiments at one broker; run it once. `findings` grows, `current` is live."""

    def __init__(
        self, plan: KitPlan, name: str, *, pids: Sequence[int] = (), fall_back: bool = True
    ) -> None:
        """`pids` are processes of the broker whose memory is watched. `fall_back` tries MQTT 3.1.1
        if the broker does not understand 5.0."""
        self.plan = plan
        self.name = name
        self.findings: list[Finding] = []
        self.current: Experiment | None = None
        self._pids = pids
        self._fall_back = fall_back
        self._version = ""

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """All experiments to run, in order; a restart only if there is a command for it."""
        return tuple(
            experiment
            for experiment in EXPERIMENTS
            if experiment.key in self.plan.chosen
            and (experiment is not RESTART or self.plan.restart_command is not None)
        )

    async def run(self) -> None:
        """Run all experiments, or fewer if the broker does not serve a single client any more."""
        plan = self.plan
        target, last = await greet(plan.target, plan.clock, fall_back=self._fall_back)
        self.plan = replace(plan, target=target)
        if last.served:
            self._version = "5.0" if target.version == MQTT_5 else "3.1.1"
        for experiment in self.experiments:
            self.current = experiment
            if last.served:
                last = await self._run_one(experiment)
            else:
                self._add(experiment, _not_run(last))
        self.current = None

    async def _run_one(self, experiment: Experiment) -> Knock:
        clock = self.plan.clock
        began_s = clock()
        watch = MemoryWatch(() if experiment is RESTART else self._pids)  # PIDs will change.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            outcome = await RUNS[experiment.key](self.plan)
            seconds = clock() - began_s
            after = await knock(self.plan.target, RECOVERY_S, clock)
            nursery.cancel_scope.cancel()
        if not after.served:
            said = f"{outcome.sentence} Afterwards it does not serve a single client: {after.why}."
            outcome = replace(outcome, verdict=Survival.FAILED, sentence=said)
        self._add(experiment, outcome, watch, after, seconds)
        return after

    def _add(
        self,
        experiment: Experiment,
        outcome: KitOutcome,
        watch: MemoryWatch | None = None,
        after: Knock | None = None,
        seconds: float = 0.0,
    ) -> None:
        value = None if outcome.figure is None else round(outcome.figure, 4)
        self.findings.append(
            Finding(
                experiment=experiment.key,
                title=experiment.title,
                verdict=outcome.verdict,
                figure=KitFigure(name=experiment.figure, value=value, unit=experiment.unit),
                sentence=outcome.sentence,
                memory=None if watch is None else watch.use(),
                recovered_s=round(after.seconds, 3) if after is not None and after.served else None,
                seconds=round(seconds, 2),
                values=outcome.values,
            )
        )

    def report(self) -> KitReport:
        """Return all findings so far."""
        target = self.plan.target
        return KitReport(
            name=self.name,
            target=_name(target),
            version=self._version,
            clients=self.plan.clients,
            made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            made_by=f"flowguard {__version__}",
            findings=tuple(self.findings),
        )

    def counts(self) -> Iterator[tuple[Survival, int]]:
        """Yield how often each verdict was given."""
        for verdict in Survival:
            yield verdict, sum(finding.verdict is verdict for finding in self.findings)


def _not_run(last: Knock) -> KitOutcome:
    """Return the outcome if the broker did not serve a single client before."""
    if last.asks:
        sentence = f"Not run, as the broker asks for {last.asks}: {last.why}."
        return KitOutcome(Survival.UNCLEAR, None, sentence, {})
    sentence = f"Not run, as it did not serve a single client: {last.why}."
    return KitOutcome(Survival.FAILED, None, sentence, {})


def _name(target: Target) -> str:
    address = Address(target.access.scheme, target.host, target.port)
    return address.place if address.scheme is Scheme.MQTT else str(address)

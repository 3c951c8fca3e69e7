"""E3: does an overload go on when its trigger is over? A map of loads and triggers."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

from benchmarks.checks import Check, Grid, Report

from . import figures
from .cases import OURS, Case, Experiment, Runs
from .judging import at_least, held, misses
from .probe import Observed

CONTROL: Final = "unlimited"
SERVICE_S, CALM_S, SETTLE_S = 0.01, 20.0, 5.0
LOADS: Final = (0.70, 0.80, 0.90, 0.95)
BACKOFFS: Final = ("none", "exponential")
COLLAPSED_FROM: Final = 0.80


@dataclass(frozen=True)
class Trigger:
    """Twice the load, or a pause, for so long."""

    kind: str
    length_s: float

    @property
    def name(self) -> str:
        return f"pause {self.length_s:g} s" if self.kind == "pause" else f"2x, {self.length_s:g} s"

    @property
    def bound_s(self) -> float:
        return max(10.0, 2.0 * self.length_s)

    @property
    def end_s(self) -> float:
        return CALM_S + self.length_s


TRIGGERS: Final = (
    *(Trigger("load", t_s) for t_s in (1.0, 5.0, 10.0, 30.0)),
    Trigger("pause", 10.0),
)
SEVERE_S: Final = 10.0
"""A shorter one leaves a queue behind that is shorter than the clients' patience."""


def corners(scale: float) -> tuple[tuple[float, ...], tuple[Trigger, ...]]:
    """One server is as small as it gets: a quick look takes less of the map."""
    return (LOADS, TRIGGERS) if scale >= 0.1 else (LOADS[1::2], (TRIGGERS[0], *TRIGGERS[2::2]))


PROFILE: Final = "profile"
PHASES: Final = (
    (0.0, 90.0),
    (20.0, 200.0),
    (30.0, 90.0),
    (60.0, 70.0),
    (90.0, 50.0),
    (120.0, 30.0),
)
"""From when on so many come per second: ten times happysim's example, as the server is."""
PROFILE_END_S, PHASE_SETTLES_S = 150.0, 10.0
SURGE: Final = 1


def profile() -> Case:
    edges = [from_s for from_s, _ in PHASES] + [PROFILE_END_S]
    points = [
        (from_s, per_s * (until_s - from_s))
        for (from_s, per_s), until_s in zip(PHASES, edges[1:], strict=True)
    ]
    crowd = {
        "clients": round(sum(count for _, count in points)),
        "arrivals": {"points": points},
        "timeout_s": 3.0,
        "durable": False,
        "stay_s": 0.0,
        "retry": {"kind": "fixed", "first_s": 0.001, "tries": 3},
    }
    changes = {
        "populations": {"crowd": crowd},
        "duration_s": PROFILE_END_S,
        "trigger_at_s": PHASES[SURGE][0],
        "trigger_until_s": PHASES[SURGE + 1][0],
    }
    return Case(PROFILE, "retry_storm", changes)


def phase(number: int, run: Observed) -> float | None:
    """Answered in time, percent of what comes, once the phase has begun 10 s ago."""
    from_s, per_s = PHASES[number]
    until_s = PHASES[number + 1][0] if number + 1 < len(PHASES) else PROFILE_END_S
    settled_s = from_s + (0.0 if number == SURGE else PHASE_SETTLES_S)
    got_per_s = figures.rate(answered(run), settled_s, until_s - 0.5)
    return None if got_per_s is None else 100.0 * got_per_s / per_s


def name_of(load: float, trigger: Trigger, backoff: str) -> str:
    return f"{load:.0%}, {trigger.name}, {backoff}"


def cases(scale: float) -> list[Case]:
    made = []
    for load, trigger, backoff in product(*corners(scale), BACKOFFS):
        changes: dict[str, Any] = {
            "load": load,
            "trigger": trigger.kind,
            "trigger_s": trigger.length_s,
            "backoff": backoff,
        }
        made.append(Case(name_of(load, trigger, backoff), "retry_storm", changes, (OURS, CONTROL)))
    return [*made, profile()]


def recovery(load: float, trigger: Trigger, run: Observed) -> float | None:
    """Seconds from the end of the trigger until 95 % of all that comes is answered in time."""
    before = load / SERVICE_S
    return figures.recovery_s(answered(run), before, trigger.end_s, over_s=SETTLE_S)


def answered(run: Observed) -> list[float]:
    """CONNACKs so far, of all populations."""
    return [sum(of_now) for of_now in zip(*run.series.answered.values(), strict=True)]


def judge(runs: Runs) -> Report:
    loads, triggers = corners(runs.scale)
    late: list[str] = []
    healed: list[str] = []
    for load, trigger, backoff in product(loads, triggers, BACKOFFS):
        name, figure = name_of(load, trigger, backoff), partial(recovery, load, trigger)
        ours = runs.figures(name, figure).values
        if any(value is None or value > trigger.bound_s for value in ours):
            late.append(name)
        control = runs.figures(name, figure, CONTROL)
        if must_collapse(load, trigger, backoff) and control.never_count < len(control.values):
            healed.append(name)
    collapsing = sum(must_collapse(*key) for key in product(loads, triggers, BACKOFFS))
    count = len(loads) * len(triggers) * len(BACKOFFS)
    checks = (
        Check(
            "back to 95 % within max(10 s, 2 x trigger), every seed",
            f"{count - len(late)} of {count}" + "".join(f"; not {name}" for name in late),
            f"{count} of {count}",
            not late,
        ),
        Check(
            f"control, {CONTROL}: collapsed for good, load ≥ {COLLAPSED_FROM:.0%}, no back-off, "
            f"trigger ≥ {SEVERE_S:g} s",
            f"{collapsing - len(healed)} of {collapsing}"
            + "".join(f"; not {name}" for name in healed),
            f"{collapsing} of {collapsing}",
            not healed,
        ),
        at_least(
            f"{PROFILE}: answered after the surge, least", after_surge(runs, OURS), 95.0, " %"
        ),
        misses(
            at_least(
                f"{PROFILE}: answered after the surge", after_surge(runs, CONTROL), 95.0, " %"
            ),
            CONTROL,
        ),
        held(runs),
    )
    return Report(
        "sim-e3",
        "E3, simulated: does it recover when the trigger is over?",
        "One server, 10 ms for a request; clients wait 3 s and try three times, at once or with "
        "exponential back-off. Seconds from the end of the trigger until 95 % of what comes is "
        "answered in time, for good: the worst seed. Profile: percent of "
        "what comes that is answered, from 10 s after each change (20/s to a server of 10/s, times "
        "ten).",
        checks,
        (
            Grid(("back-off", "load", "policy", *(t.name for t in triggers)), tuple(rows(runs))),
            Grid(("profile", *(f"{per_s:g}/s" for _, per_s in PHASES)), tuple(profile_rows(runs))),
        ),
    )


def must_collapse(load: float, trigger: Trigger, backoff: str) -> bool:
    return load >= COLLAPSED_FROM and backoff == "none" and trigger.length_s >= SEVERE_S


def rows(runs: Runs) -> list[tuple[str, ...]]:
    loads, triggers = corners(runs.scale)
    return [
        (backoff, f"{load:.0%}", policy, *(cell(runs, load, t, backoff, policy) for t in triggers))
        for backoff, load, policy in product(BACKOFFS, loads, (OURS, CONTROL))
    ]


def profile_rows(runs: Runs) -> list[tuple[str, ...]]:
    phases = [partial(phase, number) for number in range(len(PHASES))]
    return [
        (policy, *(runs.figures(PROFILE, one, policy).text(" %", 0) for one in phases))
        for policy in (OURS, CONTROL)
    ]


def after_surge(runs: Runs, policy: str) -> figures.Figures:
    """The least of the phases after it, of each seed."""
    phases = [
        runs.figures(PROFILE, partial(phase, number), policy).values
        for number in range(SURGE + 1, len(PHASES))
    ]
    return figures.Figures(
        tuple(min(value or 0.0 for value in of_seed) for of_seed in zip(*phases, strict=True))
    )


def cell(runs: Runs, load: float, trigger: Trigger, backoff: str, policy: str) -> str:
    name, figure = name_of(load, trigger, backoff), partial(recovery, load, trigger)
    found = runs.figures(name, figure, policy)
    if found.never_count:
        return found.text()
    return f"{max(value or 0.0 for value in found.values):.1f} s"


EXPERIMENT = Experiment(
    "E3",
    cases,
    judge,
    "the server and its clients are not scaled. Below 0.1 the map has fewer loads and triggers.",
)

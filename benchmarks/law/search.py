"""`python -m benchmarks.law.search`: random loads, and how far each policy stays behind the best.

`--save FILE` keeps the runs, and continues an interrupted search. `--against FILE` compares
with the law of an earlier commit, and takes the other policies from there.

Loads run in a pool of processes, not on Spark: a run takes half a second and returns a line of
figures. Searches on several machines are joined by their files.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Final

import typer

from benchmarks import pages
from benchmarks.checks import Check, Grid, Report, at_least, at_most
from benchmarks.experiments.figures import percentile
from benchmarks.overload.plot import COLOURS, Panel, Series, svg
from benchmarks.parts import Strict, Write, split

from .dominance import OURS
from .random_loads import load_of
from .regret import NOTICED, Comparison, compare, interval
from .runs import CLASSES, POLICIES, RIVALS, read, run_all, steps_of

WORST: Final = 5
"""Number of loads that the page names."""
LEAST: Final = 0.1
"""Points of regret at the bottom of the picture."""
KEY: Final = "law-search"
console = pages.console()


def is_own(load: int) -> bool:
    """Whether the node of a load takes turns as flowguard's reactor does."""
    return not load_of(load).node.accepts_first


def report(found: Comparison, runs: int) -> Report:
    """The page: regrets, weightings, pairs, dominated loads, the worst loads, and the bounds."""
    loads = found.loads
    own, acceptors = found.of(is_own), found.of(lambda load: not is_own(load))
    return Report(
        KEY,
        f"{len(loads)} random loads, from {loads[0]} on: points of regret",
        f"{runs} runs of each load and policy; the same run has the same crowd under every policy. "
        f"{len(own.loads)} loads in flowguard's own loop, {len(acceptors.loads)} in one that "
        "accepts all sockets first. Utility of a policy on a load, 0 to 100 points: "
        "connected client-seconds of the crowd (weight 0.35), messages in time of steady "
        "publishers (0.35) and of a wide one (0.1), each of all since each client's first attempt; "
        "messages of publishers without end, of the best policy there (0.2). Regret: what the best "
        "policy of the load has more. [95 % bootstrap intervals over loads.] A copy is flowguard "
        "with other noise of the node, and no reference.",
        _checks(found, own),
        (
            _regrets(found, own, acceptors),
            _pairs(found, own, acceptors),
            _dominated(found),
            _worst(found),
        ),
        tuple(
            f"load {load}, {policy}: {what}"
            for policy, row in found.standings.items()
            for load, one in row.items()
            for what in one.violations
        ),
        _picture(found, own, acceptors),
    )


def _regrets(found: Comparison, own: Comparison, acceptors: Comparison) -> Grid:
    def line(policy: str) -> tuple[str, ...]:
        regrets = found.regrets(policy)
        standings = found.standings[policy].values()
        classes = ([one.parts[name] for one in standings if name in one.parts] for name in CLASSES)
        return (
            policy,
            interval(regrets).text(),
            *(f"{part:.1f}" for part in (median(regrets), percentile(regrets, 0.9), max(regrets))),
            *(
                f"{fmean(part.regrets(policy)):.1f}" if part.loads else ""
                for part in (own, acceptors)
            ),
            *(f"{100 * fmean(parts):.1f}" if parts else "" for parts in classes),
        )

    header = ("policy", "mean regret", "median", "p90", "worst", "own loop", "acceptors first")
    return Grid(
        (*header, "crowd", "steady", "wide", "without end"),
        tuple(line(policy) for policy in found.standings),
    )


def _pairs(found: Comparison, own: Comparison, acceptors: Comparison) -> Grid:
    """Random weightings, and flowguard less each policy."""
    won = [part.won_shares() if part.loads else {} for part in (found, own, acceptors)]

    def line(policy: str) -> tuple[str, ...]:
        shares = (f"{100 * part[policy]:.1f}" if policy in part else "" for part in won)
        gains = found.gains(OURS, policy)
        better, worse = _noticed(gains)
        pairs = ("",) * 5
        if policy != OURS:
            ends = (f"{min(gains):+.1f}", f"{max(gains):+.1f}")
            pairs = (interval(gains).text("+"), f"{better:.1f}", f"{worse:.1f}", *ends)
        return (policy, *shares, *pairs)

    header = ("policy", "least regret under % of weightings", "own loop", "acceptors first")
    return Grid(
        (*header, "flowguard less it", "better in %", "worse in %", "least", "most"),
        tuple(line(policy) for policy in found.standings),
    )


def _noticed(gains: Sequence[float]) -> tuple[float, float]:
    """The shares of loads with a gain, and with a loss, that is noticed; percent."""
    better = sum(gain > NOTICED for gain in gains)
    worse = sum(gain < -NOTICED for gain in gains)
    return 100.0 * better / len(gains), 100.0 * worse / len(gains)


def _dominated(found: Comparison) -> Grid:
    def share(loads: Sequence[int]) -> str:
        return f"{100 * len(loads) / len(found.loads):.1f}"

    def line(policy: str) -> tuple[str, ...]:
        violated = [load for load, one in found.standings[policy].items() if one.violations]
        is_ours = policy == OURS
        return (
            policy,
            "" if is_ours else share(found.dominated(OURS, [policy])),
            "" if is_ours else share(found.dominated(policy, [OURS])),
            share(found.dominated(policy, found.rivals)),
            share(found.died(policy)),
            share(violated),
        )

    return Grid(
        (
            "policy",
            "dominates flowguard, % of loads",
            "dominated by flowguard",
            "by any of the rivals",
            "nodes died, and under another policy none",
            "an invariant was violated",
        ),
        tuple(line(policy) for policy in found.standings),
    )


def _worst(found: Comparison) -> Grid:
    """The loads of flowguard's largest regret, and what each class got under the best policy."""
    regrets = dict(zip(found.loads, found.regrets(OURS), strict=True))
    rows = []
    for number, load in enumerate(found.loads):
        best = max(found.policies, key=lambda policy: found.utilities(policy)[number])
        ours, theirs = (found.standings[policy][load].parts for policy in (OURS, best))
        parts = (
            f"{100 * ours[name]:.0f} / {100 * theirs[name]:.0f}" if name in ours else ""
            for name in CLASSES
        )
        loop = "own" if is_own(load) else "acceptors first"
        rows.append((regrets[load], (str(load), loop, f"{regrets[load]:.1f}", best, *parts)))
    rows.sort(reverse=True)
    header = ("worst loads", "loop", "regret", "best policy")
    names = ("crowd", "steady", "wide", "without end")
    return Grid((*header, *names), tuple(row for _, row in rows[:WORST]))


def _checks(found: Comparison, own: Comparison) -> tuple[Check, ...]:
    regrets = found.regrets(OURS)
    rival = found.best_rivals[0]
    gain = interval(found.gains(OURS, rival))
    won = 100.0 * found.won_shares()[OURS]
    checks = [
        at_most("mean regret", fmean(regrets), 2.0, digits=1),
        at_most("90th percentile", percentile(regrets, 0.9), 7.0, digits=1),
        at_most("worst load", max(regrets), 25.0, digits=1),
        Check(f"better than {rival}", gain.text("+"), "interval above 0", gain.low > 0.0),
        at_least("weightings with the least regret", won, 60.0, " %"),
    ]
    if own.loads:
        won = 100.0 * own.won_shares()[OURS]
        checks += [
            at_most("mean regret, own loop", fmean(own.regrets(OURS)), 2.5, digits=1),
            at_least("weightings with the least regret, own loop", won, 90.0, " %"),
        ]
    for law in found.before:
        gains = found.gains(OURS, law)
        checks += [
            at_least(f"better than the {law}", fmean(gains), 3.0, digits=1),
            at_most(f"worse than the {law}", _noticed(gains)[1], 10.0, " % of loads"),
        ]
    if found.copies:
        by_rivals, by_copies = (
            100.0 * len(found.dominated(OURS, others)) / len(found.loads)
            for others in (found.rivals, found.copies)
        )
        what = f"dominated by a rival; by one of {len(found.copies)} copies"
        checks.append(at_most(what, by_rivals, by_copies, " %", 1))
    died = found.died(OURS)
    violated = [load for load, one in found.standings[OURS].items() if one.violations]
    checks += [
        Check(what, ", ".join(map(str, loads)) or "nowhere", "nowhere", not loads)
        for what, loads in (
            ("nodes died, and under another policy none", died),
            ("an invariant was violated", violated),
        )
    ]
    return tuple(checks)


def _picture(found: Comparison, own: Comparison, acceptors: Comparison) -> str:
    """Regret by the share of loads that have no more; logarithmic."""
    shown = [OURS, *found.before, *found.best_rivals]

    def panel(title: str, part: Comparison) -> Panel:
        lines = []
        for policy in shown[: len(COLOURS)]:
            regrets = sorted(part.regrets(policy))
            points = (
                (100.0 * (number + 1) / len(regrets), max(LEAST, value))
                for number, value in enumerate(regrets)
            )
            lines.append(Series(policy, tuple(points)))
        return Panel(
            f"{title}, {len(part.loads)} loads, least regret first", tuple(lines), log=True
        )

    parts = {"all": found, "flowguard's own loop": own, "acceptors first": acceptors}
    panels = [panel(title, part) for title, part in parts.items() if part.loads]
    return svg(panels, "Points of regret", unit=" %")


def main(
    loads: Annotated[int, typer.Option(min=1, help="How many.")] = 60,
    first: Annotated[int, typer.Option(min=0, help="The first one's number.")] = 1_001,
    runs: Annotated[int, typer.Option(min=1, max=99, help="Runs of each.")] = 3,
    policies: Annotated[
        str, typer.Option(help="By comma, or `all`; flowguard is always there.")
    ] = ",".join(RIVALS),
    copies: Annotated[
        int, typer.Option(min=0, max=99, help="Copies of flowguard, with other noise.")
    ] = 3,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Runs at a time.")] = 2,
    save: Annotated[Path | None, typer.Option(help="Append runs to this file.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Runs that an earlier commit saved.", exists=True)
    ] = None,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Random loads: how far is flowguard from the best policy of each?

    Exit status 1 with --strict: a bound is missed.
    """
    wanted = set(POLICIES if policies == "all" else split(policies))
    if unknown := sorted(wanted - set(POLICIES)):
        raise typer.BadParameter(f"unknown policies {unknown}; there are {', '.join(POLICIES)}")
    chosen = [policy for policy in POLICIES if policy in wanted or policy == OURS]
    before = read(against) if against is not None else []
    done = read(save) if save is not None and save.exists() else []
    known = {(one.load, one.run, one.policy) for one in before if one.policy != OURS}
    known |= {(one.load, one.run, one.policy) for one in done}
    steps = steps_of(range(first, first + loads), runs, chosen, copies)
    asked = {(step.load, step.run) for step in steps}
    names = {step.name for step in steps}
    missing = [step for step in steps if (step.load, step.run, step.name) not in known]
    found = [*done, *run_all(missing, jobs, save, console)]
    told = report(
        compare(
            (one for one in found if (one.load, one.run) in asked and one.policy in names),
            (one for one in before if (one.load, one.run) in asked),
        ),
        runs,
    )
    good = pages.tell(told, "Virtual time", console, pages.RESULTS if write else None)
    if strict and not good:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

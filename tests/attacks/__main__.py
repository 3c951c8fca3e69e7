"""`python -m tests.attacks`, or `make attack`: a broker is attacked from outside, in every way."""

import os
import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from flowguard import build
from tests.attacks.attack import Attack
from tests.attacks.attacks import ATTACKS
from tests.attacks.bench import Outcome, judge_all, table_of
from tests.support.reaper import reap_at_the_end

console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)


def main(
    only: Annotated[str, typer.Option(help="Names of attacks, with commas between.")] = "",
    share: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1,
            help="Of the full size; below 1 no time is judged, and some controls are too small.",
        ),
    ] = 1.0,
) -> None:
    """Exit code 1: a bound does not hold, or a control has shown nothing."""
    reap_at_the_end()
    chosen = chosen_of(only)
    began_s = time.monotonic()
    verdicts = list(judge_all(chosen, share, console.print))
    console.print(table_of(verdicts))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    console.print(
        f"{len(verdicts)} attacks in {time.monotonic() - began_s:.0f} s on the broker "
        f"({build.name()}); {os.cpu_count()} processors, load {load} at the end"
    )
    named = {
        outcome: [each.attack.name for each in verdicts if each.outcome is outcome]
        for outcome in Outcome
    }
    if named[Outcome.NOT_RUN]:
        console.print(f"[yellow]not run on this machine:[/] {', '.join(named[Outcome.NOT_RUN])}")
    failed = [*named[Outcome.BROKEN], *named[Outcome.SHOWS_NOTHING]]
    if failed:
        console.print(f"[red]not as promised:[/] {', '.join(failed)}")
        raise typer.Exit(1)
    console.print(f"bounds that hold, and do not in their controls: {len(named[Outcome.HOLDS])}")


def chosen_of(only: str) -> list[Attack]:
    """Those that are named, in their order; all where none is."""
    names = [attack.name for attack in ATTACKS]
    wanted = only.split(",") if only else names
    if not set(wanted) <= set(names):
        raise typer.BadParameter(f"attacks are {', '.join(names)}")
    return [attack for attack in ATTACKS if attack.name in wanted]


if __name__ == "__main__":
    typer.run(main)

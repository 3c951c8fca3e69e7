"""`python -m benchmarks.parts`: flowguard overloaded on purpose, and its store by itself.

A part is what one file measures and tells; its name says to which room it belongs.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Annotated, get_args

import typer
from rich.markup import escape

from flowguard.cli.descriptors import use_all_descriptors
from flowguard.config import PolicyName

from . import machine, pages, proxy
from .brokers import BrokerFailed
from .build import Unavailable
from .checks import Reported
from .conditions import FULL_SECONDS, QUICK_SECONDS, Conditions
from .log import fan_out, fleet, resuming
from .nodes import adoption, cascade, costs, slowed, starved, storm
from .overload import (
    e01_fan_out,
    e07_slow_subscribers,
    e08_self_loop,
    e09_keep_alive,
    e12_cost,
    restarts,
    side_by_side,
    slow_redis,
    workers,
)
from .runner import BadData
from .store import drift, durable_log, fetch, layouts, merging, reconnect, restart

Measure = Callable[[Conditions], Reported]
ROOMS = (
    *(
        side_by_side,
        slow_redis,
        workers,
        restarts,
        e01_fan_out,
        e07_slow_subscribers,
        e08_self_loop,
        e09_keep_alive,
        e12_cost,
    ),
    *(layouts, fetch, reconnect, restart, drift, merging, durable_log),
    *(fleet, fan_out, resuming),
    *(cascade, costs, adoption, slowed, starved, storm),
    proxy,
)
PARTS: dict[str, Measure] = {room.KEY: room.measure for room in ROOMS}
STORE = "store"
Write = Annotated[bool, typer.Option("--write", help="Write pages into benchmarks/results.")]
Strict = Annotated[bool, typer.Option("--strict", help="A missed bound fails, too.")]
console = pages.console()


def main(
    only: Annotated[
        str, typer.Option(help=f"Of {', '.join(PARTS)}, by comma; how a name begins will do.")
    ] = "",
    policies: Annotated[
        str, typer.Option(help="Of the headline, by comma; the first is on trial.")
    ] = ",".join(side_by_side.POLICIES),
    seconds: Annotated[
        float, typer.Option(min=2, max=3600, help="Of overload; the rest scales with it.")
    ] = FULL_SECONDS,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_SECONDS:g} s.")] = False,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Overloads flowguard on purpose, or measures its store; compiled, if make compile was run.

    Exit status 1: something could not be measured (with --strict: or missed its bound).
    """
    parts = choose(only)
    measured_policies = choose_policies(policies)
    use_all_descriptors()
    conditions = Conditions(machine.choose_cores(), QUICK_SECONDS if quick else seconds)
    chosen = {part: PARTS[part] for part in parts}
    if side_by_side.KEY in chosen:
        chosen[side_by_side.KEY] = partial(side_by_side.measure, policies=measured_policies)
    measured, passed = run(chosen, conditions, pages.RESULTS if write else None)
    if conditions.cores is None:
        console.print("[yellow]One core: broker and clients shared it. Figures mean little.[/]")
    if not measured or (strict and not passed):
        raise typer.Exit(1)


def split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def choose(only: str) -> list[str]:
    chosen: set[str] = set()
    for word in split(only):
        alike = [part for part in PARTS if part.startswith(word)]
        fitting = [word] if word in PARTS else alike
        if not fitting:
            raise typer.BadParameter(f"there is no part {word}; there are {', '.join(PARTS)}")
        chosen.update(fitting)
    return [p for p in PARTS if p in chosen or not chosen]


def choose_policies(policies: str) -> tuple[str, ...]:
    known = get_args(PolicyName)
    wanted = split(policies)
    if unknown := [name for name in wanted if name not in known] or not wanted:
        raise typer.BadParameter(f"unknown policies {unknown}; there are {', '.join(known)}")
    return tuple(wanted)


def run(
    parts: dict[str, Measure], conditions: Conditions, folder: Path | None
) -> tuple[bool, bool]:
    """Whether everything could be measured, and whether every bound was met.

    `folder`: where pages go; None: nowhere.
    """
    measured = passed = True
    where = f"{machine.describe()}, a disk that syncs 4 KiB in {machine.sync_ms():.2f} ms"
    for part, measure in parts.items():
        try:
            with console.status(f"{part} ..."), machine.pinned(conditions.generator_core):
                result = measure(conditions)
        except (BadData, BrokerFailed, Unavailable, OSError, TimeoutExpired) as error:
            console.print(f"[red]{part} could not be measured: {escape(str(error))}[/]")
            measured = False
        else:
            passed &= pages.tell(result, where, console, folder)
    return measured, passed


def of_bench() -> dict[str, Measure]:
    """The parts that `make bench` ends with."""
    return {part: run for part, run in PARTS.items() if part.startswith((STORE, proxy.KEY))}


if __name__ == "__main__":
    typer.run(main)

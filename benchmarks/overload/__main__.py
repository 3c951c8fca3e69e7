"""`python -m benchmarks.overload`: run, show, and with --write put it into docs/benchmarks.md."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks import machine
from benchmarks.__main__ import PAGE, split, without_page
from benchmarks.brokers import BrokerFailed
from benchmarks.build import Unavailable, work_folder
from benchmarks.runner import BadData
from flowguard.config import PolicyName

from . import (
    e01_fan_out,
    e07_slow_subscribers,
    e08_self_loop,
    e09_keep_alive,
    e12_cost,
    scoreboard,
    side_by_side,
)
from . import page as pages
from .checks import Reported
from .conditions import FULL_SECONDS, Conditions
from .plot import sparks, svg
from .side_by_side import SideBySide

EXPERIMENTS: dict[str, Callable[[Conditions], Reported]] = {
    "e1": e01_fan_out.measure,
    "e7": e07_slow_subscribers.measure,
    "e8": e08_self_loop.measure,
    "e9": e09_keep_alive.measure,
    "e12": e12_cost.measure,
    "scoreboard": scoreboard.measure,
}
PARTS = (side_by_side.KEY, *EXPERIMENTS)
BESIDES = ("scoreboard",)
"""Run only when asked for: it is about other brokers as well."""
QUICK_SECONDS = 6.0
console = Console(width=None if sys.stdout.isatty() else 180)


@dataclass(frozen=True)
class Headline:
    """What the headline may be told beside its length."""

    policies: tuple[str, ...]
    inflight: int | None
    receive_maximum: int | None

    def measure(self, conditions: Conditions) -> SideBySide:
        options = {"limit": float(self.inflight)} if self.inflight else {}
        return side_by_side.measure(conditions, self.policies, self.receive_maximum, **options)


def main(
    only: Annotated[str, typer.Option(help=f"Of {', '.join(PARTS)}, by comma.")] = "",
    policies: Annotated[
        str, typer.Option(help="Of the headline, by comma; the first is on trial.")
    ] = f"flowguard,{side_by_side.CONTROL}",
    seconds: Annotated[
        float, typer.Option(min=2, max=3600, help="Of overload; the rest scales with it.")
    ] = FULL_SECONDS,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_SECONDS:g} s.")] = False,
    inflight: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="Unacknowledged messages a publisher of the headline has at most, whatever the "
            "broker allows; otherwise only what the broker allows counts.",
        ),
    ] = None,
    receive_maximum: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="The setting of that name, for every policy of the headline but unlimited.",
        ),
    ] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="After make compile.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write into the page.")] = False,
    page: Annotated[
        Path, typer.Option(help="The page for --write.", show_default="docs/benchmarks.md")
    ] = PAGE,
    strict: Annotated[bool, typer.Option("--strict", help="A missed bound fails, too.")] = False,
) -> None:
    """Overloads flowguard on purpose, on this machine, and says what its clients saw.

    Exit status 1: something could not be measured (with --strict: or missed its bound).
    """
    parts = choose(only)
    headline = Headline(choose_policies(policies), inflight, receive_maximum)
    machine.raise_descriptor_limit()
    conditions = Conditions(machine.choose_cores(), QUICK_SECONDS if quick else seconds, compiled)
    command = " ".join(["python -m benchmarks.overload", *without_page(sys.argv[1:])])
    good = True
    for part in parts:
        measure = headline.measure if part == side_by_side.KEY else EXPERIMENTS[part]
        try:
            with console.status(f"{part} ..."), machine.pinned(conditions.generator_core):
                result = measure(conditions)
        except (BadData, BrokerFailed, Unavailable, OSError) as error:
            console.print(f"[red]{part} could not be measured: {escape(str(error))}[/]")
            good = False
            continue
        good &= show(part, result, strict=strict)
        if write:
            put(page, result, command)
    if conditions.cores is None:
        console.print("[yellow]One core: broker and clients shared it. Figures mean little.[/]")
    if not good:
        raise typer.Exit(1)


def choose(only: str) -> list[str]:
    wanted = split(only) or [part for part in PARTS if part not in BESIDES]
    if unknown := [part for part in wanted if part not in PARTS]:
        raise typer.BadParameter(f"unknown parts {unknown}; there are {', '.join(PARTS)}")
    return [part for part in PARTS if part in wanted]


def choose_policies(policies: str) -> tuple[str, ...]:
    known = get_args(PolicyName)
    wanted = split(policies)
    if unknown := [name for name in wanted if name not in known] or not wanted:
        raise typer.BadParameter(f"unknown policies {unknown}; there are {', '.join(known)}")
    return tuple(wanted)


def show(part: str, result: Reported, *, strict: bool) -> bool:
    """Into the terminal and, raw, into `.bench`; False: a bound was missed, and that counts."""
    report = result.report()
    console.print(pages.terminal(report))
    if isinstance(result, SideBySide):
        console.print(sparks(result.panels()))
    assert is_dataclass(result)
    text = json.dumps(asdict(result), indent=1, default=str)
    (work_folder() / f"overload-{part}.json").write_text(text + "\n")
    return report.passed or not strict


def put(page: Path, result: Reported, command: str) -> None:
    """Section and picture."""
    report = result.report()
    today = datetime.now(UTC).date().isoformat()
    commit = machine.commit()
    origin = f"{today}. {machine.describe()}. flowguard {commit or 'without git'}."
    pages.write(page, report, command, origin)
    console.print(f"written: {page}")
    if isinstance(result, SideBySide):
        picture = page.parent / report.picture
        picture.write_text(svg(result.panels(), report.title, result.seconds))
        console.print(f"written: {picture}")


if __name__ == "__main__":
    typer.run(main)

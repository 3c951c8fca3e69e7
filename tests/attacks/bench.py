"""One attack after the other: what was measured, what its control has shown, and a verdict."""

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import trio
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from tests.attacks.attack import Attack, CannotRun, Finding, Run, Size

HANGS_S = 300.0
"""Maximum time of an attack, on any machine."""


class Outcome(StrEnum):
    HOLDS = "holds"
    BROKEN = "broken"
    SHOWS_NOTHING = "shows nothing"
    """The bound also holds in the control, in which it must break."""
    NOT_RUN = "not run"


COLOURS = {Outcome.HOLDS: "green", Outcome.NOT_RUN: "yellow"}


@dataclass(frozen=True)
class Verdict:
    """The result of one attack; `run_s` is its time, including the control."""

    attack: Attack
    outcome: Outcome
    measured: str
    control: str
    run_s: float

    @property
    def coloured(self) -> str:
        return f"[{COLOURS.get(self.outcome, 'red')}]{self.outcome}[/]"


def judge(attack: Attack, share: float) -> Verdict:
    """Run the attack, then its control; if the attack cannot be run, neither is."""
    began_s = time.monotonic()
    try:
        found = once(attack.run, share, failed=False)
        control = once(attack.control, share, failed=True)  # A control that fails counts as broken.
    except CannotRun as reason:
        return Verdict(attack, Outcome.NOT_RUN, str(reason), "", time.monotonic() - began_s)
    outcome = Outcome.HOLDS if found.holds else Outcome.BROKEN
    if found.holds and control.holds:
        outcome = Outcome.SHOWS_NOTHING
    return Verdict(attack, outcome, found.said, control.said, time.monotonic() - began_s)


def once(run: Run, share: float, *, failed: bool) -> Finding:
    """In a folder of its own; `failed`: what an error is taken for, the other attacks go on."""
    try:
        with tempfile.TemporaryDirectory(prefix="flowguard-attack-") as folder:
            return trio.run(_within_time, run, Size(Path(folder), share))
    except CannotRun:
        raise
    except Exception as error:
        return Finding(failed, f"ended with {error!r}")


async def _within_time(run: Run, size: Size) -> Finding:
    with trio.fail_after(HANGS_S):
        return await run(size)


def judge_all(
    attacks: list[Attack], share: float, show: Callable[[str], None]
) -> Iterable[Verdict]:
    """Yield each verdict as it is ready; `show` gets a line on each attack, before and after."""
    for number, attack in enumerate(attacks, 1):
        show(f"{number} of {len(attacks)}  {attack.name}: {attack.bound}")
        verdict = judge(attack, share)
        show(f"{'':10}{verdict.coloured}  {escape(verdict.measured)}  ({verdict.run_s:.0f} s)")
        yield verdict


def table_of(verdicts: list[Verdict]) -> Table:
    columns = ("attack", "bound", "measured", "control", "verdict", "s")
    table = Table(*columns, box=SIMPLE, pad_edge=False)
    for each in verdicts:
        seconds = f"{each.run_s:.0f}"
        said = [each.attack.name, each.attack.bound, each.measured, each.control]
        table.add_row(*map(escape, said), each.coloured, seconds)
    return table

"""`python -m tests.attacks`, or `make attack`: a broker is attacked from outside, in every way."""

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import trio
import typer
from rich.console import Console

from tests.attacks import memory, processor, resources
from tests.attacks.attack import Attack, Finding, Run, Size

ATTACKS = [*processor.ATTACKS, *resources.ATTACKS]

console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def main(
    only: Annotated[str, typer.Option(help="Names of attacks, with commas between.")] = "",
    share: Annotated[float, typer.Option(min=0.01, max=1, help="Of the full size.")] = 1.0,
) -> None:
    """Exit code 1: a bound does not hold, or a control has shown nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    names = [*(attack.name for attack in ATTACKS), *memory.ATTACKS]
    chosen = only.split(",") if only else names
    if not set(chosen) <= set(names):
        raise typer.BadParameter(f"attacks are {', '.join(names)}")
    held = {attack.name: show(attack, share) for attack in ATTACKS if attack.name in chosen}
    for name, attack in memory.ATTACKS.items():
        if name in chosen:
            held[name] = show_memory(name, memory.shrunk(attack, share))
    failed = [name for name, holds in held.items() if not holds]
    if failed:
        console.print(f"\n[red]not as promised:[/] {', '.join(failed)}")
        raise typer.Exit(1)
    console.print(f"\n{len(held)} attacks: every bound holds, and no control does")


def show_memory(name: str, attack: memory.Attack) -> bool:
    """Whether memory stays within its limit; the control is that more was offered."""
    began_s = time.monotonic()
    try:
        verdict = memory.judge(attack)
    except Exception as error:  # The broker broke the attack: the others go on.
        console.print(f"{name:<26} [red]broken[/] {error!r}")
        return False
    mark = "[green]holds[/]" if verdict.is_good else "[red]broken[/]"
    console.print(f"{name:<26} {mark:<8} memory stays within its limit")
    console.print(f"{'':<26} {verdict}; {time.monotonic() - began_s:.0f} s")
    return verdict.is_good


def show(attack: Attack, share: float) -> bool:
    """Whether the bound holds and the control does not."""
    began_s = time.monotonic()
    try:
        found = once(attack.run, share)
    except Exception as error:  # The broker broke the attack: the others go on.
        found = Finding(False, repr(error))
    control = once(attack.control, share)
    mark = "[green]holds[/]" if found.holds else "[red]broken[/]"
    console.print(f"{attack.name:<26} {mark:<8} {attack.bound}")
    shown = "" if not control.holds else " [red](it should not hold)[/]"
    took_s = time.monotonic() - began_s
    console.print(f"{'':<26} {found.said}; control: {control.said}{shown}; {took_s:.0f} s")
    return found.holds and not control.holds


def once(run: Run, share: float) -> Finding:
    with tempfile.TemporaryDirectory(prefix="flowguard-attack-") as folder:
        return trio.run(run, Size(Path(folder), share))


if __name__ == "__main__":
    typer.run(main)

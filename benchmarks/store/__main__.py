"""`python -m benchmarks.store`: run, show, and with --write put it into docs/benchmarks.md."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import machine
from benchmarks.__main__ import PAGE, console, split, without_page

from .conditions import Conditions
from .run import PARTS, run


def main(
    only: Annotated[str, typer.Option(help=f"Of {', '.join(PARTS)}, by comma.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of it, once.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write into the page.")] = False,
    page: Annotated[
        Path, typer.Option(help="The page for --write.", show_default="docs/benchmarks.md")
    ] = PAGE,
    strict: Annotated[bool, typer.Option("--strict", help="A missed bound fails, too.")] = False,
) -> None:
    """Measures flowguard's RocksDB store, on this machine.

    Exit status 1: something could not be measured (with --strict: or missed its bound).
    """
    wanted = split(only) or list(PARTS)
    if unknown := [part for part in wanted if part not in PARTS]:
        raise typer.BadParameter(f"unknown parts {unknown}; there are {', '.join(PARTS)}")
    machine.raise_descriptor_limit()
    conditions = Conditions(machine.choose_cores(), quick)
    command = " ".join(["python -m benchmarks.store", *without_page(sys.argv[1:])])
    measured, passed = run(wanted, conditions, console, page if write else None, command)
    if not measured or (strict and not passed):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

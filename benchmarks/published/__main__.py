"""`python -m benchmarks.published`: figures 3 and 4; with --write their pages and pictures."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated

import typer

from benchmarks import pages
from benchmarks.experiments.running import in_processes
from benchmarks.parts import Strict, Write, split

from .curves import observe
from .figures import FIGURES

console = pages.console()


def main(
    only: Annotated[
        str, typer.Option(help=f"By comma: {', '.join(figure.key for figure in FIGURES)}.")
    ] = "",
    scale: Annotated[float, typer.Option(min=0.005, max=1, help="Of the published crowd.")] = 1.0,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Runs at a time.")] = 2,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """The published comparison of two limiters, with ours as the new one, and none at all.

    Exit status 1 with --strict: a statement of the article does not hold here.
    """
    wanted = split(only) or [figure.key for figure in FIGURES]
    chosen = [figure for figure in FIGURES if figure.key in wanted]
    if len(chosen) < len(wanted):
        raise typer.BadParameter(f"there are {', '.join(figure.key for figure in FIGURES)}")
    good = True
    for figure in chosen:
        pool = ProcessPoolExecutor(jobs, get_context("spawn"))
        found = in_processes(pool, observe, figure.steps(scale), figure.key, console)
        report = figure.told(figure, [curves for _, curves in found], scale)
        good &= pages.tell(report, "Virtual time", console, pages.RESULTS if write else None)
    if strict and not good:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

"""`make bench-check` tests the benchmarks. Here: that they start, and that quoted results exist."""

import pkgutil
import re
from pathlib import Path

import benchmarks
from tests.support.compiled import run

ROOT = Path(__file__).parents[1]
START = """
import importlib, runpy, sys

programs, modules = (words.split(",") for words in sys.argv[1:])
for name in modules:
    importlib.import_module(name)
for name in programs:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, name
    else:
        sys.exit(f"{name} does not end after --help")
"""


def test_every_module_of_benchmarks_is_imported_and_every_program_prints_help() -> None:
    found = pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
    modules = {each.name for each in found if not each.name.endswith("__main__")}
    programs = set(re.findall(r"-m (benchmarks[.\w]*)", (ROOT / "Makefile").read_text()))
    assert len(programs) > 5
    run("-c", START, ",".join(sorted(programs)), ",".join(sorted(modules)))


def test_results_that_pages_quote_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    quoted = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"benchmarks/results/[\w.-]+\.\w+", page.read_text())
    }
    assert len(quoted) > 50
    assert not {each for each in quoted if not (ROOT / each[1]).exists()}

"""Which normative statements of the MQTT standards have a test that can fail: `make spec`.

A test says what it proves: `@pytest.mark.spec("MQTT-3.3.4-9", "v3:MQTT-3.1.4-5")`, plain for MQTT
5.0 and with `v3:` for 3.1.1, on a function, a class, a module (`pytestmark`) or a `pytest.param`.

What this program promises:

- It reads the markers from the source and imports no test: it takes a moment and needs no broker.
- A statement is covered if a marker that names it holds for at least one test that counts. A test
  does not count if it, a param of it, its class or its module is marked skip, skipif or xfail, or
  if one of them calls `pytest.skip` or `pytest.xfail` without a condition.
- The percentage is of the statements without a `why_not`. One with a `why_not` may have a test too.
- It exits with 1 if a marker names an unknown statement (all but literal strings are unknown), or
  if less than `--minimum` per cent of a standard is covered.

Whether a test proves what its marker says is for its reader to judge.
"""

import argparse
import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
OFF = {"mark.skip", "mark.skipif", "mark.xfail", "skip", "xfail"}  # without the "pytest."

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True, slots=True)
class Statement:
    """One table of a statement list; the head of the list explains the fields."""

    id: str
    section: str
    text: str
    applies: str
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Standard:
    name: str
    prefix: str  # what a marker puts in front of the id
    path: Path

    def statements(self) -> list[Statement]:
        tables = tomllib.loads(self.path.read_text(encoding="utf-8"))
        return [Statement(**table) for table in tables["statement"]]


STANDARDS = (
    Standard("MQTT 5.0", "", HERE / "mqtt5.toml"),
    Standard("MQTT 3.1.1", "v3:", HERE / "mqtt311.toml"),
)


@dataclass(frozen=True, slots=True)
class Marker:
    """One argument of one spec marker."""

    cited: str
    where: str  # file:line
    counts: bool  # it holds for a test that counts


@dataclass(frozen=True, slots=True)
class Coverage:
    standard: Standard
    statements: list[Statement]
    covered: frozenset[str]

    @property
    def due(self) -> list[Statement]:
        return [each for each in self.statements if not each.why_not]

    @property
    def untested(self) -> list[Statement]:
        return [each for each in self.due if each.id not in self.covered]

    @property
    def percent(self) -> float:
        return 100 * (1 - len(self.untested) / len(self.due)) if self.due else 100.0


def _name(node: ast.expr) -> str:
    return ast.unparse(node).removeprefix("pytest.")


def _marks(scope: Scope) -> list[ast.AST]:
    """Every node in the marks of scope itself: in its decorators, or in its `pytestmark`."""
    marks = [] if isinstance(scope, ast.Module) else list(scope.decorator_list)
    for child in scope.body:
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "pytestmark":
            marks.append(child.value)
    return [node for mark in marks for node in ast.walk(mark)]


def _is_off(scope: Scope) -> bool:
    """Whether scope is marked, or says in its body, that its tests are not to be relied on."""
    marks = {_name(node) for node in _marks(scope) if isinstance(node, ast.Attribute)}
    plain = [child.value for child in scope.body if isinstance(child, ast.Expr)]
    calls = {_name(line.func) for line in plain if isinstance(line, ast.Call)}
    return not OFF.isdisjoint(marks | calls)


def _cited(scope: Scope) -> Iterator[tuple[str, int]]:
    """What the spec markers of scope name, and the lines; source text for what is no string."""
    for node in _marks(scope):
        if isinstance(node, ast.Call) and _name(node.func) == "mark.spec":
            for argument in node.args:
                value = argument.value if isinstance(argument, ast.Constant) else None
                yield value if isinstance(value, str) else ast.unparse(argument), argument.lineno


def _read_scope(scope: Scope, *, file: str, off: bool) -> tuple[list[Marker], bool]:
    """The markers in scope, and whether it holds a test that counts."""
    off = off or _is_off(scope)
    below: list[Marker] = []
    if isinstance(scope, Function):
        counts = scope.name.startswith("test") and not off
    else:
        inherits = isinstance(scope, ast.ClassDef) and scope.bases and scope.name[:4] == "Test"
        counts = bool(inherits) and not off  # its tests may all stand in the base class
        for inner in scope.body:
            if isinstance(inner, ast.ClassDef | Function):
                markers, inner_counts = _read_scope(inner, file=file, off=off)
                below += markers
                counts = counts or inner_counts
    own = [Marker(cited, f"{file}:{line}", counts) for cited, line in _cited(scope)]
    return own + below, counts


def read_markers(folder: Path) -> list[Marker]:
    """Every spec marker in the Python files below folder."""
    markers: list[Marker] = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_bytes(), filename=str(path))
        file = path.relative_to(folder.parent).as_posix()
        markers += _read_scope(tree, file=file, off=False)[0]
    return markers


def measure(markers: Sequence[Marker]) -> tuple[list[Coverage], list[Marker]]:
    """The coverage of each standard, and the markers that name no statement."""
    covered = {marker.cited for marker in markers if marker.counts}
    known: set[str] = set()
    coverages = []
    for standard in STANDARDS:
        statements = standard.statements()
        ids = {standard.prefix + statement.id: statement.id for statement in statements}
        known |= ids.keys()
        tested = frozenset(ids[cited] for cited in covered & ids.keys())
        coverages.append(Coverage(standard, statements, tested))
    return coverages, [marker for marker in markers if marker.cited not in known]


def _table(coverage: Coverage, *, minimum: float) -> Table:
    table = Table("", "statements", title=coverage.standard.name, title_justify="left")
    table.columns[1].justify = "right"
    reasons = Counter(each.why_not for each in coverage.statements if each.why_not)
    table.add_row("in the standard", str(len(coverage.statements)))
    table.add_row("not applicable", str(reasons.total()))
    for reason, count in reasons.most_common():
        table.add_row(f"  {reason}", str(count), style="dim")
    table.add_row("for the server", str(len(coverage.due)))
    table.add_row("covered by a test", str(len(coverage.due) - len(coverage.untested)))
    table.add_row(f"coverage, at least {minimum:g} %", f"{coverage.percent:.1f} %", style="bold")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minimum", type=float, default=95.0, help="per cent, for each standard")
    parser.add_argument("--list-untested", action="store_true", help="print nothing else")
    options = parser.parse_args()
    console = Console(markup=False, highlight=False, soft_wrap=True)
    coverages, unknown = measure(read_markers(HERE.parent))
    for coverage in coverages:
        if not options.list_untested:
            console.print(_table(coverage, minimum=options.minimum))
        for statement in coverage.untested:
            console.print(f"{coverage.standard.prefix}{statement.id}  {statement.text}")
    for marker in unknown:
        console.print(f"{marker.where}: there is no statement {marker.cited!r}", style="red")
    return 1 if unknown or any(each.percent < options.minimum for each in coverages) else 0


if __name__ == "__main__":
    sys.exit(main())

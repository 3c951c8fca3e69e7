"""docs/explain/session.md has the tables of the code; a failure shows the text to paste."""

import ast
import inspect
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

import pytest

from flowguard.flow import Pause
from flowguard.session.states import CONNECTION, RECEIVED, SENT, Event, Step, Undelivered

PAGE = Path(__file__).parents[3] / "docs" / "explain" / "session.md"
SOURCES = Path(__file__).parents[3] / "src" / "flowguard"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def exchange(steps: Mapping[tuple[Enum, Event], Step]) -> str:
    return table(
        ("State", "What comes", "Answer", "Next state"),
        (
            (state.value, event.value, step.answer.value, step.state.value)
            for (state, event), step in steps.items()
        ),
    )


def reasons(kind: type[Enum], source: str) -> str:
    """Every member with what is said below it."""
    (found,) = (
        node
        for node in ast.parse((SOURCES / source).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    said = [node.value.value for node in found.body if isinstance(node, ast.Expr)][1:]
    texts = [inspect.cleandoc(str(text)).replace("\n", " ") for text in said]
    rows = zip(kind, texts, strict=True)
    return table(("Reason", "Why"), ((f"`{member.value}`", text) for member, text in rows))


TABLES = {
    "connection": table(
        ("State", "What comes", "Next state"),
        ((state.value, event, after.value) for (state, event), after in CONNECTION.items()),
    ),
    "to the client": exchange(SENT),
    "from the client": exchange(RECEIVED),
    "pauses": reasons(Pause, "flow/verdict.py"),
    "undelivered": reasons(Undelivered, "session/states.py"),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_shows_what_the_code_has(name: str) -> None:
    page = PAGE.read_text()
    shown = page.split(f"<!-- {name} -->\n", 1)[1].split("\n\n", 1)[0].rstrip("\n") + "\n"
    assert shown == TABLES[name], f"docs/explain/session.md, {name}: paste this\n{TABLES[name]}"

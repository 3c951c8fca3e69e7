"""A plugin for pytest: runs the property tests alone, and notes what each of them comes to.

    python -m pytest -p tests.soak.finds --noted FILE

FILE gets a line of JSON for each test that is over: an `Outcome`.
"""

import json
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import is_hypothesis_test

EXAMPLE: Final = "the failing example"
"""Under this name a report carries it from the process of the test to the one that notes it."""
RUNS_A_MACHINE: Final = "run_state_machine_as_test"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended; `error` and `example` are empty if it passed."""

    test: str
    error: str = ""
    example: str = ""
    """What Hypothesis says: the arguments or the steps, and the blob that repeats them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--noted", type=Path, required=True, help="file to note outcomes in")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the one process that hears of all tests
        config.pluginmanager.register(Notes(config.getoption("--noted")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In an order of the seed's: a round that is ended early has left out others each time."""
    properties = [item for item in items if is_property(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in properties])
    Random(config.getoption("--hypothesis-seed") or 0).shuffle(properties)
    items[:] = properties


def is_property(item: pytest.Item) -> bool:
    """Does Hypothesis draw its examples, by decorator or in a state machine that it runs?"""
    test = getattr(item, "obj", None)
    code = getattr(test, "__code__", None)
    return is_hypothesis_test(test) or (code is not None and RUNS_A_MACHINE in code.co_names)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and report.failed:
        example = "\n".join(notes(call.excinfo.value))
        report.user_properties.append((EXAMPLE, example))
    return report


def notes(error: BaseException) -> list[str]:
    """What Hypothesis has added to an error, or to each of a group."""
    found = list(getattr(error, "__notes__", ()))
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found += notes(inner)
    return found


class Notes:
    """Writes outcomes as they become known, so that a run that is ended early leaves them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            said: dict[str, Any] = dict(report.user_properties)
            self._note(Outcome(report.nodeid, report.longreprtext, said.get(EXAMPLE, "")))
        elif report.when == "call":
            self._note(Outcome(report.nodeid))

    def _note(self, outcome: Outcome) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

"""Names that clients give themselves: no command and no log line sends them to a terminal raw."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from rich.console import Console

from flowguard.broker.logs.output_lines import STDERR
from flowguard.cli.console import shown
from flowguard.cli.log_lines import log_to_stderr
from flowguard.cli.remote.answers import turned_down, understood
from flowguard.cli.remote.ask import NoAnswer
from flowguard.cli.remote.explain import show
from flowguard.config import LogSettings
from flowguard.ops.common.explanation import Explained
from flowguard.ops.view import View
from flowguard.records import NEVER_S, Append, Delivery, PutSession
from tests.store_tools.test_store import MESSAGE, open_store, run_here
from tests.support.stage import Stage

NAMES = [
    "\x1b[2J\x1b]0;title\x07",
    "a\nb is connected",
    "\u202ereversed",
    "\x9b1m",
    "a\rb",
    "\u2028",
]


@pytest.fixture(autouse=True)
def other_configuration() -> Iterator[None]:
    """The log of other tests is as it was."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def assert_escaped(said: str, name: str) -> None:
    assert not [each for line in said.split("\n") for each in line if not each.isprintable()]
    assert shown(name) in said
    assert name not in said


@pytest.mark.parametrize(
    "name", ["plain", "with blank", "m\u00fcller", "\U0001f600", "[red]", "\\n"]
)
def test_a_printable_name_is_shown_as_it_is(name: str) -> None:
    assert shown(name) == name


@pytest.mark.parametrize("name", NAMES)
def test_explain_escapes_a_client_id(name: str) -> None:
    stage = Stage()
    stage.connect(name)
    view = View(stage.node, lambda: stage.now_s, lambda: None)
    answer = json.loads(json.dumps(view.explained(name)))
    console = Console(file=io.StringIO(), markup=False, highlight=False, width=200)
    show(understood("url", 200, answer, Explained), console)
    assert isinstance(console.file, io.StringIO)
    assert_escaped(console.file.getvalue(), name)


@pytest.mark.parametrize("name", NAMES)
def test_all_texts_of_an_answer_are_escaped(name: str) -> None:
    answer = {"a": name, "b": [{"c": name}, 1, None], "d": {"e": [name]}}
    assert understood("url", 200, answer, dict) == json.loads(
        json.dumps(answer).replace(json.dumps(name), json.dumps(shown(name)))
    )
    for error in (NoAnswer(f"url: {name}"), turned_down("url", 500, {"error": name})):
        assert_escaped(str(error), name)


@pytest.mark.parametrize("name", NAMES)
def test_store_info_escapes_a_client_id(name: str, tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    message = Delivery(MESSAGE, 1, False, (), NEVER_S)
    store.commit([PutSession(name, 10, None), Append(name, 1, message)])
    store.close()
    code, said, _ = run_here("store", "info", str(tmp_path / "data"))
    assert code == 0
    assert_escaped(said, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["human", "json"])
def test_the_log_escapes_what_clients_say(
    form: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(LogSettings.model_validate({"format": form}))
    structlog.get_logger().warning("client rejected", client=name, count=1)
    STDERR.flush()
    said = capfd.readouterr().err
    assert not [each for line in said.split("\n") for each in line if not each.isprintable()]
    assert said.count("\n") == 1

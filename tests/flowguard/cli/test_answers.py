"""`top`, `explain` and `reload` at something that is no broker of their own version."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from flowguard.cli.remote.answers import misfit
from flowguard.cli.remote.top_screen import READ
from flowguard.ops.explain import Explanation, explain
from flowguard.ops.explain_words import sentences
from flowguard.ops.status import Status, status_of
from flowguard.ops.view import View
from flowguard.ops.web.endpoints import Endpoints
from flowguard.ops.web.http_connection import Request
from tests.flowguard.cli.http_port import run
from tests.support.stage import Stage

COMMANDS = {
    "top": ("top", "{url}", "--once"),
    "explain": ("explain", "c", "--url", "{url}"),
    "reload": ("reload", "--url", "{url}"),
}


@contextmanager
def server(
    answer: object, code: int = 200, authorizations: list[str | None] | None = None
) -> Iterator[str]:
    """A service that answers everything with this; its URL. It notes the header Authorization."""
    body = json.dumps(answer).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if authorizations is not None:
                authorizations.append(self.headers["Authorization"])
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def asked(command: str, url: str) -> tuple[int, str]:
    """Exit code and complaint, in one line."""
    code, _, complaint = run(*(part.format(url=url) for part in COMMANDS[command]))
    return code, " ".join(complaint.split())


OF_BROKERS = ("clients.sessions", "shadow")
"""What `top` shows only if it is there."""


def status() -> dict[str, Any]:
    stage = Stage()
    upstreams = {"away_s": 0.0, "why": "", "each": {}}  # Those of a proxy.
    return json.loads(json.dumps(status_of(stage.node, stage.now_s))) | {"upstreams": upstreams}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("answer", [{}, [], {"status": 1}, 7])
def test_another_service_is_told_from_a_broker(command: str, answer: object) -> None:
    with server(answer) as url:
        code, complaint = asked(command, url)
    assert code == 1
    assert "the answer differs from that of flowguard" in complaint or "no HTTP port" in complaint


def test_an_older_broker_is_named_as_that_with_what_it_lacks() -> None:
    older = status()
    del older["gate"]["buffered"]
    with server(older) as url:
        code, complaint = asked("top", url)
    assert code == 1
    assert "gate.buffered: Field required" in complaint
    assert "Another version" in complaint


def only(status: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """A status that has only these paths."""
    least: dict[str, Any] = {}
    for path in paths:
        key, _, inner = path.partition(".")
        value = status[key]
        if not inner or isinstance(value, list):
            least[key] = value
        else:
            least.setdefault(key, {})[inner] = value[inner]
    return least


def test_an_older_broker_that_lacks_only_what_top_does_not_show_is_shown() -> None:
    older = status() | {"memory": {"held_bytes": 1, "limit_bytes": 2}}
    del older["gate"]["cuts"]
    for answer in (older, only(older, READ)):
        with server(answer) as url:
            assert asked("top", url) == (0, "")


@pytest.mark.parametrize("path", [each for each in READ if each not in OF_BROKERS])
def test_what_top_shows_is_required(path: str) -> None:
    stage = status() | {"memory": {"held_bytes": 1, "limit_bytes": 2}}
    stage["decisions"] = [{"at_s": 1.0, "window": 2.0}]
    *above, last = path.split(".")
    table = stage
    for key in above:
        table = table[key]
    for each in table if isinstance(table, list) else [table]:
        del each[last]
    assert misfit(stage, Status, READ).replace(".0.", ".") == f"{path}: Field required"


def test_a_newer_broker_that_says_more_is_understood() -> None:
    with server(status() | {"news": 1}) as url:
        code, _ = asked("top", url)
    assert code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_of_the_broker_is_told_as_one(command: str) -> None:
    with server({"error": "the broker's log says more"}, 500) as url:
        code, complaint = asked(command, url)
    assert code == 1
    assert "the broker's log says more" in complaint
    assert "no HTTP port" not in complaint


def test_what_a_node_says_fits() -> None:
    stage = Stage()
    stage.connect("c")
    assert misfit(status(), Status) == ""
    explanation = json.loads(json.dumps(explain(stage.node, "c", stage.now_s)))
    assert misfit(explanation, Explanation) == ""


@pytest.mark.parametrize(
    ("place", "value", "wrong"),
    [
        (("window",), 1, "window: Input should be a valid dictionary"),
        (("decisions",), {}, "decisions: Input should be a valid list"),
        (("window", "limit"), "1", "window.limit: Input should be a valid integer"),
        (("window", "limit"), True, "window.limit: Input should be a valid integer"),
        (("window", "closed"), 1, "window.closed: Input should be a valid boolean"),
        (("why",), None, "why: Input should be a valid string"),
        (
            ("dropped",),
            {"queue_bytes": None},
            "dropped.queue_bytes: Input should be a valid integer",
        ),
        (("memory",), None, ""),
        (("memory",), {}, "memory.held_bytes: Field required"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(
    place: tuple[str, ...], value: object, wrong: str
) -> None:
    answer = status()
    table = answer
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    assert misfit(answer, Status) == wrong


def test_a_reason_that_only_another_version_knows_is_shown_by_its_name() -> None:
    stage = Stage()
    stage.connect("c")
    explanation = explain(stage.node, "c", stage.now_s)
    assert explanation is not None
    explanation["dropped"] = ["of_tomorrow"]
    assert "Dropped for it now: of_tomorrow." in sentences(explanation)


def test_service_without_the_path_is_named() -> None:
    paths = Endpoints(View(Stage().node, lambda: 0.0, lambda: None), (), ()).answer(
        Request("GET", "/nothing", {}, "127.0.0.1")
    )
    with server(json.loads(paths.body), paths.code) as url:
        for words in (("retained", "list"), ("clients", "forget", "c")):
            code, _, complaint = run(*words, "--url", url)
            assert code == 1
            assert "a proxy or another version listens there" in " ".join(complaint.split())

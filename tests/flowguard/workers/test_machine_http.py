"""Answers of the HTTP port of several workers to other machines."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from flowguard.app.workers.machine_http import MachineAnswers
from flowguard.app.workers.process import Worker
from flowguard.ops.web.http import Keys
from flowguard.ops.web.http_connection import Request
from flowguard.ops.web.reload import Reloaded


async def no_reload() -> Reloaded:
    raise AssertionError


@pytest.mark.parametrize(
    ("token", "path", "code"),
    [
        (None, "/", 403),
        (None, "/workers/0/", 403),
        (None, "/workers/0/events", 403),
        (None, "/workers/0/status", 503),
        (b"secret", "/workers/0/status", 401),
        (b"secret", "/workers/0/health", 503),
    ],
)
async def test_path_of_a_worker_has_the_rules_of_a_broker_with_one_worker(
    tmp_path: Path, token: bytes | None, path: str, code: int
) -> None:
    keys = Keys(frozenset(), token)
    answers = MachineAnswers([Worker(0)], tmp_path, no_reload, keys, lambda *_: None, trio.Event())
    request = Request("GET", path, {"host": "127.0.0.1"}, "192.0.2.1")
    connection = SimpleNamespace(is_served=False)
    response = await answers.respond(request, cast(Any, connection), cast(Any, None))
    assert response is not None
    assert response.code == code

"""Answers of the HTTP port of several workers to other machines."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from flowguard.app.workers.machine_http import MachineAnswers
from flowguard.app.workers.process import Worker
from flowguard.app.workers.worker_request import WorkerRequest
from flowguard.ops.web.callers import caller_of
from flowguard.ops.web.http import Keys
from flowguard.ops.web.http_connection import HttpConnection, Request
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
        (None, "/favicon.ico", 204),
        (None, "/limits", 200),
        (None, "/no-such-path", 404),
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


class Sent:
    """What a request writes."""

    def __init__(self) -> None:
        self.data = b""

    async def send_all(self, data: bytes) -> None:
        self.data += data


async def test_worker_gets_the_caller_of_a_change_for_the_audit() -> None:
    sent = Sent()
    await WorkerRequest(cast(Any, sent)).send("/clients/kick", b"{}", "192.0.2.1, with the token")
    for peer, caller in (("", "192.0.2.1, with the token"), ("192.0.2.9", "")):
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(sent.data)
        request = await HttpConnection(cast(Any, ours), peer).request()
        assert request is not None
        assert request.caller == caller
        assert caller_of(request) == (caller or "192.0.2.9, with the token")

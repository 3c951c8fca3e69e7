"""HTTP of several workers, on the port of the supervisor.

    GET /                      a row for each worker, with a link to its page, and the sums
    GET /metrics               samples of all workers, with the label `worker`
    GET /status                {"workers": [...]}: the status of each worker, null if it is down
    GET /limits                {"workers": [...]}: the limits of each worker, null if it is down
    GET /clients               the lists of one worker after the other, in pages; all workers have
                               the same retained messages
    GET /trace                 the lines of all workers
    GET /explain/{client_id}   the answer of the worker that owns the session
    GET /cluster               nodes and shards of a cluster; changes: `cluster_http`
    GET /health                200 while the supervisor runs
    GET /ready                 200 while all workers take clients (in a cluster: one); else 503
    GET /workers/{K}/{path}    the answer of worker K
    GET, POST /log             the levels of the log of all workers
    POST /clients/kick         also /clients/forget: done by the worker that owns the session
    POST /retained/delete      done by all workers
    POST /acl/test             answered by the worker that owns the session
    POST /reload               see `flowguard.ops.web.reload`
    POST /backup               a copy of each store, in subdirectories of the folder

Each worker answers on a Unix socket in the data directory, or at another node (`cluster_http`). The
supervisor judges callers, and the workers trust it. In a cluster all shards are the workers, except
for what one node does: /metrics, /ready, /log, and POST.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, Final, final
from urllib.parse import quote, urlencode

import h11
import trio

from flowguard.app.workers.cluster_http import OtherNodes, cluster_changes
from flowguard.app.workers.data_folder import take
from flowguard.app.workers.machine_metrics import metrics_response
from flowguard.app.workers.machine_trace import trace_all
from flowguard.app.workers.process import Worker, sentence_of
from flowguard.app.workers.readiness import ready_response
from flowguard.app.workers.seat import HTTP, name_of, socket_path
from flowguard.app.workers.worker_request import LOST, WorkerRequest
from flowguard.broker.logs.error_log import BoundedLog
from flowguard.broker.workers.unix_sockets import connect_unix
from flowguard.cluster.members import Members
from flowguard.ops.web.ask.acl import ACL_TEST, client_id_of_question
from flowguard.ops.web.ask.changes import (
    CLIENT_CHANGES,
    DELETE_RETAINED,
    Deleted,
    client_id_of,
    retained_filter_of,
)
from flowguard.ops.web.ask.lists import RETAINED, ROWS
from flowguard.ops.web.backup import folder_of
from flowguard.ops.web.callers import EVENTS, PAGE, TRACE, audit, caller_of
from flowguard.ops.web.drain import drain_response
from flowguard.ops.web.endpoints import (
    BACKUP,
    DRAIN,
    EXPLAIN,
    HEALTH,
    ICON,
    LOG,
    NO_ICON,
    READS,
    READY,
    RELOAD,
    there_is,
)
from flowguard.ops.web.http import Change, HttpServer, Keys, accept_all
from flowguard.ops.web.http_connection import (
    HttpConnection,
    Request,
    Response,
    json_response,
    text_response,
)
from flowguard.ops.web.log_levels import change_level, levels_response
from flowguard.ops.web.page import page_response
from flowguard.ops.web.reload import Reload, reload_response
from flowguard.ops.web.viewers import EVENT_STREAM
from flowguard.ops.web.workers_page import workers_page

ASK_S: Final = 5.0
"""Maximum wait for the answer of a worker, in seconds."""
STATUS_S: Final = 1.0
"""Maximum wait for the load of a shard, which the state of the cluster can lack, in seconds."""
DELETION_S: Final = 25.0
"""Maximum wait for the deletion of retained messages, in seconds."""
BACKUP_S: Final = 600.0
"""Maximum wait for the copy of one store, in seconds."""
WORKERS: Final = "/workers/"
READ_PATHS: Final = (
    *("/metrics", "/status", "/limits", *ROWS, TRACE),
    *(f"{EXPLAIN}CLIENT_ID", HEALTH, READY, LOG, f"{WORKERS}K/PATH"),
)
CLUSTER: Final = "/cluster"


@final
class MachineAnswers:
    """The answers of all workers together."""

    def __init__(
        self,
        workers: Sequence[Worker],
        data: Path,
        reload: Reload,
        keys: Keys,
        on_level: Callable[[str, str], None],
        stop: trio.Event,
        others: OtherNodes | None = None,
    ) -> None:
        """`on_level` is called with the kind and the level of a changed log level; `stop` ends the
        broker; `others`: the nodes of the cluster, if this is one of them."""
        self._workers = workers
        self._data = data
        self._reload = reload
        self._keys = keys
        self._on_level = on_level
        self._stop = stop
        self._others = others
        self._members = Members(name_of(0), 1, [worker.name for worker in workers])
        self._is_copying = False
        self._changes: dict[str, Change] = {
            BACKUP: self._copy,
            RELOAD: self._read_again,
            DRAIN: self._drain,
            **dict.fromkeys(CLIENT_CHANGES, partial(self._ask_owner, client_id_of)),
            ACL_TEST: partial(self._ask_owner, client_id_of_question),
            DELETE_RETAINED: self._delete_retained,
            LOG: self._change_level,
            **cluster_changes(others and others.duty),
        }
        self._there_is = there_is(READ_PATHS, self._changes)

    async def respond(
        self, request: Request, connection: HttpConnection, server: HttpServer
    ) -> Response | None:
        index, path = self._target(request.path)
        refusal = self._keys.refusal_of(replace(request, path=path))
        if refusal is not None:
            return refusal
        connection.is_served = True
        try:
            if request.method == "POST" and index is None:
                change = self._changes.get(path)
                if change is None:
                    return json_response(self._there_is, 404)
                refusal = self._keys.refusal_of_change(request)
                return refusal or await change(request, connection)
            if request.method not in READS:
                return json_response(self._there_is, 405, allow=", ".join(READS))
            if path == TRACE and request.method == "GET":
                return await self._trace(index, request, connection, server)
            if index is None and path in ROWS:
                return await self._listed(request)
            if index is None:
                return await self._read(path)
            if path == PAGE:
                return page_response()
            if path == EVENTS and request.method == "GET":
                return await self._watch(index, connection, server)
            return await self._forward(index, path, request.query)
        finally:
            connection.is_served = False

    def _target(self, path: str) -> tuple[int | None, str]:
        """Return the worker that a path names, or None, and the path at this worker."""
        index, slash, rest = path.removeprefix(WORKERS).partition("/")
        is_one = path.startswith(WORKERS) and slash and index.isdecimal()
        if is_one and int(index) < len(self._workers):
            return int(index), f"/{rest}"
        return None, path

    async def _read(self, path: str) -> Response:
        if path == PAGE:
            statuses = await self._statuses()
            names = [(each.name, each.elsewhere or "down") for each in self._workers]
            section = "" if self._others is None else self._others.section(statuses)
            return workers_page(sentence_of(self._workers), names, statuses, section)
        if path == LOG:
            return levels_response()
        if path == ICON:
            return NO_ICON
        if path == HEALTH:
            return text_response("alive")
        if path == READY:
            return await self._ready()
        if path == CLUSTER and self._others is not None:
            return json_response(self._others.status(await self._statuses(STATUS_S)))
        if path == "/metrics":
            of_cluster = b"" if self._others is None else self._others.metrics()
            return metrics_response(self._workers, await self._ask_all(path), of_cluster)
        if path in ("/status", "/limits"):
            answers = await self._ask_all(path, everywhere=True)
            return json_response({"workers": [_json(answer) for answer in answers]})
        if path.startswith(EXPLAIN):
            index = self._owner_of(path.removeprefix(EXPLAIN))
            answer = await self._forward(index, path)
            return answer if self._others is None else self._others.located(answer, index)
        return json_response(self._there_is, 404)

    async def _statuses(self, timeout_s: float = ASK_S) -> list[Any]:
        answers = await self._ask_all("/status", timeout_s=timeout_s, everywhere=True)
        return [_json(answer) for answer in answers]

    def _owner_of(self, client_id: str) -> int:
        owner = self._members.owner_of(client_id)
        return [each.name for each in self._workers].index(owner)

    def _unavailable(self, index: int) -> Response:
        worker = self._workers[index]
        why = worker.elsewhere or "does not answer"
        return json_response({"error": f"{worker.name} {why}"}, 503)

    async def _forward(
        self, index: int, path: str, query: Mapping[str, str] | None = None
    ) -> Response:
        answer = await self._ask(
            index, f"{quote(path)}?{urlencode(query)}" if query else quote(path)
        )
        return self._unavailable(index) if answer is None else answer

    async def _listed(self, request: Request) -> Response:
        """Return a page of one worker; the cursor names the worker and its own cursor."""
        number, _, cursor = request.query.get("cursor", "").partition("-")
        least = int(number) if number.isascii() and number.isdecimal() else 0
        if least >= len(self._workers):
            return json_response({"error": "cursor: no such worker"}, 400)
        answer = await self._forward(least, request.path, {**request.query, "cursor": cursor})
        if answer.code != 200:
            return answer
        page = json.loads(answer.body)
        if page["next"] is not None:
            page["next"] = f"{least}-{page['next']}"
        elif least < len(self._workers) - 1 and request.path != RETAINED:
            page["next"] = f"{least + 1}-"
        return json_response(page)

    async def _drain(self, request: Request, connection: HttpConnection) -> Response:
        """Let all workers drain, and then end."""
        over_s: list[float] = []

        def begin(value: float) -> bool:
            over_s.append(value)
            return not self._stop.is_set()

        response = await drain_response(begin, request, connection)
        if response.code == 200:
            await self._ask_all(DRAIN, json.dumps({"over_s": over_s[0]}).encode())
            self._stop.set()
        return response

    async def _ask_owner(
        self, client_id_of: Callable[[bytes], str], request: Request, connection: HttpConnection
    ) -> Response:
        body = await connection.body()
        index = self._owner_of(client_id_of(body))
        answer = await self._ask(index, request.path, body, 2 * ASK_S, caller_of(request))
        return self._unavailable(index) if answer is None else answer

    async def _delete_retained(self, request: Request, connection: HttpConnection) -> Response:
        """Let each worker delete the messages that it orders."""
        filter = retained_filter_of(await connection.body())
        body = json.dumps({"filter": filter}).encode()
        deleted, goes_on = 0, False
        asked = (request.path, body, DELETION_S, caller_of(request))
        for index, answer in enumerate(await self._ask_all(*asked, everywhere=True)):
            if answer is None:
                return self._unavailable(index)
            if answer.code != 200:
                return answer
            done: Deleted = json.loads(answer.body)
            deleted += done["deleted"]
            goes_on |= done["goes_on"]
        return json_response(Deleted(deleted=deleted, goes_on=goes_on))

    async def _ready(self) -> Response:
        """Return the state of all workers, with the reason of each that takes no clients."""
        answers = await self._ask_all(READY)
        draining, trouble = self._stop.is_set(), ""
        in_cluster = self._others is not None
        if self._others is not None:
            draining |= self._others.is_drained
            trouble = self._others.duty.trouble
        return ready_response(
            self._workers, answers, in_cluster=in_cluster, draining=draining, trouble=trouble
        )

    async def _read_again(self, request: Request, _: HttpConnection) -> Response:
        return await reload_response(self._reload, request)

    async def _copy(self, request: Request, connection: HttpConnection) -> Response:
        folder = folder_of(await connection.body())
        if self._is_copying:
            return json_response({"error": "a copy is being made"}, 429, retry_after="1")
        self._is_copying = True
        try:
            return await self._backup(folder)
        finally:
            self._is_copying = False

    async def _change_level(self, request: Request, connection: HttpConnection) -> Response:
        """Change a level here, in all workers, and in those that start later."""
        response, changed = await change_level(request, connection)
        if changed is not None:
            kind, level = changed
            self._on_level(kind, level)
            body = json.dumps({"kind": kind, "level": level}).encode()
            answers = await self._ask_all(LOG, body)
            silent = [index for index, answer in enumerate(answers) if answer is None]
            if silent and self._workers[silent[0]].is_ready:
                return self._unavailable(silent[0])
        return response

    async def _backup(self, folder: Path) -> Response:
        """Copy the stores one after the other; the note of their number comes last."""
        try:
            await trio.Path(folder).mkdir()
        except OSError as error:
            return json_response({"error": f"{folder}: {error.strerror}"}, 409)
        for index in range(len(self._workers)):
            body = json.dumps({"folder": str(folder / name_of(index))}).encode()
            answer = await self._ask(index, BACKUP, body, BACKUP_S)
            if answer is None:
                return self._unavailable(index)
            if answer.code != 200:
                return answer
        await trio.to_thread.run_sync(take, folder, len(self._workers))
        return json_response({"folder": str(folder)})

    async def _ask_all(
        self,
        path: str,
        body: bytes = b"",
        timeout_s: float = ASK_S,
        caller: str = "",
        *,
        everywhere: bool = False,
    ) -> list[Response | None]:
        """Return the answer of each worker; with `everywhere` also of those on other nodes."""
        answers: list[Response | None] = [None] * len(self._workers)

        async def ask(index: int) -> None:
            answers[index] = await self._ask(index, path, body, timeout_s, caller)

        async with trio.open_nursery() as nursery:
            for worker in self._workers:
                if everywhere or worker.process is not None:
                    nursery.start_soon(ask, worker.index)
        return answers

    async def _connect(self, index: int) -> trio.abc.Stream | None:
        """Return a connection to a worker, or None if it does not serve."""
        worker = self._workers[index]
        if worker.process is None and self._others is not None:
            return await self._others.connect(index)
        sock = connect_unix(socket_path(self._data, index, HTTP)) if worker.serves else None
        return None if sock is None else trio.SocketStream(trio.socket.from_stdlib_socket(sock))

    async def _ask(
        self,
        index: int,
        path: str,
        body: bytes = b"",
        timeout_s: float = ASK_S,
        caller: str = "",
    ) -> Response | None:
        """Return the answer of a worker to `path`, which is encoded, or None if it gives none.

        `caller` is the caller of a change, for the audit.
        """
        stream = await self._connect(index)
        if stream is None:
            return None
        answer = None
        async with stream:
            with trio.move_on_after(timeout_s), suppress(*LOST):
                asked = WorkerRequest(stream)
                await asked.send(path, body, caller)
                head = await asked.next()
                if isinstance(head, h11.Response):
                    answer = await asked.rest(head)
        return answer

    async def _watch(
        self, index: int, connection: HttpConnection, server: HttpServer
    ) -> Response | None:
        """Pass on the samples of a worker until it or the viewer ends."""
        stream = await self._connect(index)
        if stream is None:
            return self._unavailable(index)
        async with stream:
            with suppress(*LOST):
                asked = WorkerRequest(stream)
                await asked.send(EVENTS)
                head = await asked.next()
                if not isinstance(head, h11.Response) or head.status_code != 200:
                    return self._unavailable(index)
                server.leave_out(connection)  # The worker has a limit on viewers.
                connection.is_served = False
                await connection.begin(EVENT_STREAM)
                while isinstance(event := await asked.next(), h11.Data):
                    await connection.go_on(bytes(event.data))
        return None

    async def _trace(
        self, index: int | None, request: Request, connection: HttpConnection, server: HttpServer
    ) -> Response | None:
        """Pass on the lines of a worker, or of all that may have the clients."""
        chosen: Sequence[int] = range(len(self._workers)) if index is None else [index]
        async with AsyncExitStack() as opened:
            asked: list[WorkerRequest] = []
            for each in chosen:
                stream = await self._connect(each)
                if stream is None:
                    return self._unavailable(each)
                asked.append(WorkerRequest(await opened.enter_async_context(stream)))

            def begin() -> None:
                audit(request, json_response({}), **request.query)
                server.leave_out(connection)  # The workers have a limit on traces.
                connection.is_served = False

            return await trace_all(asked, request, connection, begin)


async def serve_machine(
    answers: MachineAnswers,
    listener: socket,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address."""
    errors = BoundedLog("http request failed", "error")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(errors.run)
        task_status.started(listener.getsockname()[:2])
        await accept_all(listener, HttpServer(answers.respond, errors.raised))


def _json(answer: Response | None) -> Any:
    return None if answer is None or answer.code != 200 else json.loads(answer.body)

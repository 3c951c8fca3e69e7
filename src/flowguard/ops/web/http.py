"""HTTP: metrics, status and health on a port of their own, from inside the broker's event loop.

    GET /                      the page: the node, live (`ops.web.page`)
    GET /events                the data of the page, once a second, as a stream of events
    GET /trace                 packets and decisions of chosen clients, line by line (`ops.trace`)
    GET /metrics               for Prometheus
    GET /status                the node at this instant, JSON
    GET /clients               also /subscriptions, /topics/who-gets, /retained: lists in pages,
                               JSON (`ops.web.ask.lists`)
    GET /limits                limits in force, each with its origin, JSON
    GET /explain/{client_id}   one client, JSON; 404 without a session of that name
    GET /health                200 while the event loop runs
    GET /ready                 200 while the node takes clients, 503 with the reason otherwise
    POST /clients/kick         also /clients/forget, /retained/delete (`ops.web.ask.changes`)
    POST /acl/test             {"client_id": "...", "action": "publish", "topic": "..."}
    POST /drain                {"over_s": 300}: disconnect all clients over this time, and end
    POST /backup               {"folder": "..."}: copy the store to it; from this machine only
    POST /reload               read certificates, users, keys and rules again; this machine only
    GET /log                   the levels of the log (`ops.web.log_levels`)
    POST /log                  {"kind": "clients", "level": "debug"}; from this machine only

If no token is configured, page and traces are for this machine only, and the rest is open to all
callers that reach the port. Keep it on 127.0.0.1, or behind a proxy (`callers`). Connections do not
wait to be accepted: at the maximum, the oldest that waits for its peer is closed. Answers that cost
time of the event loop are made in turn; /health and /ready cost none and do not wait.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from socket import socket
from typing import Final, final

import trio

from flowguard.broker.logs.error_log import BoundedLog, printable
from flowguard.broker.memory import memory_gauge
from flowguard.broker.server import listen as listen_broker
from flowguard.broker.sockets.listeners import OUT_OF_DESCRIPTORS
from flowguard.node.node import Node
from flowguard.node.upkeep.holdings import held_bytes
from flowguard.ops.common.measurement import MemoryStatus
from flowguard.ops.common.view import Subject
from flowguard.ops.queued import QueuedMessages
from flowguard.ops.samples import Sampler
from flowguard.ops.trace.web import Traces
from flowguard.ops.view import View
from flowguard.ops.web.ask.acl import ACL_TEST, acl_response
from flowguard.ops.web.ask.changes import (
    CLIENT_CHANGES,
    DELETE_RETAINED,
    EndClient,
    RetainedChanges,
    change_client,
    end_client,
)
from flowguard.ops.web.ask.collected import prepare
from flowguard.ops.web.ask.lists import ListAnswers, MakeListing, listings_of
from flowguard.ops.web.backup import Backup, Backups
from flowguard.ops.web.callers import (
    EVENTS,
    TRACE,
    refusal_of_change,
    refusal_of_origin,
    refusal_of_stranger,
)
from flowguard.ops.web.drain import Drain, drain_response
from flowguard.ops.web.endpoints import (
    BACKUP,
    DRAIN,
    LOCAL_CHANGES,
    LOG,
    PROBES,
    READS,
    RELOAD,
    Endpoints,
)
from flowguard.ops.web.hosts import is_ours
from flowguard.ops.web.http_connection import (
    BadRequest,
    HttpConnection,
    Request,
    Response,
    json_response,
)
from flowguard.ops.web.log_levels import change_level
from flowguard.ops.web.reload import Reload, reload_response
from flowguard.ops.web.turns import AnswerTurns
from flowguard.ops.web.viewers import serve_viewer
from flowguard.telemetry.progress import RecordingProgress

CONNECTIONS_MAX: Final = 32
"""Maximum number of open connections; one more replaces the oldest that waits for its peer."""
ACCEPTS_MAX: Final = CONNECTIONS_MAX // 2
"""Connections accepted in a row, so that each is read before another can replace it."""
BACKLOG: Final = 256
ACCEPT_REST_S: Final = 1.0
"""Pause after a failed accept, seconds: descriptors are short, and MQTT clients go first."""


def listen(host: str, port: int) -> socket:
    """Return a listening socket for `serve_http`; port 0 selects a free one. Raises OSError."""
    sock = listen_broker(host, port)
    sock.listen(BACKLOG)
    return sock


async def serve_http(
    node: Node,
    clock: Callable[[], float],
    listener: socket,
    backup: Backup,
    recording: RecordingProgress | None = None,
    reload: Reload | None = None,
    token: bytes | None = None,
    origins: Mapping[str, str] | None = None,
    drain: Drain = lambda _: False,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on `listener` until cancelled, then close it; starts with its address.

    `reload`: reloads the files of listeners, or None if there are none. `token`: other machines
    must send it; without a token they cannot get the page, but all the rest. `origins`: the file,
    variable or option of each setting that has one. `drain`: drains and ends the broker.

    An error ends its connection and is logged, a few per interval.
    """
    limit_bytes = node.bounds.memory_bytes
    queued = QueuedMessages(node)
    with memory_gauge() as resident_bytes, listener:
        view = View(
            node,
            clock,
            lambda: MemoryStatus(
                held_bytes=held_bytes(node),
                resident_bytes=resident_bytes(),
                limit_bytes=limit_bytes,
            ),
            recording,
            queued,
        )
        interval_s, turns = node.settings.http.backup_interval_s, AnswerTurns()
        retained = RetainedChanges(node, clock, turns)
        site = Site(
            view,
            listings_of(node, clock),
            partial(end_client, node, clock),
            drain,
            reload,
            CLIENT_CHANGES,
            {
                BACKUP: Backups(backup, trio.current_time, interval_s).answer,
                DELETE_RETAINED: retained.delete,
                ACL_TEST: partial(acl_response, node),
            },
            {TRACE: Traces(node, clock, turns).serve},
            token,
            origins,
            turns,
            partial(prepare, view, queued, turns),
        )
        await serve_site(site, listener, task_status=task_status)


@final
@dataclass(frozen=True, slots=True)
class Site:
    """The parts of an HTTP port, of a broker or a proxy."""

    view: Subject
    listings: Mapping[str, MakeListing]
    """Lists by path."""
    end_client: EndClient
    drain: Drain
    reload: Reload | None
    """Reloads files, or None if there are none."""
    client_changes: tuple[str, ...]
    """Paths that `end_client` serves."""
    more_changes: "Mapping[str, Change]"
    more_streams: "Mapping[str, Stream]"
    token: bytes | None
    origins: Mapping[str, str] | None
    turns: AnswerTurns = field(default_factory=AnswerTurns)
    prepare: "Prepare | None" = None


async def serve_site(
    site: Site,
    listener: socket,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address. The caller closes the listener."""
    errors = BoundedLog("http request failed", "error")
    sampler = Sampler(site.view, errors.raised)
    lists = ListAnswers(site.listings, site.turns)
    changes: dict[str, Change] = {
        **site.more_changes,
        DRAIN: partial(drain_response, site.drain),
        **dict.fromkeys(site.client_changes, partial(change_client, site.end_client)),
        LOG: _new_level,
    }
    if site.reload is not None:
        changes[RELOAD] = partial(_reloaded, site.reload)
    keys = Keys(frozenset(site.view.bounds.settings.http.names), site.token)
    streams: dict[str, Stream] = {EVENTS: partial(serve_viewer, sampler), **site.more_streams}
    reads = (*streams, *site.listings)
    endpoints = Endpoints(site.view, reads, changes, site.origins)
    answers = _Answers(endpoints, keys, changes, streams, lists, site.turns, site.prepare)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(errors.run)
        nursery.start_soon(sampler.run)
        task_status.started(listener.getsockname()[:2])
        await accept_all(listener, HttpServer(answers.respond, errors.raised))


async def accept_all(listener: socket, server: "HttpServer") -> None:
    """Serve each connection, until cancelled."""
    listener.setblocking(False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.rejections.run)
        while True:
            await trio.lowlevel.wait_readable(listener)
            for connection in await _accept(listener):
                server.let_in(connection)
                nursery.start_soon(server.serve, connection)


async def _accept(listener: socket) -> list[HttpConnection]:
    connections: list[HttpConnection] = []
    while len(connections) < ACCEPTS_MAX:
        try:
            sock, address = listener.accept()
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                continue  # The peer has disconnected already.
            if not connections:  # Accepted connections go first.
                await trio.sleep(ACCEPT_REST_S)
            break
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        connections.append(HttpConnection(stream, address[0] if address else ""))
    return connections


@final
@dataclass(frozen=True, slots=True)
class Keys:
    """The host names and the token that a request must have."""

    names: frozenset[str]
    token: bytes | None

    def refusal_of(self, request: Request) -> Response | None:
        """Return 421, 403 or 401 with the reason, or None if the caller may ask."""
        host = request.headers.get("host")
        if not is_ours(host, self.names):
            why = f"{host} is no name of this port: ask it by its address, or set http.names"
            return json_response({"error": why}, 421)
        refusal = refusal_of_origin(request)
        if refusal is not None or request.path in PROBES:
            return refusal
        return refusal_of_stranger(request, self.token)

    def refusal_of_change(self, request: Request) -> Response | None:
        """Return 403 for a caller that may not make this change, or None."""
        with_token = self.token is not None and request.path not in LOCAL_CHANGES
        return refusal_of_change(request, with_token=with_token)


Respond = Callable[[Request, HttpConnection, "HttpServer"], Awaitable[Response | None]]
"""Answers a request, or returns None if its connection is already answered."""


@final
class HttpServer:
    """Serves a bounded number of connections, and answers each of them once."""

    def __init__(self, respond: Respond, on_error: Callable[[BaseException], None]) -> None:
        self._respond_to = respond
        self._on_error = on_error
        self.rejections = BoundedLog("audit")
        """Rejected changes, a few per interval."""
        self._open: dict[HttpConnection, None] = {}
        """Open connections, in order of arrival."""

    def let_in(self, connection: HttpConnection) -> None:
        """Add the connection; at the maximum, close the oldest that waits for its peer."""
        if len(self._open) >= CONNECTIONS_MAX:
            oldest = next(other for other in self._open if not other.is_served)
            oldest.close()
            del self._open[oldest]
        self._open[connection] = None

    def leave_out(self, connection: HttpConnection) -> None:
        """Stop counting the connection, because it has another slot."""
        self._open.pop(connection, None)

    async def serve(self, connection: HttpConnection) -> None:
        try:
            response = await self._respond(connection)
            if response is not None:
                await connection.answer(response)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The peer has disconnected, or the connection was replaced.
        except Exception as error:
            self._on_error(error)
        finally:
            connection.close()
            self._open.pop(connection, None)

    async def _respond(self, connection: HttpConnection) -> Response | None:
        """Return the answer to its request, or None without one. Raises trio's errors of a lost
        peer."""
        try:
            request = await connection.request()
            if request is None:
                return None
            response = await self._respond_to(request, connection, self)
            if response is not None and request.method not in READS:
                self._audit_rejection(request, response)
            return response
        except BadRequest as refusal:
            return json_response({"error": str(refusal)}, refusal.code)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception as error:
            self._on_error(error)
            return json_response({"error": "the broker's log says more"}, 500)

    def _audit_rejection(self, request: Request, response: Response) -> None:
        if response.code in (401, 403) and self.rejections.may_show(str(response.code)):
            action = printable(request.path.removeprefix("/"))
            self.rejections.show(action=action, by=request.peer, status=response.code)


Change = Callable[[Request, HttpConnection], Awaitable[Response]]
"""Makes a change that its caller may make; reads the body of the request itself."""

Stream = Callable[[Request, HttpConnection, Callable[[], None]], Awaitable[Response | None]]
"""Sends data until its peer leaves, or returns why it does not. It calls the function before the
first data."""


Prepare = Callable[[Request], Awaitable[Response | None]]
"""Collects what the answer to a read request needs, or returns why it is not answered."""


@final
@dataclass(frozen=True, slots=True)
class _Answers:
    endpoints: Endpoints
    keys: Keys
    changes: Mapping[str, Change]
    streams: Mapping[str, Stream]
    lists: ListAnswers
    turns: AnswerTurns
    prepare: Prepare | None

    async def respond(
        self, request: Request, connection: HttpConnection, server: HttpServer
    ) -> Response | None:
        refusal = self.keys.refusal_of(request)
        if refusal is not None:
            return refusal
        stream = self.streams.get(request.path)
        if stream is not None and request.method == "GET":
            # The readers of streams have their own slots.
            return await stream(request, connection, lambda: server.leave_out(connection))
        if request.path in PROBES and request.method in READS:
            return self.endpoints.probe(request)
        change = self.changes.get(request.path)
        if change is not None and request.method == "POST":
            refusal = self.keys.refusal_of_change(request)
            return refusal or await change(request, connection)
        connection.is_served = True
        if self.lists.has(request.path) and request.method in READS:
            response = await self.lists.answer(request)
        else:
            response = await self._made(request)
        connection.is_served = False
        return response

    async def _made(self, request: Request) -> Response:
        if self.prepare is not None and request.method in READS:
            refusal = await self.prepare(request)
            if refusal is not None:
                return refusal
        return await self.turns.take(lambda: self.endpoints.answer(request))


async def _reloaded(reload: Reload, request: Request, connection: HttpConnection) -> Response:
    connection.is_served = True
    try:
        return await reload_response(reload, request)
    finally:
        connection.is_served = False


async def _new_level(request: Request, connection: HttpConnection) -> Response:
    response, _ = await change_level(request, connection)
    return response

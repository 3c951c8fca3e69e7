"""One request and its answer on one HTTP/1 connection, with h11; every wait for the peer ends.

    connection = HttpConnection(stream, peer="127.0.0.1")
    request = await connection.request()
    await connection.answer(json_response({"path": request.path}))

Memory per peer is bounded: HEADER_BYTES_MAX of a header, BODY_BYTES_MAX of a body, one answer. A
connection serves only one request, so nothing is kept between two.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Final, TypeVar, cast, final
from urllib.parse import parse_qsl, unquote

import h11
import trio
from pydantic import TypeAdapter, ValidationError

HEADER_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_MAX: Final = 16 * 1024
RECEIVE_BYTES: Final = 4 * 1024
REQUEST_S: Final = 3.0
"""Maximum time from accept to a complete request, seconds."""
ANSWER_S: Final = 10.0
"""Maximum time until the peer has taken the answer, seconds."""
LINGER_S: Final = 1.0
"""Time after the answer for a peer that still sends, seconds; an immediate close would discard the
answer."""
PIECE_BYTES: Final = 16 * 1024
"""Size of the parts in which an answer is sent, one in each step of the event loop, bytes."""
STREAM_BUFFER_BYTES: Final = 64 * 1024
"""Kernel memory of a stream that its peer does not read, bytes."""
ALWAYS: Final = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
LOOPBACK: Final = "127.0.0.1"
CALLER: Final = "x-flowguard-caller"
"""Header with the caller of a request that the supervisor passes on to a worker."""
JSON_TYPE: Final = "application/json"
T = TypeVar("T")


class BadRequest(Exception):
    """A request that cannot be answered; `code` is the status, the text its reason in one line."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@final
@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request, without its body."""

    method: str
    path: str
    """The decoded path, without the query."""
    headers: Mapping[str, str]
    """The headers by lower-case name; values of a name that comes twice are joined by commas."""
    peer: str
    """The address of the peer."""
    query: Mapping[str, str] = field(default_factory=dict)
    """The decoded parameters; of a name that comes twice, the last."""
    caller: str = ""
    """The caller that the supervisor names, or "" if the peer is the caller."""


@final
@dataclass(frozen=True, slots=True)
class Response:
    code: int
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


def json_response(body: object, code: int = 200, **headers: str) -> Response:
    """A response in JSON; `retry_after="1"` becomes the header `retry-after`."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Response(code, json.dumps(body, allow_nan=False).encode(), JSON_TYPE, named)


def text_response(text: str, code: int = 200) -> Response:
    return Response(code, f"{text}\n".encode(), "text/plain; charset=utf-8")


def form_of(body: bytes, form: type[T], hint: str) -> T:
    """Return `body`, JSON in the form of TypedDict `form`; raises BadRequest with `hint`."""
    try:
        return TypeAdapter(form).validate_json(body, strict=True)
    except ValidationError as error:
        raise BadRequest(400, f"a body of JSON: {hint}") from error


@final
class HttpConnection:
    """Reads one request from `stream`, writes one answer to it."""

    def __init__(self, stream: trio.SocketStream, peer: str) -> None:
        """`peer`: its address, or "" for the supervisor, which has checked the caller."""
        self._stream = stream
        self._peer = peer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        self._until_s = trio.current_time() + REQUEST_S
        self._head_left: int | None = HEADER_BYTES_MAX
        """Bytes that the header may still have, or None if it is complete."""
        self._is_silent = True
        """True if no data came yet, so that no peer waits for an answer."""
        self._has_body = True
        """True if the answer has a body, and not only a header."""
        self.is_served = False
        """True if it waits for the broker, not for its peer."""

    async def request(self) -> Request | None:
        """Return the request, or None. Raises BadRequest, and trio's errors of a lost peer."""
        event = await self._next()
        if not isinstance(event, h11.Request):
            return None
        self._head_left = None
        self._has_body = event.method != b"HEAD"
        headers: dict[str, str] = {}
        for name, value in event.headers:
            key, text = name.decode("ascii"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        path, _, query = event.target.decode("ascii").partition("?")
        named = dict(parse_qsl(query, keep_blank_values=True))
        method, peer = event.method.decode("ascii"), self._peer or LOOPBACK
        caller = "" if self._peer else headers.get(CALLER, "")
        return Request(method, unquote(path), headers, peer, named, caller)

    async def body(self) -> bytes:
        """Return the request's body; raises BadRequest, and trio's errors of a lost peer."""
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        body = b""
        while isinstance(event := await self._next(), h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                raise BadRequest(413, f"a body has at most {BODY_BYTES_MAX} bytes here")
        return body

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise BadRequest(error.error_status_hint, str(error)) from error
            if event is not h11.NEED_DATA:
                return cast(h11.Event, event)
            await self._receive()

    async def _receive(self) -> None:
        most, left = RECEIVE_BYTES, self._head_left
        if left is not None:
            # h11 also has a limit, but it accepts a header that the last read has completed.
            if not left:
                raise BadRequest(431, f"a header has at most {HEADER_BYTES_MAX:,} bytes here")
            most = min(most, left)
        with trio.move_on_at(self._until_s) as waited:
            data = await self._stream.receive_some(most)
        if not waited.cancelled_caught:
            if left is not None:
                self._head_left = left - len(data)
            self._is_silent = self._is_silent and not data
            self._http.receive_data(data)
        elif self._is_silent:
            self._http.receive_data(b"")
        else:
            raise BadRequest(408, f"a request has to be complete after {REQUEST_S:g} seconds")

    async def answer(self, response: Response) -> None:
        """Write the answer and end the stream; give up on a peer that does not take it in time."""
        head = h11.Response(
            status_code=response.code,
            headers=[
                ("content-type", response.content_type),
                ("content-length", str(len(response.body))),
                ("connection", "close"),
                *ALWAYS,
                *response.headers,
            ],
        )
        body = response.body if self._has_body else b""
        with trio.move_on_after(ANSWER_S):
            await self._send(head, h11.Data(data=body[:PIECE_BYTES]))
            for begin in range(PIECE_BYTES, len(body), PIECE_BYTES):
                await self._send(h11.Data(data=body[begin : begin + PIECE_BYTES]))
            await self._send(h11.EndOfMessage())
            await self._stream.send_eof()
            with trio.move_on_after(LINGER_S):
                while await self._stream.receive_some(RECEIVE_BYTES):
                    pass

    async def begin(self, content_type: str) -> None:
        """Write the head of an answer that continues with `go_on` until its peer disconnects. The
        socket buffers little of it. Raises trio's errors of a lost peer."""
        self._stream.setsockopt(SOL_SOCKET, SO_SNDBUF, STREAM_BUFFER_BYTES)
        headers = [("content-type", content_type), ("connection", "close"), *ALWAYS]
        await self._send(h11.Response(status_code=200, headers=headers))

    async def go_on(self, data: bytes) -> None:
        """Write more; raises TooSlowError for a slow peer, and trio's errors of a lost peer."""
        with trio.fail_after(ANSWER_S):
            await self._send(h11.Data(data=data))

    async def finish(self) -> None:
        """End such an answer, so that its peer knows that it is complete."""
        with trio.fail_after(ANSWER_S):
            await self._send(h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        await self._stream.send_all(b"".join(self._http.send(event) or b"" for event in events))

    def close(self) -> None:
        """Close at once; a task that waits for the peer gets the error of a closed stream."""
        self._stream.socket.close()

"""`GET /trace?client=car-*&payload=0&for_s=60`: a stream of lines of JSON, until the reader leaves.

It shows topics, and payloads if it is asked for: other machines need the token, and its start is a
log event `audit`. It ends by itself after `for_s`, or if the reader is too slow.
"""

import json
from collections.abc import Callable
from typing import Final, final

import trio

from flowguard.lines import count
from flowguard.node.node import Node
from flowguard.ops.lists.pages import number_of
from flowguard.ops.trace.heads import HEAD_MAX
from flowguard.ops.trace.lines import TraceLines
from flowguard.ops.trace.tracing import Tracing
from flowguard.ops.web.callers import audit
from flowguard.ops.web.http_connection import HttpConnection, Request, Response, json_response
from flowguard.ops.web.turns import AnswerTurns

TRACES_MAX: Final = 4
FOR_MAX_S: Final = 3_600
PAYLOAD_MAX: Final = HEAD_MAX // 2
PATTERN_MAX: Final = 256
LINES_TYPE: Final = "application/x-ndjson"
LOOK_S: Final = 0.2
"""Time between two writes, and between two looks at decisions, seconds."""
SILENCE_S: Final = 3.0
"""Time without a line until an empty one is sent, which fails if the reader has left, seconds."""


@final
class Traces:
    """Serves up to TRACES_MAX traces at once."""

    def __init__(self, node: Node, clock: Callable[[], float], turns: AnswerTurns) -> None:
        self._node = node
        self._clock = clock
        self._turns = turns
        self._tracing = Tracing(node, clock)

    async def serve(
        self, request: Request, connection: HttpConnection, on_begin: Callable[[], None]
    ) -> Response | None:
        """Send lines until the trace ends, or return why it does not begin. `on_begin` is called
        before its first line. Raises trio's errors of a lost peer."""
        try:
            trace, for_s = trace_of(request)
        except ValueError as error:
            return json_response({"error": str(error)}, 400)
        if len(self._tracing.traces) >= TRACES_MAX:
            why = f"{count(TRACES_MAX, 'trace')} run already"
            return json_response({"error": why}, 503, retry_after="10")
        find_some = self._tracing.begin(trace)
        try:
            refusal = await self._turns.take_all(find_some)
            if refusal is not None:
                return refusal
            what = {"client": trace.pattern, "payload": trace.payload_max, "for_s": for_s}
            audit(request, json_response({}), **what)
            on_begin()
            await self._write(trace, for_s, connection)
        except trio.TooSlowError:
            pass
        finally:
            self._tracing.end(trace)
        return None

    async def _write(self, trace: TraceLines, for_s: float, connection: HttpConnection) -> None:
        await connection.begin(LINES_TYPE)
        began_s = written_s = trio.current_time()
        while trace.error is None and trio.current_time() - began_s < for_s:
            try:
                self._tracing.look(trace)
            except Exception as error:
                trace.error = error
            data = trace.take(self._clock())
            if data or trio.current_time() - written_s > SILENCE_S:
                await connection.go_on(data or b"\n")
                written_s = trio.current_time()
            await trio.sleep(LOOK_S)
        at_s = self._clock()
        end: dict[str, object] = {"at_s": at_s, "event": "trace ended"}
        if trace.error is not None:
            self._node.broke(trace.error)
            end["error"] = "the broker's log says more"
        end |= {"dropped_lines": trace.dropped, "untraced_connections": trace.untraced}
        await connection.go_on(trace.take(at_s) + json.dumps(end).encode() + b"\n")
        await connection.finish()


def trace_of(request: Request) -> tuple[TraceLines, float]:
    """Return the trace that a request asks for, and its time in seconds. Raises ValueError with the
    reason."""
    query = request.query
    unknown = query.keys() - {"client", "payload", "for_s"}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    pattern = query.get("client", "")
    if not 1 <= len(pattern) <= PATTERN_MAX:
        raise ValueError(f"client: an id or a pattern, 1 to {PATTERN_MAX} characters")
    payload_max = number_of(query, "payload", 0, 0, PAYLOAD_MAX)
    return TraceLines(pattern, payload_max), number_of(query, "for_s", FOR_MAX_S, 1, FOR_MAX_S)

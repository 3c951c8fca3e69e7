"""`GET /trace` of several workers: the lines of all of them, as they come."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

import h11
import trio

from flowguard.app.workers.worker_request import WorkerRequest
from flowguard.ops.trace.web import LINES_TYPE
from flowguard.ops.web.callers import TRACE
from flowguard.ops.web.http_connection import HttpConnection, Request, Response

LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)


async def trace_all(
    asked: Sequence[WorkerRequest],
    request: Request,
    connection: HttpConnection,
    on_begin: Callable[[], None],
) -> Response | None:
    """Send the lines of all these workers until their traces end, or return why one does not begin.

    A worker that ends adds no more lines. Raises trio's errors of a lost peer.
    """
    serving: list[WorkerRequest] = []
    for each in asked:
        with suppress(*LOST):
            await each.send(f"{TRACE}?{urlencode(request.query)}")
            head = await each.next()
            if isinstance(head, h11.Response) and head.status_code != 200:
                return await each.rest(head)
            serving.append(each)
    on_begin()
    await connection.begin(LINES_TYPE)
    writing = trio.Lock()

    async def pass_on(each: WorkerRequest) -> None:
        async for lines in _lines(each):
            async with writing:
                await connection.go_on(lines)

    with suppress(trio.TooSlowError):
        async with trio.open_nursery(strict_exception_groups=False) as nursery:
            for each in serving:
                nursery.start_soon(pass_on, each)
        await connection.finish()
    return None


async def _lines(asked: WorkerRequest) -> AsyncIterator[bytes]:
    """Yield whole lines of a worker until it ends."""
    rest = b""
    with suppress(*LOST):
        while isinstance(event := await asked.next(), h11.Data):
            lines, end, after = (rest + bytes(event.data)).rpartition(b"\n")
            rest = after
            if end:
                yield lines + end

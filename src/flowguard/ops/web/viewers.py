"""Viewers of the page: each gets the samples of the one sampler while it reads them."""

from collections.abc import Callable
from typing import Final

import trio

from flowguard.ops.samples import Sampler
from flowguard.ops.web.http_connection import HttpConnection, Request, Response, json_response

VIEWERS_MAX: Final = 16
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


async def serve_viewer(
    sampler: Sampler, _: Request, connection: HttpConnection, on_begin: Callable[[], None]
) -> Response | None:
    """Send the peer every sample until it disconnects or stops reading; return 503 if there are
    VIEWERS_MAX viewers already. `on_begin` is called before the first sample.

    Raises trio's errors of a lost peer.
    """
    if sampler.viewers >= VIEWERS_MAX:
        return json_response({"error": f"{VIEWERS_MAX} watch already"}, 503, retry_after="10")
    on_begin()
    sampler.join()
    try:
        await connection.begin(EVENT_STREAM)
        await connection.go_on(sampler.history_event())
        number = sampler.encoded
        while True:
            number, event = await sampler.event_after(number)
            await connection.go_on(event)
    except trio.TooSlowError:
        pass
    finally:
        sampler.leave()
    return None

"""Viewers of the page: each is told what the one sampler sees, for as long as it takes it."""

from typing import Final, final

import trio

from flowguard.ops.samples import Sampler
from flowguard.ops.web.http_connection import HttpConnection, Response, json_response

VIEWERS_MAX: Final = 16
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


@final
class Viewers:
    """Lets VIEWERS_MAX watch at once."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def refusal(self) -> Response | None:
        """503: too many watch; None: there is a place."""
        if self._sampler.viewers < VIEWERS_MAX:
            return None
        return json_response({"error": f"{VIEWERS_MAX} watch already"}, 503, retry_after="10")

    async def watch(self, connection: HttpConnection) -> None:
        """Tell the peer of every sample until it leaves, or takes nothing any more.

        Raises trio's errors of a lost peer."""
        sampler = self._sampler
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

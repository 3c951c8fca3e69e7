"""Viewers of the page: each gets the samples of the one sampler while it reads them."""

from typing import Final, final

import trio

from flowguard.ops.samples import Sampler
from flowguard.ops.web.http_connection import HttpConnection, Response, json_response

VIEWERS_MAX: Final = 16
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


@final
class Viewers:
    """Serves up to VIEWERS_MAX viewers at once."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def refusal(self) -> Response | None:
        """Return 503 if there are too many viewers, or None."""
        if self._sampler.viewers < VIEWERS_MAX:
            return None
        return json_response({"error": f"{VIEWERS_MAX} watch already"}, 503, retry_after="10")

    async def watch(self, connection: HttpConnection) -> None:
        """Send the peer every sample until it disconnects or stops reading.

        Raises trio's errors of a lost peer.
        """
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

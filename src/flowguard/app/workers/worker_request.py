"""A request of the supervisor to one worker, on its Unix socket or at another node."""

from typing import Final, final

import h11
import trio

from flowguard.ops.web.http_connection import CALLER, Response

READ_BYTES: Final = 65_536
LOST: Final = (trio.BrokenResourceError, trio.TooSlowError, h11.RemoteProtocolError)
"""Errors of a request whose worker has ended."""


@final
class WorkerRequest:
    """One request to a worker, and the parts of its answer."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def send(self, path: str, body: bytes = b"", caller: str = "") -> None:
        """Raises trio's errors of a lost peer."""
        length = str(len(body))
        headers = [("host", "localhost"), ("x-flowguard", "1"), ("content-length", length)]
        if caller:
            headers.append((CALLER, caller))
        request = h11.Request(method="POST" if body else "GET", target=path, headers=headers)
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            await self._stream.send_all(self._http.send(event) or b"")

    async def next(self) -> object:
        """Return the next part. Raises trio's errors of a lost peer, and RemoteProtocolError."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))
        return event

    async def rest(self, head: h11.Response) -> Response | None:
        """Return the answer with this head, or None if the worker ends before."""
        content = b""
        while isinstance(event := await self.next(), h11.Data):
            content += event.data
        if not isinstance(event, h11.EndOfMessage):
            return None
        content_type = dict(head.headers).get(b"content-type", b"text/plain")
        return Response(head.status_code, content, content_type.decode())

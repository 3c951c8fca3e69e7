"""A WebSocket client on a stream of trio, with the methods of a stream."""

from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri


class WebSocketClient:
    """`Wire` uses it as its stream; messages are cut into frames of `frame_bytes`."""

    def __init__(self, stream: Any, frame_bytes: int = 1_000_000) -> None:
        self.stream = stream
        self.frame_bytes = frame_bytes
        self.protocol = ClientProtocol(parse_uri("ws://127.0.0.1/mqtt"), subprotocols=["mqtt"])
        self.received: list[bytes] = []
        self.frames: list[Frame] = []
        """Control frames, as they came."""
        self.ended = False
        self.largest_frame = 0

    async def open(self, **headers: str) -> None:
        """Do the opening handshake. Raises the library's error if it is rejected."""
        request = self.protocol.connect()
        for name, value in headers.items():
            request.headers[name.replace("_", "-")] = value
        self.protocol.send_request(request)
        await self._leave()
        while self.protocol.handshake_exc is None and not self.protocol.events:
            await self._come()
        if self.protocol.handshake_exc is not None:
            raise self.protocol.handshake_exc
        self._sort()

    async def _leave(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                await self.stream.send_all(data)

    async def _come(self) -> None:
        data = await self.stream.receive_some(65_536)
        if data:
            self.protocol.receive_data(bytes(data))
        else:
            self.ended = True
            self.protocol.receive_eof()

    def _sort(self) -> None:
        for event in self.protocol.events_received():
            if isinstance(event, Frame):
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    self.received.append(bytes(event.data))
                    self.largest_frame = max(self.largest_frame, len(event.data))
                else:
                    self.frames.append(event)

    async def send_all(self, data: bytes) -> None:
        for start in range(0, len(data), self.frame_bytes):
            self.protocol.send_binary(data[start : start + self.frame_bytes])
        await self._leave()

    async def receive_some(self, size_bytes: int) -> bytes:
        while not self.received:
            if self.ended or any(frame.opcode is Opcode.CLOSE for frame in self.frames):
                return b""
            await self._come()
            self._sort()
            await self._leave()
        return self.received.pop(0)

    async def aclose(self) -> None:
        await self.stream.aclose()

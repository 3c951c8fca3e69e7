"""A recording of what passes: a port that leads to another one, and notes every byte."""

import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

HOST = "127.0.0.1"
READ_BYTES = 65_536
POLL_S = 0.05


@dataclass
class Recording:
    """The bytes of each connection both ways, in the order in which they were opened."""

    port: int = field(compare=False)
    to_broker: list[bytearray] = field(default_factory=list)
    to_client: list[bytearray] = field(default_factory=list)

    def forget(self) -> None:
        """Start again; bytes of earlier connections are not recorded any more."""
        self.to_broker.clear()
        self.to_client.clear()


class Recorder:
    """A thread that accepts, and one for each connection."""

    def __init__(self, listener: socket.socket, upstream: int) -> None:
        self._listener = listener
        self._upstream = upstream
        self._over = Event()
        self._threads = [Thread(target=self._accept)]
        self.recording = Recording(listener.getsockname()[1])
        self._threads[0].start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        self._listener.settimeout(POLL_S)
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            there, back = bytearray(), bytearray()
            self.recording.to_broker.append(there)
            self.recording.to_client.append(back)
            thread = Thread(target=self._relay, args=(client, there, back))
            self._threads.append(thread)
            thread.start()

    def _relay(self, client: socket.socket, there: bytearray, back: bytearray) -> None:
        with client, socket.create_connection((HOST, self._upstream)) as broker:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = {client: (broker, there), broker: (client, back)}
            with selectors.DefaultSelector() as selector:
                for sock in ways:
                    selector.register(sock, selectors.EVENT_READ)
                while not self._over.is_set():
                    ready = [key.fileobj for key, _ in selector.select(POLL_S)]
                    if not all(self._pass(sock, *ways[sock]) for sock in ready):  # type: ignore
                        return

    def _pass(self, source: socket.socket, sink: socket.socket, record: bytearray) -> bool:
        """Pass the available bytes. Return False if this connection has ended."""
        try:
            data = source.recv(READ_BYTES)
            record.extend(data)
            sink.sendall(data)
        except OSError:
            return False
        return bool(data)


@contextmanager
def recording(upstream: int) -> Iterator[Recording]:
    """Until the block ends."""
    with socket.create_server((HOST, 0)) as listener:
        recorder = Recorder(listener, upstream)
        try:
            yield recorder.recording
        finally:
            recorder.end()

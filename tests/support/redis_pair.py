"""A primary and its replica, with a line between them that freezes; one address for the serving
one."""

import os
import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.redis_server import RedisServer

CHUNK_BYTES = 64 * 1024


class FreezingLine:
    """A TCP proxy to a port: from `freeze` on nothing passes, and neither side is notified."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._frozen = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._sockets += (near, far)
                for source, sink in ((near, far), (far, near)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if self._frozen.is_set():
                    return
                sink.sendall(data)
            if not self._frozen.is_set():
                sink.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        self._frozen.set()

    def close(self) -> None:
        self._frozen.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class RedisPair:
    """Two servers in `folder`; `unix_url` is that of whichever is the primary."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        settings = {
            "repl-diskless-sync": "yes",
            "repl-ping-replica-period": "1",
            **(settings or {}),
        }
        self.primary = RedisServer(folder / "0", settings)
        self.replica = RedisServer(folder / "1", settings)
        self._line: FreezingLine | None = None
        self._address = self.primary.socket_path.parent / "current"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._address}"

    def start(self) -> "RedisPair":
        self.primary.start()
        self._serve()
        self._follow()
        return self

    def _serve(self) -> None:
        """The primary has the address."""
        fresh = self._address.with_name("next")
        fresh.symlink_to(self.primary.socket_path)
        fresh.replace(self._address)

    def _follow(self) -> None:
        """Start the other one again, as a replica at the end of a new line."""
        if self._line is not None:
            self._line.close()
        self._line = FreezingLine(self.primary.port)
        for path in self.replica.folder.iterdir():
            if path.name != "redis.log":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.replica.settings["replicaof"] = f"127.0.0.1 {self._line.port}"
        self.replica.start()

    def cut(self) -> None:
        """Cut the line between replica and primary, in both directions."""
        assert self._line is not None
        self._line.freeze()

    def fail_over(self) -> None:
        """SIGKILL of the primary; the replica takes its place, and gets a new one."""
        self.primary.kill()
        self.primary, self.replica = self.replica, self.primary
        self.primary.settings.pop("replicaof")
        with self.primary.client() as client:
            client.replicaof("NO", "ONE")
        self._serve()
        self._follow()

    def is_whole(self) -> bool:
        """Whether the replica has caught up."""
        primary, replica = self._told(self.primary), self._told(self.replica)
        return primary.get("connected_slaves") == 1 and replica.get("master_link_status") == "up"

    def _told(self, server: RedisServer) -> dict[str, Any]:
        with server.client() as client:
            found: dict[str, Any] = client.info("replication")
            return found

    def remove(self) -> None:
        if self._line is not None:
            self._line.close()
        with suppress(OSError):
            os.unlink(self._address)
        self.primary.remove()
        self.replica.remove()

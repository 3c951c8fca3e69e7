"""A real Mosquitto behind a real `flowguard proxy`: processes, sockets, ports of this machine."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import free_port
from tests.interop.broker import ANNOUNCEMENT, PATIENCE_S, start

MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")


class Mosquitto:
    """A Mosquitto on a port that stays its own when it is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._config = folder / "mosquitto.conf"
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
            "max_queued_messages 0\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while True:
            assert self._process.poll() is None, "Mosquitto has ended"
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                continue

    @property
    def pid(self) -> int:
        """Process id of the running upstream."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None


@contextmanager
def mosquitto(folder: Path) -> Iterator[Mosquitto]:
    """Running until the block ends."""
    broker = Mosquitto(folder)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


@contextmanager
def proxy(folder: Path, upstream: int, **flow: object) -> Iterator[int]:
    """`flowguard proxy` in front of a port: its own. It must end in order, without a traceback."""
    with proxy_process(folder, upstream, **flow) as (_, port):
        yield port


@contextmanager
def proxy_process(
    folder: Path, upstream: int, **flow: object
) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """The same, with its process."""
    log = folder / "proxy.txt"
    environment = {f"FLOWGUARD_FLOW__{key.upper()}": str(value) for key, value in flow.items()}
    with log.open("w") as stderr:
        process = start(
            *("proxy", "--upstream", f"127.0.0.1:{upstream}", "--listen", "127.0.0.1:0"),
            environment=environment,
            stderr=stderr,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(ANNOUNCEMENT), line + log.read_text()
        yield process, int(line.split()[2].rpartition(":")[2])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.communicate()

"""A real redis-server of a test's own: a free port and a socket, ended by process id."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.brokers import free_port
from tests.support.patience import HANG_S

PROGRAM = shutil.which("redis-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
"""A machine under load is slow; only one that does nothing is an error."""
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
EVERY_SECOND = {"appendonly": "yes", "appendfsync": "everysec"}


def needs_redis() -> None:
    """Skip the test without a server or a client."""
    if PROGRAM is None:
        pytest.skip("redis-server is missing: make test installs it (apt-get install redis-server)")
    pytest.importorskip("redis", reason="redis is missing: pip install 'flowguard-mqtt[redis]'")


class RedisServer:
    """One server, in `folder`; `settings` are those of redis.conf."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None, *options: str) -> None:
        self._options = options
        self.folder = folder
        self.port = free_port()
        # The path of a socket may have no more than 107 bytes.
        self._socket_folder = tempfile.mkdtemp(prefix="fg-redis-")
        self.socket_path = Path(self._socket_folder) / "s"
        self.settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": str(self.socket_path),
            "dir": str(folder),
            "save": '""',
            "daemonize": "no",
            "set-proc-title": "no",  # It overwrites the environment, by which the reaper finds it.
            "repl-diskless-sync-delay": "0",
            "enable-debug-command": "yes",
            **(settings or {}),
        }
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._session = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, *, wait: bool = True) -> "RedisServer":
        assert PROGRAM is not None
        conf = self.folder / "redis.conf"
        conf.write_text("".join(f"{key} {value}\n" for key, value in self.settings.items()))
        with (self.folder / "redis.log").open("ab") as out:
            self._process = subprocess.Popen(
                [PROGRAM, str(conf), *self._options],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._session = self._process.pid
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        import redis

        until_s = time.monotonic() + HANG_S
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError((self.folder / "redis.log").read_text()[-2_000:])
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.02)

    def client(self, **options: Any) -> Any:
        """A client of redis-py, for looking and for breaking things."""
        import redis

        return redis.Redis.from_url(self.url, socket_timeout=HANG_S, protocol=2, **options)

    def kill(self) -> None:
        """End it as power does not: the operating system keeps what was written."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def processes_count(self) -> int:
        """Number of living processes of the server that was started last, with its children."""
        found = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                found += state != "Z" and int(session) == self._session
        return found

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            process.wait(HANG_S)
            # A child that writes a snapshot has the listening socket, too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            until_s = time.monotonic() + HANG_S
            while self.processes_count() and time.monotonic() < until_s:
                time.sleep(0.01)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._socket_folder, ignore_errors=True)


@contextmanager
def redis_server(folder: Path, settings: dict[str, str] | None = None) -> Iterator[RedisServer]:
    """A started server; killed at the end."""
    needs_redis()
    server = RedisServer(folder, settings)
    try:
        yield server.start()
    finally:
        server.remove()

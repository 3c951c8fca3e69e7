"""Servers that a run starts for itself: on sockets, in temporary folders, ended by process id."""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import START_LIMIT_S
from benchmarks.build import Unavailable

TICKS: Final = os.sysconf("SC_CLK_TCK")
NODE_BYTES: Final = 1_024
"""Of a node of a stream, as docs/operate/redis.md recommends it."""
DEFAULT_NODE_BYTES: Final = 4_096
"""As Redis comes."""
POSTGRES: Final = "/usr/lib/postgresql"
USERS: Final = ("postgres", "nobody")
"""Who PostgreSQL is run as where we are root, which it refuses."""


class Server:
    """A process, and those that it has started."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def cpu_s(self) -> float:
        """Processor time of all of them; of those that have ended as well."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = stat.read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            fields = rest.split()
            if int(name.split()[0]) == self._process.pid:
                ticks += sum(map(int, fields[11:15]))
            elif int(fields[1]) == self._process.pid:
                ticks += sum(map(int, fields[11:13]))
        return ticks / TICKS


@contextmanager
def started(words: list[str], log: Path, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def until(is_there: Callable[[], object], process: "subprocess.Popen[bytes]", log: Path) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while not is_there():
        if process.poll() is not None or time.monotonic() > end_s:
            raise Unavailable(f"{process.args!r} does not start: {log.read_text()[-500:]}")
        time.sleep(0.02)


class RedisServer(Server):
    """A redis-server on a socket."""

    def __init__(self, process: "subprocess.Popen[bytes]", path: Path) -> None:
        super().__init__(process)
        self.url = f"unix://{path}"
        self.path = path

    def used_bytes(self) -> int:
        """Memory for its data."""
        import redis

        with redis.Redis(unix_socket_path=str(self.path)) as client:
            facts: dict[str, Any] = client.info("memory")
            return int(facts["used_memory"])


@contextmanager
def redis_server(folder: Path, fsync: str, node_bytes: int = NODE_BYTES) -> Iterator[RedisServer]:
    """`fsync`: everysec or always. Raises `Unavailable`."""
    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable("redis-server is missing: apt-get install redis-server")
    folder.mkdir(parents=True)
    path, log = folder / "s", folder / "log"
    words = [program, "--port", "0", "--unixsocket", str(path), "--dir", str(folder)]
    words += ["--save", "", "--appendonly", "yes", "--appendfsync", fsync]
    words += ["--stream-node-max-bytes", str(node_bytes)]
    with started(words, log) as process:
        until(path.exists, process, log)
        yield RedisServer(process, path)


@contextmanager
def postgres_server(folder: Path, *, syncs: bool) -> Iterator[tuple[Server, str]]:
    """PostgreSQL in `folder`, as somebody who is not root, and how to connect to it.

    Raises `Unavailable`."""
    try:
        import psycopg
    except ImportError as error:
        raise Unavailable("psycopg is missing: pip install 'psycopg[binary]'") from error
    found = sorted(Path(POSTGRES).glob("*/bin/initdb"))
    if not found:
        raise Unavailable("PostgreSQL is missing: apt-get install postgresql")
    programs = found[-1].parent
    data, log = folder / "data", folder / "log"
    folder.mkdir(parents=True)
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        known = {each.pw_name for each in pwd.getpwall()}
        user = {"user": next(name for name in USERS if name in known), "extra_groups": []}
        user["group"] = pwd.getpwnam(user["user"]).pw_gid
        os.chown(folder, pwd.getpwnam(user["user"]).pw_uid, user["group"])
        for parent in (folder, *folder.parents):
            if parent.stat().st_uid == 0 and str(parent).startswith("/tmp/"):
                parent.chmod(0o755)
    words = [str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "bench", "-N"]
    done = subprocess.run(words, capture_output=True, cwd="/", check=False, **user)
    if done.returncode:
        raise Unavailable(f"initdb failed: {done.stderr[-500:]!r}")
    commits = "on" if syncs else "off"
    words = [str(programs / "postgres"), "-D", str(data), "-k", str(folder), "-h", ""]
    words += ["-c", f"synchronous_commit={commits}"]
    where = f"host={folder} user=bench dbname=postgres"

    def answers() -> bool:
        try:
            psycopg.connect(where).close()
        except psycopg.OperationalError:
            return False
        return True

    with started(words, log, cwd="/", **user) as process:
        until(answers, process, log)
        yield Server(process), where

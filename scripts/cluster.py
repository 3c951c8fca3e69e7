"""`make cluster`: a redis-server and three nodes on it, until Ctrl-C. All files are in
flowguard-cluster.

A node that is killed stays down; the printed command starts it again. FIRST_PORT is the port of the
first node for clients, 1883. Options are for each node.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import create_connection, socket
from types import FrameType

NODES = 3
SHARDS = 6
HOST = "127.0.0.1"
FIRST_PORT = int(os.environ.get("FIRST_PORT", "1883"))
FIRST_HTTP_PORT = FIRST_PORT + 8_000
FIRST_CLUSTER_PORT = FIRST_PORT + 5_117
STEP = 100
PATIENCE_S = 60.0
FOLDER = Path("flowguard-cluster")
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin",
    "FLOWGUARD_CLUSTER__SHARDS": str(SHARDS),
}


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    program = shutil.which("redis-server", path=ENVIRONMENT["PATH"])
    if program is None:
        print("redis-server is missing: apt-get install redis-server", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    redis_port = _free_port()
    with ExitStack() as running:
        server = _start(_redis_words(program, redis_port), FOLDER / "redis.log", running)
        _wait_for(redis_port, server, FOLDER / "redis.log")
        nodes = []
        for number in range(NODES):
            words, log = _node_words(number, redis_port), FOLDER / f"node-{number}.log"
            nodes.append(_start(words, log, running))
            _wait_for(FIRST_PORT + number, nodes[-1], log)
            print(
                f"node {number}: mqtt://{HOST}:{FIRST_PORT + number} , "
                f"http://{HOST}:{FIRST_HTTP_PORT + number}/\n"
                f"  to kill it: kill -9 {nodes[-1].pid}\n"
                f"  to start it again: FLOWGUARD_CLUSTER__SHARDS={SHARDS} {shlex.join(words)}",
                flush=True,
            )
        print(
            f"the nodes share their shards now: {sys.executable} -m flowguard cluster status\n"
            "Ctrl-C ends all",
            flush=True,
        )
        with suppress(KeyboardInterrupt):
            signal.pause()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        print("ending", flush=True)
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait()
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _redis_words(program: str, port: int) -> list[str]:
    words = {"port": port, "bind": HOST, "dir": FOLDER.absolute(), "save": ""}
    words |= {"appendonly": "yes", "appendfsync": "always"}
    return [program, *(word for name, value in words.items() for word in (f"--{name}", str(value)))]


def _node_words(number: int, redis_port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "flowguard", "serve"),
        *("--store", "redis", "--redis-url", f"redis://{HOST}:{redis_port}/0"),
        *("--cluster", f"{HOST}:{FIRST_CLUSTER_PORT + STEP * number}"),
        *("--listen", f"{HOST}:{FIRST_PORT + number}"),
        *("--http", f"{HOST}:{FIRST_HTTP_PORT + number}"),
        *("--data", str(FOLDER / f"node-{number}")),
        *sys.argv[1:],
    ]


def _start(words: list[str], log: Path, running: ExitStack) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own, so that Ctrl-C is only for this one."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, stdout=out, stderr=out, env=ENVIRONMENT, start_new_session=True
        )
    running.callback(process.wait)
    running.callback(process.kill)
    return process


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < until_s:
        with suppress(OSError), create_connection((HOST, port), 1.0):
            return
        time.sleep(0.1)
    sys.exit(f"nothing listens on port {port}:\n{log.read_text()[-2_000:]}")


def _free_port() -> int:
    with socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())

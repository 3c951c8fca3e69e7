"""A broker that stands on its port, is killed, and stands again; and a proxy before it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from benchmarks.brokers import HOST, Broker, end, free_port, wait_until_ready
from benchmarks.peers import COMPILED

POLL_S = 0.05


@dataclass
class Standing:
    """Where clients find it, and what may be watched."""

    port: int
    pids: list[int]
    restart_command: str


class Process:
    """One process on a port of its own, started again at will."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker = broker
        self._folder = folder
        self.port = free_port()
        self.command = broker.command(self.port, folder, "survivors")
        self._log = folder / "output.txt"

    def start(self) -> None:
        """Start it, and wait until it answers a CONNECT; raises `BrokerFailed`."""
        self.process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as output:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
            )
        try:
            wait_until_ready(process, self._log, self.port)
        except BaseException:
            end(process)
            raise
        return process

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.process.kill()
        self.process.wait()
        self.start()


@contextmanager
def standing(broker: Broker, *, behind_proxy: bool) -> Iterator[Standing]:
    """Until the block ends, whatever is killed meanwhile.

    Its restart command sets a flag, which a thread here waits for, and takes away when it is done.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="flowguard-survivors-")))
        folder.chmod(0o755)  # a server that drops its privileges must still find its files
        home = folder / "broker"
        home.mkdir()
        home.chmod(0o755)
        running = Process(broker, home)
        stack.enter_context(broker.beside(running.command))
        running.start()
        stack.callback(lambda: end(running.process))
        flag, failed, over = folder / "restart", folder / "failed", Event()

        def obey() -> None:
            while not over.wait(POLL_S):
                if flag.exists():
                    try:
                        running.restart()
                    except Exception as error:
                        failed.write_text(str(error))
                    flag.unlink()

        thread = Thread(target=obey)
        thread.start()
        stack.callback(thread.join)
        stack.callback(over.set)
        command = (
            f"touch '{flag}'; while [ -e '{flag}' ]; do sleep {POLL_S}; done; "
            f"if [ -e '{failed}' ]; then cat '{failed}'; exit 1; fi"
        )
        port, pids = running.port, [running.process.pid]
        if behind_proxy:
            proxy = stack.enter_context(_proxy(port, folder / "proxy.log"))
            port, pids = proxy.port, [*pids, proxy.pids[0]]
        yield Standing(port, pids, command)


@contextmanager
def _proxy(upstream: int, log: Path) -> Iterator[Standing]:
    port = free_port()
    words = ["--upstream", f"{HOST}:{upstream}", "--listen", f"{HOST}:{port}"]
    command = ["env", *([f"PYTHONPATH={COMPILED}"] if COMPILED.is_dir() else [])]
    command += [sys.executable, "-m", "flowguard", "proxy", *words]
    with log.open("wb") as output:
        # Not in this directory: its `broker_adapter` would go before the compiled one.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=log.parent
        )
    try:
        wait_until_ready(process, log, port)
        yield Standing(port, [process.pid], "")
    finally:
        end(process)

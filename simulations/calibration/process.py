"""BrokerProcess: a real `flowguard serve` on 127.0.0.1, with the CPU time and memory that the
kernel reports.

Costs are CPU seconds, not seconds: a busy machine delays the work, but hardly makes it dearer. The
reactor runs in the main thread, so that thread's CPU time is the loop's. Commits run in other
threads of the process.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, NamedTuple, final

from flowguard.errors import FlowguardError

StoreKind = Literal["rocks", "memory", "slow"]
PYTHON: Final = (sys.executable,)
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
STOP_S: Final = 300.0
SETTLE_POLL_S: Final = 0.03
SETTLE_POLLS: Final = 2
"""Number of idle polls in a row; a single one may have seen a broker that waits for a core."""
SETTLE_SHARE: Final = 0.15
"""Share of one core below which a broker has no work left but its ticks."""
SETTLE_MAX_S: Final = 300.0
ENGINE_THREADS: Final = "rocksdb:"
"""Prefix of the names of RocksDB's own threads. They flush and compact for 50 ms at a time and
longer, and never hold the interpreter, so the loop does not wait for them."""


class CalibrationError(FlowguardError):
    """The real broker failed in a measurement; the text explains how."""


class Usage(NamedTuple):
    """Usage since the start of the process, seconds. A difference is the usage between two
    instants."""

    loop_s: float
    """CPU time of the reactor's thread."""
    process_s: float
    """CPU time of all threads but RocksDB's own (`ENGINE_THREADS`)."""
    waited_s: float
    """Time in which the reactor's thread was ready to run while others had the cores."""
    at_s: float
    """Monotonic time."""

    def since(self, earlier: "Usage") -> "Usage":
        return Usage(*(now - then for now, then in zip(self, earlier, strict=True)))


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@final
class BrokerProcess:
    """A child process; made by `broker_process`."""

    def __init__(self, process: "subprocess.Popen[str]", address: tuple[str, int]) -> None:
        self._process = process
        self._proc = Path(f"/proc/{process.pid}")
        self._cpu_clock = (~process.pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK of the Linux kernel
        self.address = address

    def usage(self) -> Usage:
        """Return the usage so far. Raises CalibrationError if the process has ended."""
        try:
            cpu_ns, waited_ns, _ = (self._proc / "schedstat").read_text().split()
            process_s = time.clock_gettime(self._cpu_clock) - self._engine_s()
        except (OSError, ValueError) as error:
            raise CalibrationError(f"cannot see the CPU time of the broker: {error}") from error
        return Usage(int(cpu_ns) / 1e9, process_s, int(waited_ns) / 1e9, time.monotonic())

    def _engine_s(self) -> float:
        cpu_ns = 0
        for thread in (self._proc / "task").iterdir():
            # A thread that has ended meanwhile is not one of RocksDB's: those never end.
            with suppress(FileNotFoundError, ProcessLookupError):
                if (thread / "comm").read_text().startswith(ENGINE_THREADS):
                    cpu_ns += int((thread / "schedstat").read_text().split()[0])
        return cpu_ns / 1e9

    def resident_bytes(self) -> int:
        return int((self._proc / "statm").read_text().split()[1]) * PAGE_BYTES

    def settled(self) -> Usage:
        """Wait until the broker is idle, and return its usage."""
        until_s = time.monotonic() + SETTLE_MAX_S
        before = self.usage()
        quiet_count = 0
        while time.monotonic() < until_s:
            time.sleep(SETTLE_POLL_S)
            now = self.usage()
            used = now.since(before)
            is_quiet = used.process_s + used.waited_s < SETTLE_SHARE * used.at_s
            quiet_count = quiet_count + 1 if is_quiet else 0
            if quiet_count == SETTLE_POLLS:
                return now
            before = now
        raise CalibrationError(f"the broker still works {SETTLE_MAX_S:g} s after its last client")

    def stop_store(self) -> None:
        """Let all commits wait until `start_store`; only for a broker with `can_stop_store`."""
        self._process.send_signal(signal.SIGUSR1)

    def start_store(self) -> None:
        self._process.send_signal(signal.SIGUSR2)

    def finish(self) -> None:
        """End the process in order, so that it completes its recording."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_S)

    def stop(self) -> None:
        """Kill the process and delete its data."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def broker_process(
    store: StoreKind,
    settings: Mapping[str, Mapping[str, object]],
    *,
    can_stop_store: bool = False,
    python: Sequence[str] = PYTHON,
) -> Iterator[BrokerProcess]:
    """A broker with these settings and a temporary directory, until the block ends.

    `python` is the command of an interpreter, which may be another checkout's. Raises
    CalibrationError if the broker does not start, and for an OSError of a socket in the block.
    """
    with TemporaryDirectory(prefix="flowguard-calibrate-") as folder:
        config = Path(folder) / "settings.toml"
        config.write_text(_toml(settings))
        log = Path(folder) / "log"
        command = [*python, *_arguments(store, can_stop_store, config, Path(folder) / "data")]
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("listening on "):
                raise CalibrationError(f"the broker did not start: {log.read_text()[-500:]}")
            host, _, port = line.removeprefix("listening on ").split()[0].rpartition(":")
            broker = BrokerProcess(process, (host, int(port)))
        except BaseException:
            process.kill()
            process.wait()
            raise
        try:
            yield broker
        except OSError as error:
            raise CalibrationError(f"the broker does not answer any more: {error}") from error
        finally:
            broker.stop()


def _arguments(store: StoreKind, can_stop_store: bool, config: Path, data: Path) -> list[str]:
    program = ["-m", "flowguard"]
    if store == "slow" or can_stop_store:
        program = ["-P", str(Path(__file__).with_name("slow.py")), store]
    kind = "rocks" if store == "slow" else store
    serve = ["serve", "--listen", "127.0.0.1:0", "--http", "none", "--store", kind]
    return [*program, *serve, "--config", str(config), "--data", str(data)]


def _toml(settings: Mapping[str, Mapping[str, object]]) -> str:
    lines = []
    for section, table in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"

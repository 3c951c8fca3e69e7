"""A worker as a process: how the supervisor starts it, and the lines that the two exchange.

The command is `flowguard worker FD`. FD is one end of a pair of sockets. Each message is a line of
JSON: first the supervisor's `WorkerSpec`, then

    supervisor   {"died": [name, incarnation]}   {"reload": true}   {"ping": true}
                 {"moved": {shard: [host, port, name]}}  the shards of a cluster on other nodes
                 {"gives": [reference, count]}  the shard moves to the node with this address for
                 clients: close `count` relayed connections, and accept no more
    worker       {"opening": true}   {"waits": true}   {"claimed": incarnation}   {"ready": true}
                 {"pong": [clients, relayed connections, free slots for CONNECTs]}
                 {"reloaded": {...}}   {"rejected": "why"}

The kernel ends a worker when its supervisor ends (prctl(2), PR_SET_PDEATHSIG).
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from socket import socket, socketpair
from typing import Any, Final, NamedTuple, Self, final

import trio

from flowguard.address import parse_address
from flowguard.app.workers.seat import Seat, name_of
from flowguard.cluster.shards import ShardState
from flowguard.config import Settings

PR_SET_PDEATHSIG: Final = 1
SILENT_S: Final = 3.0
"""Time without an answer after which a worker is shown as one that does not serve, in seconds."""
OF_SYSTEMD: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables that are for the supervisor."""
PING_S: Final = 1.0
"""Interval of the pings of a worker, in seconds."""
READ_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Facts that a worker needs for its start; all values are those of JSON."""

    index: int
    count: int
    incarnation: int
    data: str
    settings: Mapping[str, Any]
    """The settings of the whole broker that are in force."""
    memory_bytes: int
    """The memory limit of all processes."""
    disk_bytes: int | None
    listeners: list[int]
    """Descriptors of the listening sockets, in the order of the settings."""
    supervisor: int
    """The process id of the supervisor."""
    parts: int
    """Number of processes that share the limits of this node."""
    sources: Mapping[str, Any] = field(default_factory=dict)
    """The files and options that a reload reads again."""

    @classmethod
    def receive(cls, control: socket) -> Self:
        """Read the spec; further lines stay in the socket.

        The supervisor may have another version, since files are replaced before it starts again.
        """
        with control.makefile("rb", buffering=0) as lines:
            values = json.loads(lines.readline())
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    @property
    def seat(self) -> Seat:
        address = self.whole_settings.cluster.address
        own = None if address is None else parse_address(address)
        return Seat(self.index, self.count, self.incarnation, Path(self.data), own)

    @property
    def whole_settings(self) -> Settings:
        return Settings.model_validate(self.settings)


def end_with_supervisor(supervisor: int) -> None:
    """Let the kernel kill this process when the supervisor ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # It has ended before this call.
        os._exit(1)


@final
class Control:
    """One end of the pair of sockets."""

    def __init__(self, sock: socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._sending = trio.StrictFIFOLock()
        self.is_heard = False
        """True if the other process has sent something since this was False."""

    async def tell(self, **message: object) -> None:
        """Send a message; a process that has ended needs none."""
        try:
            async with self._sending:
                await self._stream.send_all(json.dumps(message).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Messages of the other process, until it ends."""
        rest = b""
        while data := await self._received():
            self.is_heard = True
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    async def _received(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(READ_BYTES))
        except trio.BrokenResourceError:
            return b""

    def close(self) -> None:
        self._stream.socket.close()


@final
class WorkerProcess:
    """A process that was started; this thread must not end before it."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Start it. Raises OSError."""
        ours, theirs = socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "flowguard", "worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *spec.listeners),
                env={name: text for name, text in os.environ.items() if name not in OF_SYSTEMD},
                start_new_session=True,  # Ctrl-C is for the supervisor.
            )
        with suppress(OSError):  # It has ended already.
            ours.sendall(json.dumps(asdict(spec)).encode() + b"\n")
        self.incarnation = spec.incarnation
        self.control = Control(ours)
        self.is_stopping = False
        """True once it has been told to end."""
        try:
            self._pidfd = os.pidfd_open(self._popen.pid)
        except OSError:
            self._popen.kill()
            self._popen.wait()
            self.control.close()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    def stop(self) -> None:
        """Let it drain and end."""
        self.is_stopping = True
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Wait for its end; return its exit code, or a negative signal."""
        await trio.lowlevel.wait_readable(self._pidfd)
        return self._popen.wait()

    def kill(self) -> None:
        self._popen.kill()

    def close(self) -> None:
        """Kill it if it has not ended."""
        self.kill()
        self._popen.wait()
        self.control.close()
        os.close(self._pidfd)


class WorkerLoad(NamedTuple):
    """The answer of a worker to a ping."""

    clients: int = 0
    """Number of connected clients."""
    relayed: int = 0
    """Number of connections that it passes on to other workers."""
    slots: int = 0
    """Number of CONNECTs that its gate would admit at once; 0 if some wait."""

    @classmethod
    def of(cls, values: Sequence[int]) -> Self:
        """Return the answer of a process, which may have more values in a newer version."""
        return cls(*values[: len(cls._fields)])


@final
class Worker:
    """One worker, over all its processes."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = name_of(index)
        self.process: WorkerProcess | None = None
        """The present process, or None between two of them."""
        self.incarnation = 0
        """Number of its last process, or 0 before the first."""
        self.is_wanted = True
        """False while its shard is another node's."""
        self.home = ""
        """The node that runs its shard, if it is not this one."""
        self.wanted = trio.Event()
        """Set while `is_wanted`."""
        self.wanted.set()
        self.stage = ShardState.STARTING
        """The state of the process until it is ready."""
        self.is_ready = False
        """True once the process has started, until it ends."""
        self.waits = False
        """True while the process waits for the lease of its shard."""
        self.load = WorkerLoad()
        """The last answer to a ping."""
        self.is_asked = False
        """True while the answer to a ping is pending."""
        self.silent_s = 0.0
        """Time without an answer, in seconds, as far as the supervisor ran itself."""
        self.restarts_count = 0
        self.answers: trio.MemorySendChannel[dict[str, Any]] | None = None
        """Takes the answer to a reload, or None if none is expected."""

    @property
    def state(self) -> ShardState:
        if not self.is_wanted:
            return ShardState.ENDING
        if self.process is None:
            return ShardState.STARTING
        if self.is_ready:
            return ShardState.SILENT if self.is_silent else ShardState.SERVES
        return self.stage

    @property
    def elsewhere(self) -> str:
        """Why another node does not answer for its shard, or "" if it is this node's."""
        if self.is_wanted:
            return ""
        return f"on node {self.home} does not answer" if self.home else "is on no node"

    @property
    def is_silent(self) -> bool:
        return self.silent_s >= SILENT_S

    @property
    def serves(self) -> bool:
        return self.is_ready and not self.is_silent

    def want(self, *, is_wanted: bool) -> None:
        """Let this node run the worker, or end it."""
        if is_wanted and not self.is_wanted:
            self.wanted.set()
        elif self.is_wanted and not is_wanted:
            self.wanted = trio.Event()
            if self.process is not None:
                self.process.stop()
        self.is_wanted = is_wanted

    def heard(self) -> None:
        """The worker has answered, or another process begins."""
        self.is_asked, self.silent_s = False, 0.0

    def answer(self, message: dict[str, Any]) -> None:
        """Pass on the answer to a reload, if one is expected. A newer process may send others."""
        if self.answers is not None and message.keys() & {"reloaded", "rejected"}:
            self.answers.send_nowait(message)
            self.answers = None


def sentence_of(workers: Sequence[Worker]) -> str:
    """Return the state of the workers in words."""
    workers = [worker for worker in workers if worker.is_wanted]
    count = sum(worker.serves for worker in workers)
    silent = "".join(f"; {worker.name} does not answer" for worker in workers if worker.is_silent)
    return f"{count} of {len(workers)} workers serve{silent}"

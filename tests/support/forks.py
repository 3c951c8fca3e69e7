"""`python -m flowguard ARGUMENTS` in a fork of a process that has imported it.

A start takes 0.1 instead of 0.6 s of processor time. Tests of the start itself (its imports, its
standard streams) run the program: `tests.interop.broker.start`.

    Fork(arguments, environment, file)  # as subprocess.Popen, with a pipe for standard output
    python -m tests.support.forks       # the process that is forked; requests come on stdin
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

IMPORTED = ("flowguard.cli", "flowguard.cli.serve", "flowguard.app", "rocksdict", "redis", "h11")
ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX = 200_000
NUMBER_BYTES = 4


class Fork(subprocess.Popen[str]):
    """A started program, with what tests use of `Popen`.

    Not tested by it: imports and their order, what the interpreter reads from the environment,
    signals during the imports, and standard input, which is empty.
    """

    def __init__(
        self, arguments: Iterable[str], environment: Mapping[str, str], stderr: IO[str]
    ) -> None:
        output, its_output = os.pipe()
        self._status, its_status = os.pipe()
        request = json.dumps([os.getcwd(), dict(environment), list(arguments)]).encode()
        server = _server(environment.get("PYTHONPATH", ""))
        try:
            socket.send_fds(server, [request], (its_output, stderr.fileno(), its_status))
        finally:
            os.close(its_output)
            os.close(its_status)
        self.args = ["flowguard", *arguments]
        self.stdin = self.stderr = None
        self.stdout = open(output)  # noqa: SIM115  `communicate` closes it
        self.returncode: int | None = None  # type: ignore[assignment]
        self.pid = self._read()

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def communicate(
        self, input: str | None = None, timeout: float | None = None
    ) -> tuple[str, str]:
        """Return what is left of the output."""
        assert input is None
        assert self.stdout is not None
        text = "" if self.stdout.closed else self.stdout.read()
        self.stdout.close()
        self.wait(timeout)
        return text, ""

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._status, select.POLLIN)
            if poller.poll(None if timeout_s is None else 1000 * timeout_s):
                self.returncode = self._read()
                os.close(self._status)
        return self.returncode

    def _read(self) -> int:
        data = os.read(self._status, NUMBER_BYTES)
        assert data, "the process that is forked has ended"
        return int.from_bytes(data, signed=True)

    def __del__(self) -> None:
        """That of `Popen` waits for a child, which this process is not."""


@cache
def _server(path: str) -> socket.socket:
    """Start a process with this PYTHONPATH; it ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environment = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, "-m", __name__]
        process = subprocess.Popen(command, stdin=theirs, env=environment, cwd=ROOT)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve() -> list[str] | None:
    """Fork for each request; return its arguments in the fork, and None at the end."""
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, which then end this.
    while True:
        data, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not data:
            return None
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _start(data, *fds)
        for fd in fds:
            os.close(fd)


def _start(request: bytes, output: int, errors: int, status: int) -> list[str]:
    """Fork again, and tell the exit code of the fork; return the arguments in it."""
    pid = os.fork()
    if pid:
        os.close(output)
        os.close(errors)
        with suppress(BrokenPipeError):  # The tests have ended.
            os.write(status, pid.to_bytes(NUMBER_BYTES, signed=True))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(status, code.to_bytes(NUMBER_BYTES, signed=True))
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, status + 1)
    folder, environment, arguments = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return list(arguments)


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    if (words := _serve()) is not None:
        from flowguard import __main__ as program

        sys.argv = ["flowguard", *words]
        program.run()

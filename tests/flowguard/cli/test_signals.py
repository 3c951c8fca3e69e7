"""Signals that come before a broker or a proxy has started, and SIGHUP for a proxy."""

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.broker import PATIENCE_S, address_in, start
from tests.support.authority import Authority
from tests.support.patience import HANG_S

pytestmark = pytest.mark.slow
SERVE = ("serve", "--listen", "127.0.0.1:0", "--store", "memory", "--http", "none")


@contextmanager
def starting(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A command that reads a pipe during its start; the start goes on when the pipe is closed."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with (folder / "log").open("w") as log:
        process = start(*arguments, str(pipe), stderr=log)
    try:
        until_s = time.monotonic() + HANG_S
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until_s
            try:
                writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # Nothing reads it yet.
                time.sleep(0.02)
        yield process, writer
    finally:
        process.kill()
        process.communicate()


def wait_for_log(folder: Path, text: str) -> None:
    until_s = time.monotonic() + HANG_S
    while text not in (found := (folder / "log").read_text()):
        assert time.monotonic() < until_s, found
        time.sleep(0.02)


def logged(folder: Path) -> list[str]:
    """Return the lines of the log without time and level."""
    return [line.partition("] ")[2] for line in (folder / "log").read_text().splitlines()]


def test_sighup_during_the_start_is_obeyed_after_it(tmp_path: Path) -> None:
    with starting(tmp_path, *SERVE, "--shadow") as (process, writer):
        # A signal just before the read of the pipe waits for the next one.
        until_s = time.monotonic() + HANG_S
        while "SIGHUP deferred until the start is complete" not in (tmp_path / "log").read_text():
            assert time.monotonic() < until_s
            process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
        os.write(writer, b"[flow]\nwindow_max = 50\n")
        os.close(writer)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on ")
        wait_for_log(tmp_path, "reloaded certificates")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    lines = [each.split() for each in logged(tmp_path) if each.startswith("signal received")]
    assert {"signal=SIGHUP", "signal=SIGTERM"} == {name for *_, name in lines}
    assert lines[-1] == ["signal", "received", "signal=SIGTERM"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "arguments",
    [(*SERVE, "--shadow"), ("proxy", "--upstream", "127.0.0.1:1", "--config")],
    ids=["serve", "proxy"],
)
def test_sigterm_during_the_start_ends_it_with_0(
    arguments: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    with starting(tmp_path, *arguments) as (process, _):
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    log = (tmp_path / "log").read_text()
    assert "stopping during the start" in log
    assert "Traceback" not in log


def test_the_second_sigterm_ends_a_process_that_does_not_handle_the_first() -> None:
    """The event loop does not run yet, or has ended."""
    program = (
        "import time; from flowguard.cli.signals import start_signals\n"
        "with start_signals(): pass\n"
        "print('started', flush=True)\n"
        "while True: time.sleep(1)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            until_s = time.monotonic() + HANG_S
            while process.poll() is None:  # Two signals at once count as one.
                assert time.monotonic() < until_s
                process.send_signal(signal.SIGTERM)
                time.sleep(0.1)
            assert process.returncode == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_a_start_that_fails_leaves_no_file_of_a_unix_socket(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    place = tmp_path / "socket"
    process = start("serve", "--listen", f"unix:{place}", "--data", str(tmp_path / "data"))
    _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, complaint
    assert not place.exists()


def test_sighup_makes_a_proxy_read_its_certificates_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue("127.0.0.1"), authority.issue("127.0.0.1")
    for name in ("cert", "key"):
        (tmp_path / name).write_bytes(Path(getattr(first, name)).read_bytes())
    files = ("--cert", str(tmp_path / "cert"), "--key", str(tmp_path / "key"))
    with (tmp_path / "log").open("w") as log:
        words = ("proxy", "--upstream", "127.0.0.1:1", "--listen", "mqtts://127.0.0.1:0")
        process = start(*words, *files, stderr=log)
    try:
        assert process.stdout is not None
        address = address_in(process.stdout.readline())
        before = ssl.get_server_certificate(address)
        for name in ("cert", "key"):
            (tmp_path / name).write_bytes(Path(getattr(second, name)).read_bytes())
        process.send_signal(signal.SIGHUP)
        wait_for_log(tmp_path, "reloaded certificates")
        assert ssl.get_server_certificate(address) != before
        (tmp_path / "cert").write_text("no certificate")
        process.send_signal(signal.SIGHUP)
        wait_for_log(tmp_path, "reload failed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()

"""Standard output that is closed or full: commands report it, and a broker serves on."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interop.broker import PATIENCE_S
from tests.support.patience import HANG_S

pytestmark = pytest.mark.slow
CONNECT = b"\x10\x0d\0\4MQTT\4\2\0\0\0\1c"
OUTPUTS = {">/dev/full": "No space left on device", ">&-": "Bad file descriptor"}
CONF = "listener 1883 127.0.0.1\nallow_anonymous true\n"


def command(arguments: str, redirection: str) -> list[str]:
    return [
        "sh",
        "-c",
        f"exec {shlex.quote(sys.executable)} -m flowguard {arguments} {redirection}",
    ]


@pytest.mark.parametrize(
    ("arguments", "redirection"),
    [
        ("--help", ">/dev/full"),
        ("--version", ">&-"),
        ("settings", ">/dev/full"),
        ("settings", ">&-"),
        ("serve --help", ">&-"),
        ("import CONF", ">/dev/full"),
        ("simulate --list", ">&-"),
    ],
)
def test_a_command_says_that_its_output_cannot_be_written(
    arguments: str, redirection: str, tmp_path: Path
) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(CONF)
    ended = subprocess.run(
        command(arguments.replace("CONF", str(conf)), redirection),
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    said = f"flowguard cannot write to standard output: {OUTPUTS[redirection]}\n"
    assert ended.stderr.endswith(said)
    assert "Traceback" not in ended.stderr


def test_a_reader_that_has_enough_is_no_error_to_speak_of() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "flowguard", "settings"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("redirection", [*OUTPUTS, "<&- >&- 2>&-", "2>/dev/full"])
def test_a_broker_serves_without_standard_streams(redirection: str, tmp_path: Path) -> None:
    place = tmp_path / "socket"
    words = f"serve --listen unix:{place} --data {tmp_path / 'data'} --http none"
    with subprocess.Popen(command(words, redirection)) as broker:
        try:
            until_s = time.monotonic() + HANG_S
            while not place.exists():
                assert broker.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.02)
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PATIENCE_S)
                client.connect(str(place))
                client.sendall(CONNECT)
                assert client.recv(4) == b"\x20\x02\0\0"
                for number in range(3):
                    opened = Path(f"/proc/{broker.pid}/fd/{number}").readlink()
                    assert not str(opened).startswith(("socket", "anon", str(tmp_path)))
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(PATIENCE_S) == 0
        finally:
            broker.kill()

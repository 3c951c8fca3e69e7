"""The commands of the pages for operators, run as they stand there."""

import re
import shutil
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.interop.broker import Broker, running_broker

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def flowguard(folder: Path, *words: str) -> str:
    """Run the command and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "flowguard", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with the files that the TLS recipe makes."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    for block in blocks("operate/tls.md", "sh"):
        if block.startswith("openssl"):
            subprocess.run(["sh", "-ec", block], cwd=tmp_path, capture_output=True, check=True)
    return tmp_path


@pytest.mark.slow
def test_the_tls_recipe_makes_a_broker_that_requires_client_certificates(
    certificates: Path,
) -> None:
    (serve,) = [block for block in blocks("operate/tls.md", "sh") if "flowguard serve" in block]
    words = serve.split()[serve.split().index("serve") + 1 :]
    options = [str(certificates / word) if "." in word[1:-1] else word for word in words]
    options[words.index("mqtts://0.0.0.0:8883")] = "mqtts://127.0.0.1:0"
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    with running_broker(certificates, *options) as broker:
        stranger = answer(broker, context)
        context.load_cert_chain(certificates / "device.pem", certificates / "device.key")
        assert (stranger, answer(broker, context)) == (b"", ACCEPTED)


CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01d"
ACCEPTED = b"\x20\x02\x00\x00"


def answer(broker: Broker, context: ssl.SSLContext) -> bytes:
    """Connect by TLS and return the CONNACK, or b"" if the broker ends the connection."""
    address = (broker.host, broker.port)
    with suppress(ssl.SSLError, ConnectionError):
        raw = socket.create_connection(address)
        with raw, context.wrap_socket(raw, server_hostname="localhost") as device:
            device.sendall(CONNECT)
            return device.recv(4)
    return b""


@pytest.mark.slow
def test_the_configuration_of_the_first_day_is_valid(certificates: Path) -> None:
    broker, rules = blocks("start/operator.md", "toml")
    (certificates / "broker.toml").write_text(broker)
    (certificates / "rules.toml").write_text(rules)
    lines = "".join(blocks("start/operator.md", "sh")).splitlines()
    (passwd,) = [line.split()[1:] for line in lines if " passwd " in line]
    subprocess.run(
        [sys.executable, "-m", "flowguard", *passwd],
        cwd=certificates,
        input="secret\nsecret\n",
        text=True,
        capture_output=True,
        check=True,
    )
    assert flowguard(certificates, "check", "broker.toml")


@pytest.mark.slow
def test_the_backup_drill_copies_verifies_and_serves(tmp_path: Path) -> None:
    (drill,) = blocks("operate/backup.md", "sh")
    lines = [line.split("#")[0].split()[1:] for line in drill.splitlines()]
    backup, verify, info, serve = lines
    with running_broker(tmp_path / "broker", "--http", "127.0.0.1:0") as broker:
        assert broker.process.stdout is not None
        http = broker.process.stdout.readline().removeprefix("http on ").split()[0]
        data = str(tmp_path / "broker" / "data")
        flowguard(tmp_path, *backup, "--data", data, "--url", http)
    assert flowguard(tmp_path, *verify)
    assert flowguard(tmp_path, *info)
    copy = tmp_path / serve[serve.index("--data") + 1]
    with running_broker(tmp_path / "restored", "--data", str(copy)) as broker:
        assert broker.port

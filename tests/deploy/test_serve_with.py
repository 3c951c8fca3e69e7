"""`make serve-redis`, `serve-kafka`: a server and a broker, which begin and end together."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack, Puback, Suback, Subscribe
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.interop.broker import PATIENCE_S, Broker, address_in
from tests.support.caller import Caller
from tests.support.kafka import PEERS, jvm, needs_kafka
from tests.support.redis_server import needs_redis

SCRIPT = Path(__file__).parents[2] / "scripts" / "serve-with.sh"
WORDS = ("--listen", "127.0.0.1:0", "--http", "none")

pytestmark = pytest.mark.slow


@dataclass
class Script:
    """The script in a folder of its own, where `.venv` has this flowguard."""

    path: Path
    kind: str

    @property
    def log(self) -> Path:
        return self.path.parent / "log"

    @property
    def folder(self) -> Path:
        return self.path.parents[1] / f"flowguard-{self.kind}"

    @property
    def words(self) -> list[str | Path]:
        return [self.path, self.kind, *WORDS]


@pytest.fixture(params=["redis", "kafka"])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Script:
    kind = request.param
    needs_redis() if kind == "redis" else needs_kafka()
    if shutil.which("flock") is None:
        pytest.skip("flock is missing (util-linux)")
    for name, words in (("flowguard", "-m flowguard "), ("python", "")):
        program = tmp_path / ".venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        program.chmod(0o755)
    (tmp_path / ".peers").symlink_to(PEERS)
    copy = tmp_path / "scripts" / SCRIPT.name
    copy.parent.mkdir()
    shutil.copy(SCRIPT, copy)
    return Script(copy, kind)


@dataclass
class Served:
    process: "subprocess.Popen[str]"
    broker: Broker


@contextmanager
def serving(script: Script) -> Iterator[Served]:
    """The script at work, in a process group of its own, as from a terminal."""
    quick = {"JAVA_TOOL_OPTIONS": " ".join(jvm())} if script.kind == "kafka" else {}
    with script.log.open("wb") as log:
        process = subprocess.Popen(
            script.words,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env={**os.environ, **quick},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if script.kind == "kafka":
            assert line.startswith("kafka on 127.0.0.1:"), script.log.read_text()
            line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), script.log.read_text()
        host, port = address_in(line)
        yield Served(process, Broker(process, host, port, script.log))
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def subscriber(served: Served) -> Caller:
    """A client whose session stays, and whose queue is in Kafka if there is one."""
    properties = Properties(session_expiry_interval=600)
    return Caller(served.broker, client_id="app-1", clean_start=False, properties=properties)


def test_interrupt_drains_the_broker_and_then_ends_the_server_which_keeps_messages(
    script: Script,
) -> None:
    with serving(script) as served:
        second = subprocess.run(
            script.words, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert second.returncode == 1
        assert second.stderr.startswith(f"another {script.kind} server has ")
        with subscriber(served) as client:
            assert isinstance(client.read(), Connack)
            client.send(Subscribe(1, (("t/#", SubscriptionOptions(1)),)))
            assert isinstance(client.read(), Suback)
        with Caller(served.broker, client_id="other") as client:
            assert isinstance(client.read(), Connack)
            client.send(Publish("t/1", b"kept", 1, packet_id=7))
            assert isinstance(client.read(), Puback)
        os.killpg(served.process.pid, signal.SIGINT)
        assert served.process.wait(PATIENCE_S) == 0
        assert " drained " in script.log.read_text()
    if script.kind == "redis":
        server = (script.folder / "redis.log").read_text()
        assert "Received SIGINT" not in server
        assert "ready to exit" in server
    else:
        assert (script.folder / "kafka" / ".kafka_cleanshutdown").exists()
        assert list((script.folder / "kafka").glob("fg1.app.*"))
    with serving(script) as served, subscriber(served) as client:
        assert isinstance(client.read(), Connack)
        message = client.read()
        assert isinstance(message, Publish)
        assert message.payload == b"kept"

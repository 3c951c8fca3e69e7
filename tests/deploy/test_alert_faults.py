"""Each alert against the metrics of a real fault: a broker is recorded, promtool judges."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from flowguard.cli.app import app
from tests.deploy.alert_faults import FAULTS, certificate, settings, store_away
from tests.deploy.recording import Recording
from tests.deploy.test_prometheus import RULES, alerts, program
from tests.interop.broker import running_broker, start
from tests.support.redis_server import ALWAYS, redis_server

COMMAND = re.compile(r"flowguard ([a-z]+(?: [a-z]+)?)")
LONG = {"FlowguardKafkaAway"}
"""Kafka is down for half a minute."""


@pytest.fixture
def promtool() -> str:
    return program("promtool")


def test_each_alert_has_a_recorded_fault() -> None:
    assert list(FAULTS) == alerts()


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.usefixtures("promtool")
@pytest.mark.parametrize(
    "alert",
    [pytest.param(alert, marks=pytest.mark.long if alert in LONG else ()) for alert in FAULTS],
)
def test_fault_fires_its_alert_and_no_other(alert: str, tmp_path: Path) -> None:
    recording, interval = FAULTS[alert](tmp_path)
    assert recording.firing(tmp_path, interval) == {alert}


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.usefixtures("promtool")
def test_nothing_fires_when_the_store_is_available_again(tmp_path: Path) -> None:
    recording, interval = store_away(tmp_path, recovers=True)
    assert recording.firing(tmp_path, interval) == set()


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.usefixtures("promtool")
def test_certificate_of_two_months_fires_nothing(tmp_path: Path) -> None:
    recording, interval = certificate(tmp_path, days=60)
    assert recording.firing(tmp_path, interval) == set()


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.usefixtures("promtool")
def test_standby_pages_only_if_redis_is_unavailable(tmp_path: Path) -> None:
    words = ("serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--takeover")
    with redis_server(tmp_path / "redis", ALWAYS) as redis:
        environment = settings(redis, "standby")
        with running_broker(tmp_path, "--store", "redis", environment=environment):
            standby = start(*words, "--store", "redis", environment=environment)
            assert standby.stderr is not None
            try:
                while "standby: http listens" not in (line := standby.stderr.readline()):
                    assert line
                port = re.findall(r"port\S*=\S*?(\d{4,5})", re.sub(r"\x1b\[[\d;]*m", "", line))[0]
                recording = Recording(f"127.0.0.1:{port}")
                recording.until(lambda now: now["flowguard_store_away_seconds"] == 0)
                while "standby: starts" not in (line := standby.stderr.readline()):
                    assert line
                assert recording.firing(tmp_path, "1s") == set()
                redis.pause()
                try:
                    recording.until(lambda now: now["flowguard_store_away_seconds"] > 11)
                finally:
                    redis.resume()
                assert recording.firing(tmp_path, "1s") == {"FlowguardStoreAway"}
            finally:
                standby.kill()
                standby.communicate()


@pytest.mark.parametrize("name", ["alerts.yml", "proxy.yml"])
def test_commands_in_alerts_exist(name: str) -> None:
    text = (RULES.parent / name).read_text()
    root: Any = get_command(app)
    commands = [found.split() for found in COMMAND.findall(text.partition("groups:")[2])]
    assert ["top"] in [words[:1] for words in commands]
    for words in commands:
        command = root.get_command(None, words[0])
        assert command is not None, words
        nested = getattr(command, "commands", None)
        if nested is not None:
            assert words[1] in nested, words

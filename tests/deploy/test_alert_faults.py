"""Alerts against the metrics of real faults: a broker's /metrics are recorded, promtool judges."""

import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from flowguard.cli.app import app
from flowguard.codec.packets import Connack
from tests.deploy.test_prometheus import NAME, RULES, program
from tests.flowguard.cli.http_port import http_address
from tests.interop.broker import PATIENCE_S, Broker, running_broker, start
from tests.support.authority import Authority
from tests.support.caller import Caller
from tests.support.redis_server import ALWAYS, RedisServer, redis_server

pytestmark = [pytest.mark.peers, pytest.mark.slow]

SAMPLE = re.compile(r"(\w+(?:\{[^}]*\})?) (\S+)")
COMMAND = re.compile(r"flowguard ([a-z]+(?: [a-z]+)?)")
NAMED = set(NAME.findall(RULES.read_text()))
SAMPLES_COUNT = 15


class Recording:
    """Samples of the series that rules name, as promtool reads them."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._samples: list[dict[str, str]] = []
        self._began_s = time.time()

    def take(self) -> dict[str, float]:
        """Record /metrics once; return the sample."""
        with urllib.request.urlopen(
            f"http://{self._address}/metrics", timeout=PATIENCE_S
        ) as answer:
            text = answer.read().decode()
        found = {
            name: value for name, value in SAMPLE.findall(text) if name.partition("{")[0] in NAMED
        }
        for name in found:
            if name.startswith(
                "flowguard_certificate_expiry"
            ):  # The clock of promtool begins at 0.
                found[name] = str(float(found[name]) - self._began_s)
        self._samples.append(found)
        return {name: float(value) for name, value in found.items()}

    def firing(self, folder: Path, interval: str) -> set[str]:
        """Return the alerts that fire at the end, if a sample stands for `interval`."""
        names = {name for sample in self._samples for name in sample}
        series = [
            f"      - series: '{_with_instance(name)}'\n"
            f"        values: '{' '.join(sample.get(name, '_') for sample in self._samples)}'\n"
            for name in sorted(names)
        ]
        end = f"{(len(self._samples) - 1) * int(interval[:-1])}{interval[-1]}"
        file = folder / "fault.test.yml"
        file.write_text(
            f"rule_files: ['{RULES}']\nevaluation_interval: {interval}\ntests:\n"
            f"  - interval: {interval}\n    input_series:\n{''.join(series)}"
            "    promql_expr_test:\n"
            '      - expr: count by (alertname) (ALERTS{alertstate="firing"})\n'
            f"        eval_time: {end}\n"
            "        exp_samples: [{labels: '{never=\"1\"}', value: 1}]\n"
        )
        done = subprocess.run(
            [program("promtool"), "test", "rules", str(file)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert "exp:" in done.stderr + done.stdout, done.stderr + done.stdout
        got = (done.stderr + done.stdout).partition("got:")[2]
        return set(re.findall(r'alertname="(\w+)"', got))


def _with_instance(name: str) -> str:
    metric, _, labels = name.partition("{")
    return f'{metric}{{instance="a",job="flowguard",{labels.removesuffix("}")}}}'.replace(",}", "}")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    program("promtool")
    with redis_server(tmp_path_factory.mktemp("redis"), ALWAYS) as server:
        yield server


def settings(server: RedisServer, prefix: str) -> dict[str, str]:
    return {
        "FLOWGUARD_REDIS__LEASE_S": "60",
        "FLOWGUARD_REDIS__PREFIX": prefix,
        "FLOWGUARD_REDIS__TIMEOUT_S": "1",
        "FLOWGUARD_REDIS__URL": server.url,
    }


def record_until(recording: Recording, condition: Callable[[dict[str, float]], bool]) -> None:
    """Record once per second until a sample meets the condition."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition(recording.take()):
        assert time.monotonic() < deadline_s
        time.sleep(1.0)


def test_stopped_store_pages(redis: RedisServer, tmp_path: Path) -> None:
    environment = {**settings(redis, "stopped"), "FLOWGUARD_REDIS__LEASE_S": "4"}
    with running_broker(tmp_path, "--store", "redis", environment=environment) as broker:
        recording = Recording(http_address(broker))
        recording.take()
        redis.pause()
        try:
            record_until(recording, lambda now: now["flowguard_store_away_seconds"] > 11)
        finally:
            redis.resume()
        assert recording.firing(tmp_path, "1s") == {"FlowguardStoreAway"}
        record_until(recording, lambda now: now["flowguard_store_away_seconds"] == 0)
        assert recording.firing(tmp_path, "1s") == set()


def test_standby_pages_only_if_redis_is_unavailable(redis: RedisServer, tmp_path: Path) -> None:
    environment = settings(redis, "standby")
    words = ("serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--takeover")
    with running_broker(tmp_path, "--store", "redis", environment=environment):
        standby = start(*words, "--store", "redis", environment=environment)
        assert standby.stderr is not None
        try:
            while "standby: http listens" not in (line := standby.stderr.readline()):
                assert line
            port = re.findall(r"port\S*=\S*?(\d{4,5})", re.sub(r"\x1b\[[\d;]*m", "", line))[0]
            recording = Recording(f"127.0.0.1:{port}")
            record_until(recording, lambda now: now["flowguard_store_away_seconds"] == 0)
            while "standby: starts" not in (line := standby.stderr.readline()):
                assert line
            assert recording.firing(tmp_path, "1s") == set()
            redis.pause()
            try:
                record_until(recording, lambda now: now["flowguard_store_away_seconds"] > 11)
            finally:
                redis.resume()
            assert recording.firing(tmp_path, "1s") == {"FlowguardStoreAway"}
        finally:
            standby.kill()
            standby.communicate()


@pytest.mark.parametrize(("days", "alerts"), [(5, {"FlowguardCertificateExpires"}), (60, set())])
def test_certificate_that_ends_soon_pages(tmp_path: Path, days: int, alerts: set[str]) -> None:
    program("promtool")
    pair = Authority(tmp_path).issue("server", days=days)
    words = ("--listen", "mqtts://127.0.0.1:0", "--cert", str(pair.cert), "--key", str(pair.key))
    with running_broker(tmp_path, *words) as broker:
        recording = Recording(http_address(broker))
        recording.take()
        recording.take()
    assert recording.firing(tmp_path, "1s") == alerts


def connect_as(broker: Broker, client_id: str) -> Caller:
    caller = Caller(broker, client_id=client_id)
    assert isinstance(caller.read(), Connack)
    return caller


def test_two_devices_with_one_id_are_a_ticket(tmp_path: Path) -> None:
    program("promtool")
    with running_broker(tmp_path) as broker:
        recording = Recording(http_address(broker))
        callers = [connect_as(broker, "twin")]
        for _ in range(SAMPLES_COUNT + 5):
            callers += [connect_as(broker, "twin") for _ in range(4)]
            recording.take()
        for caller in callers:
            caller.close()
    # A sample stands for a minute.
    assert recording.firing(tmp_path, "1m") == {"FlowguardClientsTakenOver"}


def test_crowd_that_is_rejected_is_a_ticket(tmp_path: Path) -> None:
    program("promtool")
    environment = {"FLOWGUARD_NODE__CONNECTIONS_MAX": "1"}
    with running_broker(tmp_path, environment=environment) as broker:
        recording = Recording(http_address(broker))
        with connect_as(broker, "first"):
            for _ in range(SAMPLES_COUNT):
                for number in range(5):
                    with Caller(broker, client_id=f"more-{number}") as caller:
                        answer = caller.read()
                        assert isinstance(answer, Connack)
                        assert answer.reason_code
                recording.take()
    # A sample stands for a minute.
    assert recording.firing(tmp_path, "1m") == {"FlowguardClientsRefused"}


def test_commands_in_alerts_exist() -> None:
    text = RULES.read_text()
    root: Any = get_command(app)
    commands = [found.split() for found in COMMAND.findall(text.partition("groups:")[2])]
    assert ["top"] in [words[:1] for words in commands]
    for words in commands:
        command = root.get_command(None, words[0])
        assert command is not None, words
        nested = getattr(command, "commands", None)
        if nested is not None:
            assert words[1] in nested, words

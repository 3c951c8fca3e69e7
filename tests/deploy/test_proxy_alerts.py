"""Alerts and board of the proxy: each alert against the metrics of a real fault."""

import json
import re
import signal
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from flowguard.codec.packets import Connack
from flowguard.ops.metrics import registry_of
from flowguard.types import Publish
from tests.broker_adapter.proxy_stage import ProxyStage
from tests.broker_adapter.watch.running import running_proxy
from tests.broker_adapter.watch.test_proxy_watch import view
from tests.deploy.recording import Recording
from tests.deploy.test_prometheus import DEPLOY, NAME, RULES, expressions, program
from tests.interop.broker import running_broker
from tests.support.caller import Caller

PROXY_RULES = DEPLOY / "prometheus" / "proxy.yml"
BOARD = json.loads((DEPLOY / "grafana" / "proxy.json").read_text())
UNUSED_PORT = "127.0.0.1:1"


def recording_of(url: str) -> Recording:
    return Recording(url.removeprefix("http://"), RULES, PROXY_RULES)


def test_rules_and_board_name_only_metrics_that_the_proxy_has() -> None:
    stage = ProxyStage()
    stage.core.door.places = 1
    families = list(parse(generate_latest(registry_of(view(stage))).decode()))
    series = {sample.name for family in families for sample in family.samples}
    series |= {f"{each.name}_total" for each in families if each.type == "counter"}
    rules = [line for line in PROXY_RULES.read_text().splitlines() if "expr:" in line]
    variables = [one["query"] for one in BOARD["templating"]["list"]]
    named = set(NAME.findall("\n".join([*rules, *expressions(BOARD), *variables])))
    assert named
    assert named - series == set()


def lost(folder: Path, *, is_back: bool = False) -> tuple[Recording, str]:
    """The only broker is down for more than ten seconds."""
    with running_broker(folder / "first") as broker:
        upstream = (broker.host, broker.port)
        at = running_proxy(folder, upstream)
        proxy = at.__enter__()
        recording = recording_of(proxy.url)
        recording.take()
    recording.until(lambda now: now["flowguard_upstreams_away_seconds"] > 11)
    if is_back:
        listen = f"{upstream[0]}:{upstream[1]}"
        with running_broker(folder / "second", "--listen", listen, "--http", "none"):
            recording.until(lambda now: now["flowguard_upstreams_away_seconds"] == 0)
    at.__exit__(None, None, None)
    return recording, "1s"


def one_of_two_lost(folder: Path) -> tuple[Recording, str]:
    with (
        running_broker(folder / "broker") as broker,
        running_proxy(folder, (broker.host, broker.port), "--upstream", UNUSED_PORT) as proxy,
    ):
        recording = recording_of(proxy.url)
        recording.until(lambda now: now[f'flowguard_upstream_up{{upstream="{UNUSED_PORT}"}}'] == 0)
        for _ in range(3):
            recording.take()
    return recording, "30s"


def slow(folder: Path) -> tuple[Recording, str]:
    """The broker stops, and owes an acknowledgement."""
    with (
        running_broker(folder / "broker") as broker,
        running_proxy(folder, (broker.host, broker.port)) as proxy,
        Caller(proxy, client_id="me") as client,
    ):
        assert isinstance(client.read(), Connack)
        recording = recording_of(proxy.url)
        recording.take()
        broker.process.send_signal(signal.SIGSTOP)
        try:
            client.send(Publish("a", b"x", 1, packet_id=1))
            label = f'{{upstream="{broker.host}:{broker.port}"}}'
            name = f"flowguard_upstream_oldest_packet_seconds{label}"
            recording.until(lambda now: now[name] > 7)
        finally:
            broker.process.send_signal(signal.SIGCONT)
    return recording, "30s"


FAULTS = {
    "FlowguardUpstreamsAway": lost,
    "FlowguardUpstreamAway": one_of_two_lost,
    "FlowguardUpstreamSlow": slow,
}


def test_each_alert_has_a_recorded_fault() -> None:
    assert list(FAULTS) == re.findall(r"- alert: (\w+)", PROXY_RULES.read_text())


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("alert", FAULTS)
def test_fault_fires_its_alert_and_no_other(alert: str, tmp_path: Path) -> None:
    program("promtool")
    recording, interval = FAULTS[alert](tmp_path)
    assert recording.firing(tmp_path, interval) == {alert}


@pytest.mark.peers
@pytest.mark.slow
def test_nothing_fires_when_the_broker_is_back(tmp_path: Path) -> None:
    program("promtool")
    recording, interval = lost(tmp_path, is_back=True)
    assert recording.firing(tmp_path, interval) == set()

"""Alert rules and the Grafana board: judged by Prometheus itself, and by what a broker exports."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from flowguard.app.workers.cluster_http import OF_A_CLUSTER
from flowguard.flow import Reason
from flowguard.flow.policy import Rung
from flowguard.node.connect.accept_state import CheckOutcome
from flowguard.ops.common.measurement import Kind, MemoryStatus
from flowguard.ops.metrics import registry_of
from flowguard.ops.queued import QueuedMessages
from flowguard.ops.view import View
from flowguard.stores import StoreLoad
from flowguard.telemetry.progress import RecordingProgress
from tests.flowguard.cli.http_port import http_address
from tests.interop.broker import PATIENCE_S, running_broker
from tests.support.stage import Stage

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
BOARD = json.loads((DEPLOY / "grafana" / "flowguard.json").read_text())
NAME = re.compile(r"\bflowguard_\w+")
POLL_S = 0.1


def exported() -> set[str]:
    """Names of all series that a broker can have, buckets and sums included."""
    stage = Stage({"flow": {"shadow_policy": "static-1"}})
    stage.node.store_load = StoreLoad(free_bytes=1)
    stage.node.door.places = 1
    stage.node.door.certificates["server.pem"] = 1
    memory = MemoryStatus(held_bytes=1, resident_bytes=1, limit_bytes=1)
    queued = QueuedMessages(stage.node)
    queued.begin()()
    recording = RecordingProgress("live", 1)
    view = View(stage.node, lambda: stage.now_s, lambda: memory, recording, queued)
    families = list(parse(generate_latest(registry_of(view)).decode()))
    series = {sample.name for family in families for sample in family.samples}
    # A counter by reason that has counted nothing yet is there without a sample.
    series |= {f"{each.name}_total" for each in families if each.type == "counter"}
    # Without other workers there are no links.
    series |= {each.name for each in families if each.type == "gauge"}
    return series | {
        f"flowguard_{each.metric}{'_total' if each.kind is Kind.COUNTER else ''}"
        for each in OF_A_CLUSTER
    }


def expressions(board: Any = BOARD) -> list[str]:
    """Everything that a board asks Prometheus for, with its variables filled in."""
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [one["expr"] for one in board["annotations"]["list"]]
    return [each.replace("$instance", ".*").replace("$__rate_interval", "1m") for each in asked]


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES.read_text())


def test_labels_that_rules_choose_by_are_values_that_there_are() -> None:
    chosen = re.findall(r'\b(?:reason|rung)(?:=~|!=|=)"([\w|]+)"', RULES.read_text())
    values = {str(one).lower() for one in (*Reason, *CheckOutcome)}
    values |= {rung.name.lower() for rung in Rung}
    assert chosen
    assert {value for each in chosen for value in each.split("|")} <= values


def test_rules_and_board_name_only_metrics_that_exist() -> None:
    rules = [line for line in RULES.read_text().splitlines() if "expr:" in line]
    variables = [one["query"] for one in BOARD["templating"]["list"]]
    named = set(NAME.findall("\n".join([*rules, *expressions(), *variables])))
    assert named
    assert named - exported() == set()


@pytest.mark.parametrize("name", ["flowguard.json", "proxy.json"])
def test_panels_of_a_board_have_a_place_of_their_own_and_say_what_they_show(name: str) -> None:
    board = json.loads((DEPLOY / "grafana" / name).read_text())
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert panel["title"]
        assert place["x"] + place["w"] <= 24
        taken = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not taken & cells, panel["title"]
        cells |= taken
        assert all(target["legendFormat"] for target in panel["targets"])
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))


def program(name: str) -> str:
    """Return a program of Debian's package prometheus. Skips if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here: apt-get install prometheus")
    return found


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "rules", "proxy.yml"),
        ("test", "rules", "alerts.test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
)
def test_promtool_accepts_the_rules(words: tuple[str, ...]) -> None:
    promtool_accepts(RULES.parent, *words)


def promtool_accepts(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [program("promtool"), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A running one, asked by its API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **words: str) -> Any:
        url = f"{self._url}{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Yield a Prometheus that scrapes `target` four times a second, with the rules of the
    project."""
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 250ms, evaluation_interval: 250ms}\n"
        f"rule_files: ['{RULES}']\n"
        "scrape_configs:\n"
        f"  - {{job_name: flowguard, static_configs: [{{targets: ['{target}']}}]}}\n"
    )
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield Prometheus(port_of(process))
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def port_of(process: "subprocess.Popen[str]") -> int:
    """The port that it says it listens on, once it is ready."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "Server is ready" in line:
            break
    found = re.search(r'msg="Listening on".* address=127\.0\.0\.1:(\d+)', said)
    assert found is not None, said
    return int(found[1])


def until(condition: Callable[[], object]) -> None:
    """Look again until something is true."""
    for _ in range(int(PATIENCE_S / POLL_S)):
        if condition():
            return
        time.sleep(POLL_S)
    raise AssertionError("it never came")


@pytest.mark.peers
@pytest.mark.slow
def test_a_real_prometheus_scrapes_a_broker_and_understands_rules_and_board(tmp_path: Path) -> None:
    program("prometheus")
    with running_broker(tmp_path / "broker") as broker:
        target = http_address(broker)
        with prometheus(tmp_path, target) as watching:
            window = {"query": 'flowguard_window_packets{job="flowguard"}'}
            until(lambda: watching.ask("query", **window)["result"])
            (series,) = watching.ask("query", **window)["result"]
            assert series["metric"]["instance"] == target
            # Less while the machine is busy with other tests.
            until(lambda: watching.ask("query", **window)["result"][0]["value"][1] == "100")
            for expression in expressions():
                watching.ask("query", query=expression)
            (group,) = watching.ask("rules")["groups"]
            assert {rule["name"] for rule in group["rules"]} == set(alerts())
            until(
                lambda: (
                    {rule["health"] for rule in watching.ask("rules")["groups"][0]["rules"]}
                    == {"ok"}
                )
            )
            until(lambda: watching.ask("alerts")["alerts"] == [])

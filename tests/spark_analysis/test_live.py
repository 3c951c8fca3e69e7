"""A real broker that records itself, followed while it does, then analysed as any other run."""

import json
import time
from pathlib import Path
from socket import gethostname

import pytest
from pyspark.sql import SparkSession

from spark_analysis.analysis import analyse
from spark_analysis.following import SUMMARY, follow
from spark_analysis.report.page import write_page
from spark_analysis.runs.examination import UNFINISHED, examine, find_runs
from tests.flowguard.telemetry.test_recorder import MESSAGES, talk
from tests.interop.broker import PATIENCE_S, running_broker

pytestmark = pytest.mark.spark

CLIENTS = 3


def test_a_broker_is_followed_and_then_analysed(spark: SparkSession, tmp_path: Path) -> None:
    live, out = tmp_path / "live", tmp_path / "out"
    environment = {"FLOWGUARD_TELEMETRY__ROTATE_S": "0.1", "FLOWGUARD_FLOW__WINDOW_MAX": "50"}
    with running_broker(tmp_path, "--record", str(live), environment=environment) as broker:
        for number in range(CLIENTS):
            talk(broker, f"c{number}")
        query = follow(spark, live, out, lambda _: None, every_s=0.1)
        try:
            deadline_s = time.monotonic() + 3 * PATIENCE_S
            while followed(out) < CLIENTS * MESSAGES:
                assert time.monotonic() < deadline_s
                # Files come faster than a starved machine reads them: it never has all there are.
                assert not query.awaitTermination(1)
        finally:
            query.stop()
        assert followed(out) == CLIENTS * MESSAGES
        (unfinished,), left_out = examine(find_runs([live]))
        assert (unfinished.end["ended_by"], left_out) == (UNFINISHED, [])
        assert unfinished.end["ended_s"] > 0
    runs, left_out = examine(find_runs([live]))
    assert (len(runs), left_out) == (1, [])
    analysis = analyse(spark, runs, left_out)
    (admission,) = analysis.answers["admission"].to_pylist()
    assert (admission["accepted_count"], admission["refused_count"]) == (CLIENTS, 0)
    assert admission["accepted_ratio"] == 1.0
    (goodput,) = analysis.answers["goodput"].to_pylist()
    assert goodput["in_time_count"] == CLIENTS * MESSAGES
    (latency,) = analysis.answers["latency"].to_pylist()
    assert latency["connect_count"] == CLIENTS
    assert latency["connect_p99_s"] > 0
    assert latency["acknowledgement_count"] == CLIENTS * MESSAGES
    (loss,) = analysis.answers["loss"].to_pylist()
    assert loss["lost_count"] == 0
    (described,) = analysis.sets.to_pylist()
    assert "flow.window_max=50" in described["parameters"]
    day = analysis.day
    assert day is not None
    steps = day.rows()
    assert sum(row["attempts_count"] for row in steps) == CLIENTS
    assert sum(row["published_count"] for row in steps) == CLIENTS * MESSAGES
    assert day.from_s <= runs[0].run["started_unix_s"] <= day.until_s
    write_page(analysis, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<h1>What happened</h1>" in text
    assert gethostname() in text


def followed(out: Path) -> int:
    """Messages in the running summary so far."""
    if not (out / SUMMARY).exists():
        return 0
    rows = json.loads((out / SUMMARY).read_text())["minutes"]
    return sum(row["published_count"] for row in rows)

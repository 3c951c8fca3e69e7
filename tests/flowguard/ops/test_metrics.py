"""The metrics: what Prometheus reads is what the node counts."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from flowguard.access.rules_toml import parse_toml
from flowguard.codec.packets import Connect, Puback, Pubcomp
from flowguard.flow import Reason
from flowguard.flow.verdict import Cut
from flowguard.node.connect.authentication import Hooks
from flowguard.ops.catalogue import CATALOGUE
from flowguard.ops.common.measurement import MemoryStatus
from flowguard.ops.common.measurements import FOR_CONNECTS, FOR_MESSAGES
from flowguard.ops.metrics import registry_of
from flowguard.ops.queued import QueuedMessages
from flowguard.ops.view import View
from flowguard.stores import StoreLoad
from flowguard.telemetry.progress import RecordingProgress
from flowguard.types import MQTT_5, MQTT_311, Properties
from tests.support.stage import Stage

KEPT = Properties(session_expiry_interval=60)
"""Properties of a durable session."""
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def view_of(stage: Stage, recording: RecordingProgress | None = None) -> View:
    memory = MemoryStatus(held_bytes=900, resident_bytes=1_000, limit_bytes=4_000)
    queued = QueuedMessages(stage.node)
    queued.begin()()
    return View(stage.node, lambda: stage.now_s, lambda: memory, recording, queued)


def scrape(stage: Stage, recording: RecordingProgress | None = None) -> Samples:
    text = generate_latest(registry_of(view_of(stage, recording))).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"flowguard_{name}", frozenset(labels.items())]


def test_every_metric_has_the_prefix_a_help_and_a_type() -> None:
    for family in parse(generate_latest(registry_of(view_of(Stage()))).decode()):
        assert family.name.startswith("flowguard_")
        assert family.documentation.endswith("."), family.name
        assert family.type in ("gauge", "counter", "histogram"), family.name


def test_measurements_have_names_of_their_own() -> None:
    metrics = [each.metric for each in CATALOGUE if each.metric]
    paths = [each.path for each in CATALOGUE if each.path]
    assert len(set(metrics)) == len(metrics)
    assert len(set(paths)) == len(paths)
    inner = {path.rsplit(".", number)[0] for path in paths for number in (1, 2) if "." in path}
    assert not inner & set(paths), "a value of the status has parts of its own"


def test_a_node_with_everything_shows_the_whole_catalogue() -> None:
    stage = Stage({"flow": {"shadow_policy": "static-1"}})
    stage.node.store_load = StoreLoad(free_bytes=1)
    stage.node.door.places = 1
    stage.node.door.certificates = {"server.pem": 2e9}
    stage.connect("c").publish("t", qos=1)
    stage.advance(0.1)
    peer = SimpleNamespace(outgoing=SimpleNamespace(messages_count=3), window=7)
    stage.node.router.peers.by_name["worker-1"] = cast(Any, peer)
    text = generate_latest(registry_of(view_of(stage, RecordingProgress("live", 1)))).decode()
    families = {family.name: family for family in parse(text)}
    for each in CATALOGUE:
        if each.metric:
            family = families.pop(f"flowguard_{each.metric}")
            assert (family.type, family.documentation) == (each.kind.value, each.help)
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            assert labels == set(each.labels)
    assert not families


def test_they_are_valid_openmetrics_too() -> None:
    text = generate_openmetrics(registry_of(view_of(Stage()))).decode()
    assert list(parse_openmetrics(text))


def test_gauges_follow_the_node() -> None:
    stage = Stage({"flow": {"window_max": 40}})
    client = stage.connect("c")
    client.subscribe("t", "u")
    samples = scrape(stage)
    assert value(samples, "clients_connected") == 1
    assert value(samples, "sessions") == 1
    assert value(samples, "subscriptions") == 2
    assert value(samples, "window_packets") == value(samples, "window_max_packets") == 40
    assert value(samples, "start_time_seconds") == stage.node.started_s
    assert value(samples, "memory_resident_bytes") == 1_000
    assert value(samples, "gate_rung", rung="buffer") == 1
    assert value(samples, "gate_rung", rung="close") == 0
    client.close()
    assert value(scrape(stage), "clients_connected") == 0


def test_counters_have_their_reasons_from_the_start() -> None:
    """A series that begins at 1 has no rate."""
    stage = Stage({"session": {"queue_messages_max": 1}})
    before = scrape(stage)
    assert value(before, "messages_dropped_total", reason="queue_messages") == 0
    assert value(before, "connects_refused_total", reason="gate_deadline") == 0
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x", qos=1)
    stage.node.guard.gate.refused[Reason.GATE_DEADLINE] = 7
    stage.node.guard.gate.cuts[Cut.SERVICE] = 3
    after = scrape(stage)
    assert value(after, "messages_dropped_total", reason="queue_messages") == 2
    assert value(after, "connects_refused_total", reason="gate_deadline") == 7
    assert value(before, "connects_limit_cuts_total", cause="service") == 0
    assert value(after, "connects_limit_cuts_total", cause="service") == 3
    assert before.keys() == after.keys()


@pytest.mark.parametrize("version", [MQTT_5, MQTT_311])
def test_a_connect_beyond_a_bound_is_counted_by_that_bound(version: int) -> None:
    """And is no message that was dropped."""
    acl = '[roles.one]\nanonymous = true\nconnections_max = 1\n[roles.all]\nusers = ["*"]'
    for settings, reason, rules in (
        ({"connections_max": 1}, "connections_max", None),
        ({"sessions_max": 1}, "sessions_max", None),
        ({}, "role_connections_max", parse_toml(acl, "acl.toml")),
    ):
        stage = Stage({"node": settings}, hooks=Hooks(rules=rules))
        assert value(scrape(stage), "connects_refused_total", reason=reason) == 0
        first = stage.connect_durable("first", version=version)
        stage.attempt(Connect("second", version, clean_start=False, properties=KEPT))
        samples = scrape(stage)
        assert value(samples, "connects_refused_total", reason=reason) == 1
        assert value(samples, "connects_failed_total") == 1
        assert stage.node.counters.publish_dropped == 0
        first.close()


def test_a_connect_to_a_node_that_drains_is_counted_as_that() -> None:
    stage = Stage()
    stage.node.drain(stage.now_s)
    stage.attempt(Connect("late"))
    assert value(scrape(stage), "connects_refused_total", reason="draining") == 1


def test_a_shadow_is_seen_where_there_is_one() -> None:
    stage = Stage({"flow": {"shadow_policy": "static-1"}})
    stage.connect("c")
    stage.advance(0.1)
    samples = scrape(stage)
    assert value(samples, "shadow_window_packets") == 1
    assert value(samples, "shadow_clients_paused") == 0
    assert not any("shadow" in name for name, _ in scrape(Stage()))


def test_a_recording_is_seen_where_there_is_one() -> None:
    recording = RecordingProgress("live", 1_000, written_rows=7, used_bytes=300)
    recording.dropped_rows["attempts"] = {"rows": 5}
    samples = scrape(Stage(), recording)
    assert value(samples, "recording") == 1
    assert value(samples, "recording_rows_total") == 7
    assert value(samples, "recording_rows_dropped_total", table="attempts", bound="rows") == 5
    assert value(samples, "recording_rows_dropped_total", table="samples", bound="bytes") == 0
    assert value(samples, "recording_used_bytes") == 300
    recording.error = "no space left on device"
    assert value(scrape(Stage(), recording), "recording") == 0
    assert not any("recording" in name for name, _ in scrape(Stage()))


def test_each_reason_belongs_to_one_counter() -> None:
    assert sorted(FOR_CONNECTS + FOR_MESSAGES) == sorted(Reason)


def test_no_series_is_named_after_a_client() -> None:
    stage = Stage()
    before = scrape(stage).keys()
    for number in range(20):
        stage.connect(f"client-{number}").publish("t", b"x", qos=1)
    assert scrape(stage).keys() == before


def test_waits_for_the_store_are_a_histogram() -> None:
    stage = Stage()
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p")
    at_once = value(scrape(stage), "journal_wait_seconds_count")
    stage.hold_commits = True
    for _ in range(3):
        publisher.publish("t", b"x", qos=1)
    stage.now_s += 0.2
    stage.release_commits()
    samples = scrape(stage)
    assert value(samples, "journal_wait_seconds_bucket", le="0.1") == at_once
    assert value(samples, "journal_wait_seconds_bucket", le="0.25") > at_once
    count = value(samples, "journal_wait_seconds_count")
    assert count == value(samples, "journal_wait_seconds_bucket", le="+Inf")
    assert value(samples, "journal_wait_seconds_sum") == pytest.approx((count - at_once) * 0.2)


def test_service_of_connects_is_a_histogram() -> None:
    stage = Stage()
    stage.hold_commits = True
    stage.connect("c")
    stage.now_s += 2
    assert value(scrape(stage), "connect_service_seconds_count") == 0
    stage.release_commits()
    samples = scrape(stage)
    assert value(samples, "connect_service_seconds_bucket", le="1.0") == 0
    assert value(samples, "connect_service_seconds_bucket", le="2.5") == 1
    assert value(samples, "connect_service_seconds_sum") == pytest.approx(2)


def test_an_acknowledgement_that_nobody_waits_for_is_counted() -> None:
    stage = Stage()
    stage.connect("c").send(Puback(7), Pubcomp(7))
    assert value(scrape(stage), "unknown_acknowledgements_total") == 2

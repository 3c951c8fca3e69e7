"""A broker's records of a node are the node's actions, in the words of the schema."""

from collections.abc import Iterable
from socket import gethostname
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.packets import Connack, Connect, Puback, Pubrec, Subscribe, Will
from flowguard.config import Settings
from flowguard.flow import Reason
from flowguard.flow.load.observer import BOUNDS_S, BUCKET_RATIO
from flowguard.node.connect.attempts import CLOSED, CONNECTED, REFUSED
from flowguard.node.connect.authentication import Hooks
from flowguard.node.publish.plans import WIDE_DELIVERIES
from flowguard.telemetry import survey
from flowguard.telemetry.observation import Observation, run_row
from flowguard.telemetry.pending import Row
from flowguard.telemetry.schema import (
    ATTEMPTS,
    CONNECTIONS,
    DECISIONS,
    GOODPUT,
    LATENCIES,
    REASONS,
    RUN,
    SAMPLES,
    Table,
)
from flowguard.telemetry.survey import number_of
from flowguard.types import Properties, ReasonCode, SubscriptionOptions
from tests.support.stage import Stage

MEMORY_BYTES = 1_000
LIMIT_BYTES = 4_000


def read(table: Table, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """As they come back from a file; that a file takes them is checked on the way."""
    given = [dict(zip(table.schema.names, ("r", *row), strict=True)) for row in rows]
    found: list[dict[str, Any]] = pa.Table.from_pylist(given, schema=table.schema).to_pylist()
    for row in found:
        for column in table.columns:
            assert column.nullable or row[column.name] is not None, column.name
    return found


class Watched:
    """A stage that is recorded."""

    def __init__(
        self, settings: dict[str, dict[str, Any]] | None = None, hooks: Hooks | None = None
    ) -> None:
        self.stage = Stage(settings, hooks=hooks)
        self.observation = Observation(self.stage.node, LIMIT_BYTES)
        self.attempts: list[Row] = []
        self.stage.node.attempts.tell = lambda *ended: self.attempts.append(
            self.observation.attempt(*ended)
        )
        self.observation.begin(self.stage.now_s)

    def sample(self) -> dict[str, Any]:
        busy_s = self.stage.now_s / 4
        row = self.observation.sample(self.stage.now_s, MEMORY_BYTES, busy_s)
        return read(SAMPLES, [row])[0]

    def goodput(self) -> dict[str, Any]:
        return read(GOODPUT, [self.observation.goodput(self.stage.now_s)])[0]

    def outcomes(self) -> list[str]:
        return [row["outcome"] for row in read(ATTEMPTS, self.attempts)]


def test_a_run_says_what_its_settings_are_and_how_they_differ() -> None:
    settings = Settings.model_validate(
        {"flow": {"window_max": 7}, "telemetry": {"run_s": 60.0, "record_dir": "x"}}
    )
    (row,) = read(RUN, [run_row(settings, "flowguard", 12.5)])
    assert (row["source"], row["scenario"], row["policy"]) == ("broker", "live", "flowguard")
    assert (row["started_unix_s"], row["duration_s"], row["nodes_count"]) == (12.5, 60.0, 1)
    assert row["parameters"] == [("flow.window_max", "7")]
    assert row["host"] == gethostname()
    limits = dict(row["limits"])
    assert limits.keys() == settings.flow.model_dump().keys()
    assert (limits["window_max"], limits["shadow_policy"]) == ("7", "")


def test_a_run_leaves_out_what_follows_from_the_memory_of_the_machine() -> None:
    settings = Settings.model_validate({"flow": {"window_max": 7, "connect_buffer_max": 9}})
    (row,) = read(RUN, [run_row(settings, "flowguard", 12.5, {"flow.window_max"})])
    assert row["parameters"] == [("flow.window_max", "7")]


def test_a_run_has_the_addresses_of_its_listeners() -> None:
    listeners = [{"address": "mqtt://127.0.0.1:1"}, {"address": "ws://127.0.0.1:2"}]
    settings = Settings.model_validate({"network": {"listeners": listeners}})
    (row,) = read(RUN, [run_row(settings, "flowguard", 12.5)])
    assert row["parameters"] == [
        ("network.listeners", "mqtt://127.0.0.1:1, ws://127.0.0.1:2"),
    ]


def test_a_run_says_no_password() -> None:
    url = "redis://me:se/cr@et@127.0.0.1:6379/0"
    settings = Settings.model_validate({"store": {"kind": "redis"}, "redis": {"url": url}})
    (row,) = read(RUN, [run_row(settings, "flowguard", 12.5)])
    assert ("redis.url", "redis://127.0.0.1:6379/0") in row["parameters"]


def test_a_sample_shows_levels_of_now_and_counts_since_the_one_before() -> None:
    watched = Watched({"session": {"queue_messages_max": 1}})
    stage = watched.stage
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p")
    first = watched.sample()
    assert (first["t_s"], first["busy_s"]) == (0.0, None)
    assert (first["accepted_count"], first["connections_count"]) == (2, 2)
    stage.advance(1)
    publisher.publish("t", b"x", qos=1)
    publisher.publish("t", b"x", qos=0)
    second = watched.sample()
    assert second["t_s"] == pytest.approx(1.0)
    assert second["busy_s"] == pytest.approx(0.25)
    assert (second["accepted_count"], second["published_count"]) == (0, 2)
    assert second["delivered_count"] == 2
    assert (second["memory_bytes"], second["memory_limit_bytes"]) == (MEMORY_BYTES, LIMIT_BYTES)
    assert (second["is_alive"], second["window"], second["rung"]) == (True, 100.0, "buffer")
    stage.node.counters.drop(Reason.QUEUE_MESSAGES, 1)
    stage.node.counters.drop(Reason.NODE_DISK_QUEUE_BYTES, 2)
    stage.node.counters.drop(Reason.OFFLINE_QOS_0, 5)
    stage.node.guard.gate.refused |= {Reason.GATE_DEADLINE: 2, Reason.GATE_SUPERSEDED: 4}
    third = watched.sample()
    assert (third["dropped_count"], third["lost_count"]) == (3, 0)
    assert (third["refused_count"], third["discarded_count"]) == (2, 4)


def test_rejections_and_drops_have_their_reasons_since_the_last_second() -> None:
    watched = Watched()
    node = watched.stage.node

    def lost() -> list[tuple[str, str, int]]:
        rows = read(REASONS, watched.observation.reasons(watched.stage.now_s))
        return [(row["kind"], row["reason"], row["count"]) for row in rows]

    assert lost() == []
    node.counters.drop(Reason.QUEUE_MESSAGES, 3)
    node.guard.gate.refused |= {Reason.GATE_DEADLINE: 2}
    node.counters.lives.refused(ReasonCode.NOT_AUTHORIZED)
    assert lost() == [
        ("connect", "gate_deadline", 2),
        ("connect", "not_authorized", 1),
        ("message", "queue_messages", 3),
    ]
    node.guard.gate.refused[Reason.GATE_DEADLINE] += 1
    assert lost() == [("connect", "gate_deadline", 1)]
    assert lost() == []


def test_signals_come_back_in_their_own_unit() -> None:
    watched = Watched({"flow": {"store_objective_s": 0.05}})
    stage = watched.stage
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("t", b"x", qos=1)
    stage.advance(0.5)
    sample = watched.sample()
    assert sample["cause"] == "store"
    assert sample["pressure_ratio"] == sample["pressure_store_ratio"] > 1
    assert sample["commit_s"] == pytest.approx(0.05 * sample["pressure_store_ratio"])
    assert (sample["packets_in_process_count"], sample["published_count"]) == (1, 1)
    assert sample["unfinished_bytes"] > 0


def test_every_attempt_has_one_outcome() -> None:
    watched = Watched({"flow": {"connect_timeout_s": 5}})
    stage = watched.stage
    stage.connect("connected")
    silent = stage.open()
    unknown = Properties(authentication_method="nobody's")
    stage.open().send(Connect("refused", properties=unknown))
    leaver = stage.open()
    leaver.connection.receive_eof(stage.now_s)
    assert watched.outcomes() == [CONNECTED, REFUSED, CLOSED]
    stage.advance(6)
    assert silent.is_closed
    assert watched.outcomes()[3:] == [CLOSED]
    last = read(ATTEMPTS, watched.attempts)[3]
    assert last["started_s"] == 0.0
    assert last["ended_s"] == pytest.approx(5, abs=0.5)
    goodput = watched.goodput()
    assert (goodput["attempts_count"], goodput["declined_count"]) == (4, 3)
    assert goodput["connected_count"] == 1
    assert watched.goodput()["attempts_count"] == 0


def test_a_client_that_is_turned_away_by_a_draining_node_is_refused() -> None:
    watched = Watched()
    watched.stage.node.drain(watched.stage.now_s)
    client = watched.stage.open()
    client.send(Connect("late"))
    assert client.expect(Connack).reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert watched.outcomes() == [REFUSED]


def test_sockets_closed_at_once_are_attempts() -> None:
    watched = Watched()
    watched.stage.node.counters.connections_closed += 3
    rows = list(watched.observation.closed_at_once(watched.stage.now_s))
    assert [row["outcome"] for row in read(ATTEMPTS, rows)] == [CLOSED] * 3
    assert not list(watched.observation.closed_at_once(watched.stage.now_s))
    goodput = watched.goodput()
    assert (goodput["attempts_count"], goodput["declined_count"]) == (3, 3)
    assert watched.sample()["closed_count"] == 3


def test_attempts_are_in_the_order_of_their_ends_whatever_clock_they_come_with() -> None:
    watched = Watched()
    now_s = watched.stage.now_s
    ends_s = (2, 1, 3)
    rows = [watched.observation.attempt(None, now_s - 1, now_s + s, CLOSED) for s in ends_s]
    found = read(ATTEMPTS, rows)
    assert [row["ended_s"] for row in found] == [2, 2, 3]
    assert all(row["started_s"] == 0 for row in found)  # Before the run is its beginning.


def test_clients_that_are_rejected_before_they_have_an_id_are_different_ones() -> None:
    watched = Watched()
    connection = watched.stage.open().connection
    connection.connect_packet = Connect("")
    assert connection.client_id == ""
    ends_s = (1.0, 2.0)
    rows = [watched.observation.attempt(connection, 0.0, at_s, REFUSED) for at_s in ends_s]
    assert [row["client"] for row in read(ATTEMPTS, rows)] == [-1, -2]


def test_while_nobody_records_nothing_is_remembered() -> None:
    stage = Stage()
    before = stage.open()
    told: list[object] = []
    stage.node.attempts.tell = lambda *ended: told.append(ended)
    before.send(Connect("before"))
    assert not told
    stage.connect("after")
    assert [outcome for *_, outcome in told] == [CONNECTED]  # type: ignore[misc]


def test_latencies_are_what_was_observed_since_the_last_time() -> None:
    watched = Watched()
    stage = watched.stage
    stage.hold_commits = True
    stage.connect("c")
    stage.now_s += 0.2
    stage.release_commits()
    rows = read(LATENCIES, watched.observation.latencies(stage.now_s))
    connect = [row for row in rows if row["kind"] == "connect"]
    assert [row["count"] for row in connect] == [1]
    assert 0.2 <= connect[0]["bound_s"] <= 0.2 * 1.1
    assert {row["kind"] for row in rows} == {
        "commit",
        "connect",
    }  # No CONNACK is an acknowledgement.
    assert not list(watched.observation.latencies(stage.now_s))


def acknowledgements(watched: Watched) -> list[tuple[float, int]]:
    """Bounds and counts since the last call."""
    rows = read(LATENCIES, watched.observation.latencies(watched.stage.now_s))
    found = [(row["bound_s"], row["count"]) for row in rows if row["kind"] == "acknowledgement"]
    assert found == sorted(found)
    return found


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_waits_for_a_commit_is_observed_by_itself(qos: int) -> None:
    """Not as the oldest of its batch, and without CONNECTs and SUBSCRIBEs beside it."""
    watched = Watched()
    stage = watched.stage
    stage.connect_durable("s").subscribe("t", qos=2)
    publisher, subscriber = stage.connect("p"), stage.connect_durable("d")
    stage.hold_commits = True
    publisher.publish("t", b"x", qos=qos)
    stage.now_s += 0.3
    publisher.publish("t", b"x", qos=qos)
    subscriber.send(Subscribe(1, (("u", SubscriptionOptions(1)),)))
    stage.connect("c")
    stage.now_s += 0.2
    stage.release_commits()
    (early_s, early), (late_s, late) = acknowledgements(watched)
    assert early == late == 1
    assert 0.2 <= early_s <= 0.2 * BUCKET_RATIO
    assert 0.5 <= late_s <= 0.5 * BUCKET_RATIO
    assert acknowledgements(watched) == []


def test_a_publish_that_is_answered_at_once_is_observed_too() -> None:
    watched = Watched()
    publisher = watched.stage.connect("p")
    for qos in (0, 1, 2, 1):
        publisher.publish("t", b"x", qos=qos)
    assert acknowledgements(watched) == [(BOUNDS_S[0], 3)]


@pytest.mark.slow
def test_a_publish_that_is_delivered_piece_by_piece_is_observed_once_and_whole() -> None:
    watched = Watched()
    stage = watched.stage
    for number in range(WIDE_DELIVERIES + 1):
        stage.connect(f"s{number}").subscribe("wide")
    for publisher in (stage.connect("clean"), stage.connect_durable("durable")):
        for qos in (0, 1, 2):
            stage.hold_chores = True
            publisher.publish("wide", b"x", qos=qos)
            stage.now_s += 0.3
            stage.hold_chores = False
            stage.settle()
            found = acknowledgements(watched)
            assert [count for _, count in found] == [1] * min(qos, 1)
            assert all(0.3 <= bound_s <= 0.3 * BUCKET_RATIO for bound_s, _ in found)
    stage.node.state.read_only = True
    publisher.publish("wide", b"x", qos=2)
    assert acknowledgements(watched) == [(BOUNDS_S[0], 1)]


def test_where_nobody_publishes_nothing_is_acknowledged() -> None:
    """Wills and `$SYS` topics are messages, of the node."""
    watched = Watched({"node": {"sys_interval_s": 0.1}})
    stage = watched.stage
    stage.connect_durable("s").subscribe("#", "$SYS/#", qos=1)
    stage.connect("c", will=Will("t", b"x", qos=1, retain=True)).close()
    stage.advance(1)
    assert stage.node.counters.wills_published == 1
    assert acknowledgements(watched) == []


class NotToNo:
    """An authorizer."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return topic != "no"

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True


@given(
    messages=st.lists(
        st.tuples(
            st.integers(0, 2), st.booleans(), st.sampled_from(["durable", "clean", "none", "no"])
        ),
        max_size=20,
    ),
    holds=st.booleans(),
)
def test_every_publish_that_is_answered_is_observed_once(
    messages: list[tuple[int, bool, str]], holds: bool
) -> None:
    """However it is answered: at once, after a commit, with a refusal."""
    watched = Watched({"node": {"retained_messages_max": 1}}, Hooks(authorizer=NotToNo()))
    stage = watched.stage
    stage.connect_durable("s").subscribe("durable", qos=2)
    stage.connect("c").subscribe("clean", qos=2)
    publisher = stage.connect_durable("p") if holds else stage.connect("p")
    for number, (qos, retain, topic) in enumerate(messages):
        stage.hold_commits = holds and number % 3 == 0
        publisher.publish(topic, b"x", qos=qos, retain=retain)
    stage.release_commits()
    answers = [one for one in publisher.take() if isinstance(one, Puback | Pubrec)]
    assert len(answers) == sum(1 for qos, _, _ in messages if qos)
    assert sum(count for _, count in acknowledgements(watched)) == len(answers)


def test_decisions_begin_with_what_is_in_force_and_come_once() -> None:
    watched = Watched()
    stage = watched.stage
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("t", b"x", qos=1)
    publisher.publish("t", b"y", qos=1)
    found = []
    for _ in range(20):
        stage.advance(0.1)
        found += read(DECISIONS, watched.observation.decisions(stage.now_s))
    windows = [row for row in found if row["kind"] == "window"]
    assert windows[0]["before"] == 100.0
    assert [row["after"] for row in windows[:-1]] == [row["before"] for row in windows[1:]]
    assert windows[-1]["after"] == stage.node.guard.grant.window < 100
    assert all(row["why"] for row in windows)
    cuts = [row for row in windows if row["after"] < row["before"]]
    assert {row["cause"] for row in cuts} == {"queue"}  # Both packets wait for the store.
    limits = [row for row in found if row["kind"] == "connect_limit"]
    assert limits[-1]["after"] == stage.node.guard.gate.limit
    times_s = [row["t_s"] for row in found]
    assert times_s == sorted(times_s)
    watched.observation.begin(stage.now_s)
    assert not list(watched.observation.decisions(stage.now_s))


# --- connections -----------------------------------------------------------------------------


def looked_at(watched: Watched) -> dict[str, Any] | None:
    row = watched.observation.connection(watched.stage.now_s)
    return None if row is None else read(CONNECTIONS, [row])[0]


def test_connected_clients_are_looked_at_one_after_the_other() -> None:
    watched = Watched()
    stage = watched.stage
    assert looked_at(watched) is None
    stage.connect_durable("s").subscribe("t", "u", qos=1)
    publisher = stage.connect("p", keep_alive_s=20)
    stage.advance(1)
    stage.hold_commits = True
    publisher.publish("t", b"x", qos=1)
    by_client = {row["client"]: row for row in (looked_at(watched) for _ in range(4)) if row}
    subscriber, other = (by_client[number_of(name)] for name in ("s", "p"))
    assert (subscriber["subscriptions_count"], subscriber["is_durable"]) == (2, True)
    assert (other["subscriptions_count"], other["is_durable"]) == (0, False)
    assert (subscriber["in_process_count"], other["in_process_count"]) == (0, 1)
    assert (subscriber["keep_alive_s"], other["keep_alive_s"]) == (0, 20)
    assert other["received_bytes"] > 0
    assert other["age_s"] == pytest.approx(1.0)
    attempts = read(ATTEMPTS, watched.attempts)
    assert [row["client"] for row in attempts] == [number_of("s"), number_of("p")]


def test_clients_that_have_left_are_forgotten() -> None:
    watched = Watched()
    watched.stage.connect("gone").close()
    stays = watched.stage.connect("stays")
    rows = [looked_at(watched) for _ in range(3)]
    assert {row["client"] for row in rows if row} == {number_of("stays")}
    stays.close()
    assert looked_at(watched) is None


def test_attempts_without_a_connect_have_numbers_of_their_own() -> None:
    watched = Watched()
    for _ in range(2):
        watched.stage.open().connection.receive_eof(watched.stage.now_s)
    assert [row["client"] for row in read(ATTEMPTS, watched.attempts)] == [-1, -2]


def test_a_sample_has_the_window_of_limits_that_only_watch() -> None:
    assert Watched().sample()["shadow_window"] is None
    watched = Watched({"flow": {"shadow_policy": "flowguard", "window_max": 70}})
    watched.stage.advance(1.0)
    found = watched.sample()
    assert (found["shadow_window"], found["shadow_paused_count"]) == (70.0, 0)


def test_a_sample_counts_commits_their_operations_and_payloads() -> None:
    watched = Watched()
    stage = watched.stage
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p")
    watched.sample()
    publisher.publish("t", b"12345", qos=1)
    stage.node.journal.written.latency.observe(0.25)
    found = watched.sample()
    assert found["committing_s"] == pytest.approx(0.25)
    assert found["commits_count"] >= 1
    assert found["stored_count"] >= 1
    assert found["payload_bytes"] == 5
    rows = read(LATENCIES, watched.observation.latencies(stage.now_s))
    assert sum(row["count"] for row in rows if row["kind"] == "commit") >= found["commits_count"]


def test_clients_that_stay_are_looked_at_however_many_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fixed(client_id: str) -> int:
        return crc32(client_id.encode()) << 31

    monkeypatch.setattr(survey, "SAMPLE_MAX", 20)
    monkeypatch.setattr(survey, "number_of", fixed)
    watched = Watched()
    for number in range(100):
        watched.stage.connect(f"stays-{number}")
    short = [watched.stage.connect(f"goes-{number}") for number in range(10)]
    for number in range(10, 1_000):
        short.pop(0).disconnect()
        short.append(watched.stage.connect(f"goes-{number}"))
        looked_at(watched)
    found = {row["client"] for row in (looked_at(watched) for _ in range(40)) if row}
    stay = found & {fixed(f"stays-{number}") for number in range(100)}
    assert len(stay) >= 5
    assert len(stay) > len(found) / 2

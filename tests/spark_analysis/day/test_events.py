"""What happened on a day, from rows written by hand."""

from typing import Any

import pytest

from spark_analysis.day.events import Lifetime, Row, events, fleet
from spark_analysis.day.worst import advice, downtimes, sufferers, why, worst

STEP_S = 5
START_S = 1_000_000


def step(number: int, **columns: Any) -> Row:
    """A quiet step, with what differs."""
    return {
        "broker": "a",
        "at_s": START_S + STEP_S * number,
        "pressure_ratio": 0.2,
        "cause": None,
        "overload_ratio": 0.0,
        "closing_ratio": 0.0,
        "window": 100.0,
        "connect_limit": 1024,
        "memory_bytes": 1_000_000,
        "memory_ratio": 0.1,
        "commit_s": 0.01,
        "drift_s": 0.001,
        "busy_s": 0.5,
        "connect_p50_s": 0.01,
        "connect_p99_s": 0.02,
        "acknowledgement_p50_s": 0.01,
        "acknowledgement_p99_s": 0.02,
        "connected_count": 40,
        "attempts_count": 5,
        "accepted_count": 5,
        "refused_count": 0,
        "discarded_count": 0,
        "closed_count": 0,
        "published_count": 100,
        "delivered_count": 100,
        "dropped_count": 0,
        "shadow_window": None,
        "shadow_share": None,
        "shadow_paused_count": None,
        **columns,
    }


def hour(**odd: Row) -> list[Row]:
    """An hour of quiet steps, of which some differ: `s100={"window": 1.0}`."""
    return [step(number, **odd.get(f"s{number}", {})) for number in range(720)]


def reason(number: int, name: str, count: int, kind: str = "connect") -> Row:
    at_s = START_S + STEP_S * number
    return {"broker": "a", "at_s": at_s, "kind": kind, "reason": name, "count": count}


def life(from_s: float, until_s: float, ended_by: str = "stopped", **more: Any) -> Lifetime:
    words = {"broker": "a", "version": "0.1", "settings": {}, **more}
    return Lifetime(from_s=START_S + from_s, until_s=START_S + until_s, ended_by=ended_by, **words)


def test_a_quiet_day_has_no_event_and_no_worst_minutes() -> None:
    lives = [life(0, 1800, "duration"), life(1800.1, 3600)]
    assert events(hour(), [], lives, STEP_S) == []
    assert worst(hour(), [], lives, STEP_S) is None


def test_a_crowd_a_stopped_store_and_a_deploy_are_named_with_their_time_and_cause() -> None:
    crowd = {f"s{number}": {"attempts_count": 1000} for number in (100, 101)}
    slow = {"pressure_ratio": 16.0, "cause": "store", "overload_ratio": 1.0, "commit_s": 60.0}
    store = {f"s{number}": {**slow, "window": 1.0} for number in range(300, 315)}
    lives = [
        life(0, 2500, settings={"flow.window_max": "50"}),
        life(2503, 3600, version="0.2", settings={"flow.window_max": "70"}),
    ]
    lost = [reason(100, "gate_buffer_full", 300), reason(101, "gate_deadline", 20)]
    crowded, stalled, deploy = events(hour(**crowd, **store), lost, lives, STEP_S)
    assert (crowded.kind, crowded.from_s, crowded.until_s) == (
        *("crowd", START_S + 500),
        START_S + 510,
    )
    assert crowded.words == "Crowd of 2,000 CONNECTs"
    assert "320 rejected (300 gate_buffer_full, 20 gate_deadline)" in crowded.detail
    assert (stalled.kind, stalled.from_s, stalled.until_s - stalled.from_s) == (
        *("store", START_S + 1500),
        75,
    )
    assert "a durable write took up to 60" in stalled.detail
    assert (deploy.kind, deploy.from_s) == ("restart", START_S + 2500)
    assert deploy.detail == "version 0.1 became 0.2; flow.window_max: 50 became 70"
    found = worst(hour(**crowd, **store), lost, lives, STEP_S)
    assert found is not None
    assert found.from_s <= START_S + 1500
    assert found.until_s >= START_S + 1575
    assert found.trouble_s == 75
    assert "the store was slow" in why(found)[0].lower()
    assert advice(found, [], STEP_S)[0].startswith("No limit helps against a slow store:")


def test_a_broker_that_ended_without_a_word_was_killed() -> None:
    (event,) = events(hour(), [], [life(0, 1000, "unknown"), life(1010, 3600)], STEP_S)
    assert event.words.startswith("Broker killed; nothing is recorded for 10")


def test_who_was_killed_was_not_down_for_as_long_as_nothing_is_recorded() -> None:
    assert downtimes([life(0, 1000, "unfinished"), life(1060, 3600)]) == []
    assert downtimes([life(0, 1000), life(1060, 3600)]) == [(START_S + 1000, START_S + 1060)]


def test_messages_dropped_as_asked_are_no_trouble() -> None:
    assert (
        worst(hour(), [reason(5, "offline_qos_0", 9, "message")], [life(0, 3600)], STEP_S) is None
    )
    found = worst(hour(), [reason(5, "queue_messages", 9, "message")], [life(0, 3600)], STEP_S)
    assert found is not None
    assert found.trouble_s == STEP_S


def test_a_message_that_rules_forbid_is_no_connect_with_wrong_credentials() -> None:
    lost = [reason(5, "not_authorized", 9, "message"), reason(5, "queue_messages", 9, "message")]
    found = worst(hour(), lost, [life(0, 3600)], STEP_S)
    assert found is not None
    assert not any("credentials" in words for words in advice(found, [], STEP_S))


def test_a_window_is_called_cut_only_if_it_was_larger_before() -> None:
    slow = {"pressure_ratio": 4.0, "cause": "store", "overload_ratio": 1.0, "commit_s": 2.0}
    (event,) = events(hour(**{f"s{n}": slow for n in range(300, 315)}), [], [], STEP_S)
    assert "window" not in event.detail
    cut = {f"s{n}": {**slow, "window": 3.0} for n in range(300, 315)}
    (event,) = events(hour(**cut), [], [], STEP_S)
    assert "window of each client down to 3 packets" in event.detail


def test_a_long_value_of_a_setting_is_not_shown_where_it_changes() -> None:
    lives = [
        life(0, 1000, settings={"network.listeners": "x" * 100}),
        life(1010, 3600, settings={"flow.window_max": "50"}),
    ]
    (event,) = events(hour(), [], lives, STEP_S)
    assert event.detail == "flow.window_max: default became 50; network.listeners changed"


def test_rejections_without_overload_point_to_the_limit_that_was_reached() -> None:
    rows, lost = hour(), [reason(10, "connections_max", 50)]
    found = worst(rows, lost, [life(0, 3600)], STEP_S)
    assert found is not None
    assert "50 connections_max" in sufferers(found, rows)[0]
    assert why(found) == [
        "Pressure was never above 1: CONNECTs were rejected by a limit, not by overload."
    ]
    assert "node.connections_max" in advice(found, [], STEP_S)[0]


def test_brokers_together_have_sums_of_counts_and_the_worst_of_the_rest() -> None:
    busy = step(0, broker="b", pressure_ratio=3.0, cause="loop", window=20.0, connected_count=7)
    (row,) = fleet([step(0), busy])
    assert (row["connected_count"], row["attempts_count"]) == (47, 10)
    assert (row["pressure_ratio"], row["cause"], row["window"]) == (3.0, "loop", 20.0)


@pytest.mark.parametrize("gap_steps", [1, 30])
def test_episodes_are_one_if_they_are_close(gap_steps: int) -> None:
    loaded = {"pressure_ratio": 2.0, "cause": "loop", "overload_ratio": 1.0}
    rows = hour(s100=loaded, **{f"s{101 + gap_steps}": loaded})
    assert len(events(rows, [], [], STEP_S)) == (1 if gap_steps == 1 else 2)

"""Clients whose connections end again and again, and messages that a client may not publish."""

import json
from datetime import datetime

import pytest

from flowguard.access.rules_toml import parse_toml
from flowguard.node.connect.authentication import Hooks
from flowguard.ops.common.explanation import last_end
from flowguard.ops.explain import explain
from flowguard.ops.explain_words import clock_text, end_sentences, sentences
from flowguard.ops.lists.flapping import FLAPS_MIN, FlappingClient
from flowguard.ops.lists.pages import Lists
from flowguard.ops.web.ask.lists import FLAPPING, listings_of
from flowguard.session import lives, node_state
from flowguard.session.lives import ROW_GAP_S
from tests.support.stage import Stage

RULES = """
[roles.all]
anonymous = true
publish = ["allowed/#"]
"""


def flap(stage: Stage, client_id: str, times: int, every_s: float = 1.0) -> None:
    for _ in range(times):
        client = stage.connect(client_id)
        stage.now_s += every_s
        client.disconnect()


def flapping(stage: Stage) -> list[FlappingClient]:
    listing = listings_of(stage.node, lambda: stage.now_s)[FLAPPING]({})
    page = Lists().begin(listing)
    assert page is not None
    while page.step():
        pass
    assert page.is_last()
    rows: list[FlappingClient] = json.loads(page.text())
    return rows


def test_client_flaps_from_its_third_end_in_a_row() -> None:
    stage = Stage()
    flap(stage, "van", FLAPS_MIN - 1)
    assert flapping(stage) == []
    flap(stage, "van", 1)
    (row,) = flapping(stage)
    assert (row["client_id"], row["ends"], row["row_s"]) == ("van", FLAPS_MIN, FLAPS_MIN - 1)
    assert (row["reason"], row["by"], row["lasted_s"]) == ("normal_disconnection", "client", 1.0)
    assert row["state"] == "gone"
    stage.connect("van")
    assert [row["state"] for row in flapping(stage)] == ["connected"]


def test_long_connections_do_not_flap() -> None:
    stage = Stage()
    flap(stage, "van", 10, every_s=ROW_GAP_S + 1)
    assert flapping(stage) == []


def test_client_that_stays_flaps_no_more() -> None:
    stage = Stage()
    flap(stage, "van", 5)
    stage.connect("van")
    stage.now_s += ROW_GAP_S + 1
    assert flapping(stage) == []


def test_most_frequent_ends_are_first() -> None:
    stage = Stage()
    for number in range(30):
        flap(stage, f"c{number}", 3 + number % 7, every_s=0.01)
    ends = [row["ends"] for row in flapping(stage)]
    assert (len(ends), ends[0]) == (30, 9)
    assert ends == sorted(ends, reverse=True)


def test_flapping_client_is_remembered_among_many_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "LAST_MAX", 10)
    stage = Stage()
    for number in range(50):
        flap(stage, f"other-{number}", 1, every_s=0.01)
        if number % 5 == 0:
            flap(stage, "van", 1, every_s=0.01)
    assert [row["client_id"] for row in flapping(stage)] == ["van"]
    assert len(stage.node.counters.lives.last) == 10


def test_last_end_of_a_client_without_session_is_known() -> None:
    stage = Stage()
    flap(stage, "van", 4)
    assert explain(stage.node, "van", stage.now_s) is None
    end = last_end(stage.node.counters.lives, "van")
    assert end is not None
    assert end_sentences(end, stage.now_s)[1] == "4 of its connections ended within 3 s."
    assert last_end(stage.node.counters.lives, "nobody") is None


def test_rejected_messages_of_a_client_are_explained() -> None:
    stage = Stage(hooks=Hooks(rules=parse_toml(RULES, "acl.toml")))
    client = stage.connect("press")
    client.publish("allowed/1", b"x", qos=1)
    assert not any("Rejected" in line for line in said(stage))
    for number in range(3):
        client.publish(f"other/{number}", b"x", qos=1)
    (line,) = [line for line in said(stage) if line.startswith("Rejected and dropped: 3 messages")]
    assert line.endswith("to other/2 (not_authorized).")
    assert clock_text(stage.now_s, stage.now_s) in line


def said(stage: Stage) -> list[str]:
    found = explain(stage.node, "press", stage.now_s)
    assert found is not None
    return sentences(found)


def test_remembered_rejections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_state, "REJECTED_MAX", 2)
    stage = Stage(hooks=Hooks(rules=parse_toml(RULES, "acl.toml")))
    for name in ("a", "b", "c", "d" * 200):
        stage.connect(name).publish("other/" + "x" * 500, b"x")
    found = stage.node.state.rejections.last
    assert list(found) == ["b", "c"]
    assert len(found["b"].topic) == node_state.REJECTED_TEXT_MAX


def test_time_of_another_day_has_its_date() -> None:
    noon_s = datetime(2026, 11, 30, 12).timestamp()
    assert clock_text(noon_s, noon_s + 60) == "12:00:00"
    assert clock_text(noon_s, noon_s + 86_400) == "2026-11-30 12:00:00"

"""Lists of subscriptions, receivers and retained messages, and deletions."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from flowguard.access.rules_toml import parse_toml
from flowguard.node.connect.authentication import Hooks
from flowguard.ops.lists import pages, subscriptions
from flowguard.ops.lists.pages import SLICE, Listing, Lists, limit_of
from flowguard.ops.lists.retained import RetainedListing
from flowguard.ops.lists.subscriptions import ReceiverListing, SubscriptionListing
from tests.support.stage import Stage

Rows = list[Mapping[str, Any]]


def all_rows(make: Callable[[], Listing[Any, Any]], limit: int = 1_000) -> Rows:
    lists, found = Lists(), list[Mapping[str, Any]]()
    cursor: str | None = ""
    while cursor is not None:
        page = lists.begin(make(), cursor, limit)
        assert page is not None
        while page.step():
            pass
        assert page.count <= limit
        found += json.loads(page.text())
        cursor = lists.finish(page)
    return found


def filters(stage: Stage, **query: str) -> list[tuple[str, str]]:
    rows = all_rows(lambda: SubscriptionListing(stage.node, query), limit_of(query))
    return [(row["client_id"], row["filter"]) for row in rows]


def receivers(stage: Stage, topic: str) -> Rows:
    return all_rows(lambda: ReceiverListing(stage.node, {"topic": topic}))


def retained(stage: Stage, **query: str) -> list[str]:
    rows = all_rows(lambda: RetainedListing(stage.node, lambda: stage.now_s, query))
    return sorted(row["topic"] for row in rows)


# --- subscriptions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [("car-1", "a/+"), ("car-1", "a/b"), ("car-2", "$share/g/a/#"), ("van", "a/+")]),
        ({"client": "car-*"}, [("car-1", "a/+"), ("car-1", "a/b"), ("car-2", "$share/g/a/#")]),
        ({"filter": "a/+"}, [("car-1", "a/+"), ("van", "a/+")]),
        ({"filter": "a/+", "client": "v*"}, [("van", "a/+")]),
        ({"filter": "a"}, []),
    ],
)
@pytest.mark.parametrize("limit", ["1", "3", "1000"])
def test_subscriptions_of_clients_are_listed(
    query: dict[str, str], found: list[tuple[str, str]], limit: str
) -> None:
    stage = Stage()
    stage.connect("car-1").subscribe("a/+", "a/b")
    stage.connect_durable("car-2").subscribe("$share/g/a/#")
    stage.connect("van").subscribe("a/+")
    assert sorted(filters(stage, **query, limit=limit)) == sorted(found)


def test_step_looks_at_a_slice_of_the_filters_of_one_client() -> None:
    stage = Stage()
    client = stage.connect("c")
    names = [f"t/{number}" for number in range(3 * SLICE)]
    client.subscribe(*names)
    page = Lists().begin(SubscriptionListing(stage.node, {}))
    assert page is not None
    sizes = []
    while page.step():
        sizes.append(page.count)
    assert sizes == [SLICE - 1, 2 * SLICE - 1, 3 * SLICE - 1]
    assert [row["filter"] for row in json.loads(page.text())] == names


def test_page_ends_when_it_has_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 10)
    monkeypatch.setattr(pages, "SLICE", 1)
    stage = Stage()
    stage.connect("c").subscribe("a", "b", "d")
    lists = Lists()
    page = lists.begin(SubscriptionListing(stage.node, {}))
    assert page is not None
    while page.step():
        pass
    assert (page.count, lists.finish(page)) == (1, "1.0.1")
    assert filters(stage) == [("c", "a"), ("c", "b"), ("c", "d")]


# --- receivers -----------------------------------------------------------------------------------


def test_receivers_have_filter_qos_state_and_queue() -> None:
    stage = Stage()
    stage.connect("here").subscribe("a/+", qos=1)
    member = stage.connect_durable("member")
    member.subscribe("$share/g/a/#", qos=2)
    absent = stage.connect_durable("absent")
    absent.subscribe("a/b", "other", qos=1)
    absent.disconnect()
    stage.connect("other").subscribe("b", "a", "+")
    stage.connect("p").publish("a/b", b"x", qos=1)
    found = {row["client_id"]: row for row in receivers(stage, "a/b")}
    assert found.keys() == {"here", "member", "absent"}
    keys = ("filter", "qos", "state", "queue_messages", "may_receive", "client_class")
    assert [found["absent"][key] for key in keys] == ["a/b", 1, "absent", 1, True, "device"]
    assert [found["member"][key] for key in keys[:3]] == ["$share/g/a/#", 2, "connected"]
    assert receivers(stage, "nobody/wants/it") == []


def test_receivers_that_the_rules_exclude_are_marked() -> None:
    rules = '[roles.all]\nanonymous = true\nreceive = ["#"]\ndeny_receive = ["a/secret"]\n'
    stage = Stage(hooks=Hooks(rules=parse_toml(rules, "acl.toml")))
    stage.connect("c").subscribe("a/+")
    assert [row["may_receive"] for row in receivers(stage, "a/open")] == [True]
    assert [row["may_receive"] for row in receivers(stage, "a/secret")] == [False]


def test_names_of_many_receivers_are_noted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "PIECE", 2)
    stage = Stage()
    clients = [stage.connect(f"c{number}") for number in range(5)]
    for client in clients:
        client.subscribe("t")
    listing = ReceiverListing(stage.node, {"topic": "t"})
    pieces = [len(piece) for piece in listing.entries()]
    assert pieces == [0, 0, 0, 5]
    lists = Lists()
    page = lists.begin(listing, limit=2)
    assert page is not None
    while page.step():
        pass
    cursor = lists.finish(page)
    assert cursor is not None
    clients[3].disconnect()
    clients[4].unsubscribe("t")
    page = lists.begin(listing, cursor)
    assert page is not None
    while page.step():
        pass
    assert [row["client_id"] for row in json.loads(page.text())] == ["c2"]
    assert lists.finish(page) is None


@pytest.mark.parametrize("topic", ["", "a/+", "#"])
def test_filter_is_no_topic(topic: str) -> None:
    with pytest.raises(ValueError, match="without wildcards"):
        ReceiverListing(Stage().node, {"topic": topic})


# --- retained messages ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["a/1", "a/2", "b"]),
        ({"filter": "a/+"}, ["a/1", "a/2"]),
        ({"filter": "b"}, ["b"]),
        ({"filter": "c"}, []),
    ],
)
def test_retained_messages_are_listed(query: dict[str, str], found: list[str]) -> None:
    stage = Stage()
    publisher = stage.connect("p")
    for topic in ("a/1", "a/2", "b"):
        publisher.publish(topic, b"1234", retain=True)
    publisher.publish("short", b"1", retain=True, message_expiry_interval=5)
    stage.advance(6)
    assert retained(stage, **query) == found


def test_retained_message_has_size_qos_and_expiry() -> None:
    stage = Stage()
    stage.connect("p").publish("t", b"1234", qos=1, retain=True, message_expiry_interval=60)
    stage.advance(20)
    (row,) = all_rows(lambda: RetainedListing(stage.node, lambda: stage.now_s, {"filter": "t"}))
    assert row == {"topic": "t", "payload_bytes": 4, "qos": 1, "expires_in_s": 40.0}


def test_wrong_filter_of_retained_messages_has_a_reason() -> None:
    with pytest.raises(ValueError, match="is no topic filter"):
        retained(Stage(), filter="a/#/b")

"""The list of clients: pages, cursors and filters."""

import json
from typing import Any

import pytest

from flowguard.ops.lists import pages
from flowguard.ops.lists.clients import ClientListing, row_of
from flowguard.ops.lists.pages import SLICE, Lists, PageInMaking, limit_of
from flowguard.ops.web.ask.lists import ClientPage
from tests.support.stage import Stage


def page(stage: Stage, lists: Lists, **query: str) -> ClientPage | None:
    listing = ClientListing(stage.node.registry.sessions, row_of, query)
    making = lists.begin(listing, query.get("cursor", ""), limit_of(query))
    if making is None:
        return None
    while making.step():
        pass
    rows = json.loads(making.text())
    return ClientPage(clients=rows, next=lists.finish(making))


def all_ids(stage: Stage, lists: Lists, **query: str) -> list[str]:
    found: list[str] = []
    cursor: str | None = query.pop("cursor", "")
    while cursor is not None:
        part = page(stage, lists, **query, cursor=cursor)
        assert part is not None
        found += [row["client_id"] for row in part["clients"]]
        cursor = part["next"]
    return found


def test_row_has_the_state_of_a_client() -> None:
    stage = Stage()
    stage.connect_durable("absent").disconnect()
    stage.connect("here", version=4)
    (absent, here) = page(stage, Lists())["clients"]  # type: ignore[index]
    assert (absent["client_id"], absent["state"]) == ("absent", "absent")
    assert (here["state"], here["protocol"], here["queue_messages"]) == ("connected", "3.1.1", 0)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["car-1", "car-2", "van/1"]),
        ({"id": "car-*"}, ["car-1", "car-2"]),
        ({"id": "car"}, []),
        ({"state": "absent"}, ["car-2"]),
        ({"state": "connected", "id": "*1"}, ["car-1", "van/1"]),
        ({"user": "nobody"}, []),
        ({"address": "10."}, []),
        ({"part": "AR-"}, ["car-1", "car-2"]),
        ({"part": "ar-1\nx"}, []),
        ({"part": "-", "state": "absent"}, ["car-2"]),
    ],
)
def test_filters(query: dict[str, str], found: list[str]) -> None:
    stage = Stage()
    for name in ("car-1", "car-2", "van/1"):
        client = stage.connect_durable(name)
        if name == "car-2":
            client.disconnect()
    assert all_ids(stage, Lists(), **query) == found


def test_pages_have_each_client_once_while_others_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "LOOKS_MAX", 7)
    stage = Stage()
    names = [f"c{number}" for number in range(20)]
    connected = {name: stage.connect_durable(name) for name in names}
    lists = Lists()
    first = page(stage, lists, limit="5")
    assert first is not None
    cursor = first["next"]
    connected["c0"].disconnect(session_expiry_interval=0)
    stage.connect("new")
    rest = [] if cursor is None else all_ids(stage, lists, limit="5", cursor=cursor)
    assert [row["client_id"] for row in first["clients"]] + rest == names


def test_one_step_looks_at_a_slice_and_a_page_at_a_bounded_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "LOOKS_MAX", 2 * SLICE)
    stage = Stage()
    for number in range(3 * SLICE):
        stage.connect(f"c{number}")
    lists = Lists()
    making = lists.begin(ClientListing(stage.node.registry.sessions, row_of, {"id": "nothing*"}))
    assert isinstance(making, PageInMaking)
    looked = []
    while making.step():
        looked.append(making.position)
    assert [*looked, making.position] == [SLICE - 1, 2 * SLICE - 1], "the first notes all ids"
    assert (making.count, lists.finish(making)) == (0, f"1.{2 * SLICE - 1}.0")


def test_id_without_wildcards_is_the_only_one_looked_at() -> None:
    stage = Stage()
    for number in range(3):
        stage.connect(f"c{number}")
    for name, found in (("c1", ["c1"]), ("c9", [])):
        sessions = stage.node.registry.sessions
        assert list(ClientListing(sessions, row_of, {"id": name}).entries()) == [[name]]
        assert all_ids(stage, Lists(), id=name) == found


def test_old_list_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LISTS_MAX", 2)
    stage = Stage()
    stage.connect("a")
    stage.connect("b")
    lists = Lists()
    begun = [page(stage, lists, limit="1") for _ in range(3)]
    cursors = [part["next"] for part in begun if part is not None and part["next"] is not None]
    assert [page(stage, lists, cursor=cursor) is None for cursor in cursors] == [True, False, False]
    assert page(stage, lists, cursor=cursors[1]) is None, "its last page was delivered"


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "1001"}, {"state": "asleep"}, {"id": "*" * 257}, {"x": "1"}]
)
def test_wrong_parameters_have_a_reason(query: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(query))):
        page(Stage(), Lists(), **query)

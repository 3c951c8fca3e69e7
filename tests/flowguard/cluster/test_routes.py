"""Routes: counted filters, snapshots in parts, changes, and what peers confirm."""

import pytest

from flowguard.cluster import OwnFilters, PeerFilters, routes
from flowguard.cluster.frames import FilterChange
from flowguard.cluster.routes import FilterFeed
from flowguard.errors import ProtocolViolation


def changes_of(feed: FilterFeed) -> list[FilterChange]:
    found = []
    while (change := feed.next()) is not None:
        found.append(change)
    return found


def test_many_subscriptions_of_one_filter_are_one_route() -> None:
    own = OwnFilters()
    assert [own.add("a/#") for _ in range(100_000)].count(True) == 1
    assert own.number == len(own) == 1
    assert [own.remove("a/#") for _ in range(100_000)] == [False] * 99_999 + [True]
    assert own.number == 2
    assert len(own) == 0


def test_a_suback_waits_for_the_change_that_added_its_filter() -> None:
    own = OwnFilters()
    own.add("a")
    own.add("b")
    own.confirmed("w2", 1)
    own.confirmed("w3", 2)
    assert own.number == 2
    assert own.is_confirmed(1, ["w2", "w3"])
    assert not own.is_confirmed(2, ["w2", "w3"])
    assert own.is_confirmed(2, ["w3"])
    assert not own.is_confirmed(0, ["w4"])
    with pytest.raises(ProtocolViolation, match="change 3 of filters is confirmed, the last is 2"):
        own.confirmed("w2", 3)


def test_a_snapshot_in_parts_replaces_the_filters_of_a_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = PeerFilters(["w2"])
    assert peers.receive("w2", FilterChange(1, ("x", "b"), begins=True, ends=True)) is not None
    own = OwnFilters()
    monkeypatch.setattr(routes, "FILTERS_MAX", 2)
    for filter in "abcde":
        own.add(filter)
    told = [peers.receive("w2", change) for change in changes_of(FilterFeed(own))]
    assert told[:-1] == [None] * (len(told) - 1)
    assert told[-1] is not None
    added, removed = told[-1]
    assert (sorted(added), removed) == (["a", "c", "d", "e"], ["x"])


def test_an_empty_snapshot_ends_the_time_of_unknown_filters() -> None:
    peers = PeerFilters(["w2", "w3"])
    assert peers.unknown == {"w2", "w3"}
    (change,) = changes_of(FilterFeed(OwnFilters()))
    assert peers.receive("w2", change) == ([], [])
    assert peers.unknown == {"w3"}


def test_half_a_snapshot_changes_nothing_if_its_link_is_lost() -> None:
    peers = PeerFilters(["w2"])
    peers.receive("w2", FilterChange(1, ("a",), begins=True))
    peers.forget_snapshot("w2")
    assert peers.unknown == {"w2"}
    with pytest.raises(ProtocolViolation, match="without a snapshot"):
        peers.receive("w2", FilterChange(2, ("b",)))


def test_a_filter_that_changes_twice_is_told_once() -> None:
    own = OwnFilters()
    feed = FilterFeed(own)
    assert len(changes_of(feed)) == 1
    own.add("a")
    feed.note("a", True)
    own.remove("a")
    feed.note("a", False)
    assert changes_of(feed) == [FilterChange(2, (), ("a",))]


def test_too_many_changes_become_a_snapshot() -> None:
    own = OwnFilters()
    feed = FilterFeed(own)
    assert len(changes_of(feed)) == 1
    for number in range(routes.CHANGES_MAX + 1):
        filter = str(number)
        own.add(filter)
        feed.note(filter, True)
    told = changes_of(feed)
    assert told[0].begins
    assert told[-1].ends
    assert sum(len(change.added) for change in told) == len(own)
    assert told[-1].number == own.number


def test_the_number_of_a_change_is_told_with_its_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A confirmed number promises all changes up to it, so a first part has the number before."""
    own = OwnFilters()
    feed = FilterFeed(own)
    assert len(changes_of(feed)) == 1
    monkeypatch.setattr(routes, "FILTERS_MAX", 2)
    for filter in "abc":
        own.add(filter)
        feed.note(filter, True)
    numbers = [change.number for change in changes_of(feed)]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 3
    assert numbers[0] in (0, 3)

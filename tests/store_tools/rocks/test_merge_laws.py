"""Merging is a join: the order does not matter, nothing is lost, nothing comes back.

Random histories of replicas that were one store, through the real store. A model beside each says
what a merge must give (`replicas.Model`).

1. A merge has what the model has: what either has, unless the other has received and deleted it.
2. Commutative, positions included.
3. Associative, as far as positions of late entries are not looked at.
4. Idempotent: merging with a replica that is in it already adds nothing.
5. Entries of the session that was connected later keep their positions and what is known of them;
   those of the other keep their order.
6. No two entries that were sent share a packet identifier, which they do 32,767 positions apart;
   what is released was sent.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.records import packet_id_of
from store_tools.rocks import merge_queue
from tests.store_tools.rocks.replicas import Model, Seen, Site, World, look, merged

EXAMPLES = settings.default.max_examples
"""Share of the profile's examples, because each of them makes stores, which is costly."""
CLIENTS = ["a", "ab"]
FILTERS = ["t", "t/#"]
IDS = [1, 2]
TOPICS = ["r", "r/s"]

CLIENT = st.sampled_from(CLIENTS)
NUMBER = st.integers(0, 5)
ANY_CLIENTS = st.sampled_from([["a"], ["ab"], ["a", "ab"]])
MESSAGES = st.one_of(
    st.tuples(st.just("publish"), ANY_CLIENTS, st.sampled_from([0, 600])),
    st.tuples(st.just("publish"), ANY_CLIENTS, st.sampled_from([0, 600])),
    st.tuples(st.just("deliver"), CLIENT, NUMBER, st.booleans()),
    st.tuples(st.just("send"), CLIENT, st.integers(1, 4)),
    st.tuples(st.just("settle"), CLIENT, NUMBER),
    st.tuples(st.just("release"), CLIENT, NUMBER),
)
PUTS = st.one_of(
    st.tuples(st.just("connect"), CLIENT, NUMBER, st.sampled_from([None, 5.5])),
    st.tuples(st.just("subscribe"), CLIENT, st.sampled_from(FILTERS), st.integers(0, 2)),
    st.tuples(st.just("receive"), CLIENT, st.sampled_from(IDS)),
    st.tuples(st.just("retain"), st.sampled_from(TOPICS)),
)
DROPS = st.one_of(
    st.tuples(st.just("drop"), CLIENT),
    st.tuples(st.just("unsubscribe"), CLIENT, st.sampled_from(FILTERS)),
    st.tuples(st.just("complete"), CLIENT, st.sampled_from(IDS)),
    st.tuples(st.just("unretain"), st.sampled_from(TOPICS)),
)
HISTORY = st.lists(st.one_of(MESSAGES, MESSAGES, PUTS, DROPS), max_size=12)
PUTTING = st.lists(st.one_of(MESSAGES, MESSAGES, PUTS), max_size=8)
BUSY = st.lists(MESSAGES, max_size=10)


@contextmanager
def world() -> Iterator[World]:
    root = Path(tempfile.mkdtemp(prefix="flowguard-merge-"))
    try:
        yield World(root)
    finally:
        shutil.rmtree(root)


def live(site: Site, history: list[tuple]) -> None:  # type: ignore[type-arg]
    for name, *arguments in history:
        getattr(site, name)(*arguments)


def start(of: World, history: list[tuple]) -> Site:  # type: ignore[type-arg]
    site = Site(of, of.folder())
    for client_id in CLIENTS:
        site.connect(client_id)
    live(site, history)
    return site


def check_model(found: Seen, expected: Model) -> None:
    """Law 1; a released entry may have been done with."""
    assert found.sessions == expected.sessions
    assert found.rows == expected.rows
    released = {key for key, (_, is_released) in expected.entries.items() if is_released}
    assert expected.entries.keys() - released <= found.entries.keys() <= expected.entries.keys()
    assert {key for key, is_released in found.entries.items() if is_released} <= released
    assert {key for key in found.entries if key in released} == {
        key for key, is_released in found.entries.items() if is_released
    }


def check_places(first: Seen, second: Seen, found: Seen) -> None:
    """Laws 5 and 6."""
    for client_id in found.sessions:
        here = {key for key in found.entries if key[0] == client_id}
        of_first, of_second = first.sessions.get(client_id), second.sessions.get(client_id)
        winner, loser = (first, second) if (of_first or ()) > (of_second or ()) else (second, first)
        if of_first == of_second:
            winner = loser = first if keeps(first, found, here) else second
        assert keeps(winner, found, here)
        waiting = [key for key in here if not found.entries[key]]
        for replica in (winner, loser):
            mine = [key for key in waiting if key in replica.places]
            by_place = sorted(mine, key=found.places.__getitem__)
            assert by_place == sorted(mine, key=replica.places.__getitem__)
        sent = found.sent[client_id]
        in_flight = [key for key in here if found.places[key] <= sent]
        assert len({found.packet_ids[key] for key in in_flight}) == len(in_flight)
        for key in here:
            if found.entries[key]:
                assert found.places[key] <= sent
            else:
                assert found.packet_ids[key] == packet_id_of(found.places[key], 2)


def keeps(winner: Seen, found: Seen, here: set[tuple[str, int]]) -> bool:
    """Return True if all of its entries are unchanged, in flight if they were."""
    return all(
        found.places[key] == winner.places[key]
        and (winner.places[key] > winner.sent[key[0]] or found.places[key] <= found.sent[key[0]])
        for key in here & winner.places.keys()
        if found.entries[key] == winner.entries[key]
    )


def without_places(found: Seen) -> tuple[object, ...]:
    unreleased = {key for key, is_released in found.entries.items() if not is_released}
    return found.sessions, found.rows, unreleased


def content(found: Seen) -> tuple[object, ...]:
    return found.sessions, found.rows, found.entries, found.places, found.sent, found.packet_ids


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 2)
@given(before=HISTORY, first=HISTORY, second=HISTORY, by_hand=st.booleans())
def test_a_merge_has_what_either_has_unless_the_other_has_deleted_it(
    before: list[tuple],  # type: ignore[type-arg]
    first: list[tuple],  # type: ignore[type-arg]
    second: list[tuple],  # type: ignore[type-arg]
    by_hand: bool,
) -> None:
    with world() as of:
        a = start(of, before)
        b = a.fork(by_hand=by_hand)
        live(a, first)
        live(b, second)
        for site in (a, b):
            site.close()
        one_way, other_way = merged(of, a.folder, b.folder), merged(of, b.folder, a.folder)
        found = look(one_way)
        check_model(found, a.model.merged(b.model))
        check_places(look(a.folder), look(b.folder), found)
        assert content(look(other_way)) == content(found), "not commutative"
        again = merged(of, one_way, a.folder)
        assert content(look(again)) == content(found), "not idempotent"


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 4)
@given(before=HISTORY, histories=st.tuples(PUTTING, PUTTING, PUTTING), late=st.booleans())
def test_three_replicas_may_be_merged_in_any_order(
    before: list[tuple],  # type: ignore[type-arg]
    histories: tuple[list[tuple], ...],  # type: ignore[type-arg]
    late: bool,
) -> None:
    """Without deletions (`store_tools.rocks.merge`); messages are settled."""
    with world() as of:
        a = start(of, before)
        b = a.fork()
        live(a, histories[0])
        c = (b if late else a).fork()
        live(b, histories[1])
        live(c, histories[2])
        for site in (a, b, c):
            site.close()
        folders = [site.folder for site in (a, b, c)]
        model = a.model.merged(b.model).merged(c.model)
        found = []
        for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            both = merged(of, folders[i], folders[j])
            found.append(look(merged(of, both, folders[k])))
            check_model(found[-1], model)
        assert without_places(found[0]) == without_places(found[1]) == without_places(found[2])


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 4)
@given(before=BUSY, first=BUSY, second=BUSY, third=HISTORY, fourth=HISTORY)
def test_a_merged_store_lives_on_and_is_merged_again(
    before: list[tuple],  # type: ignore[type-arg]
    first: list[tuple],  # type: ignore[type-arg]
    second: list[tuple],  # type: ignore[type-arg]
    third: list[tuple],  # type: ignore[type-arg]
    fourth: list[tuple],  # type: ignore[type-arg]
) -> None:
    """Entries have been moved: positions tell nothing any more."""
    with world() as of:
        a = start(of, before)
        b = a.fork()
        live(a, first)
        live(b, second)
        for site in (a, b):
            site.close()
        both = merged(of, a.folder, b.folder)
        found = look(both)
        model = a.model.merged(b.model)
        model.entries = {key: model.entries[key] for key in found.entries}
        c = Site(of, both, model)
        live(c, third)
        b = Site(of, b.folder, b.model)
        live(b, fourth)
        for site in (b, c):
            site.close()
        last = look(merged(of, c.folder, b.folder))
        check_model(last, c.model.merged(b.model))
        check_places(look(c.folder), look(b.folder), last)
        again = look(merged(of, b.folder, c.folder))
        assert content(again) == content(last)


def test_no_more_of_a_queue_is_sent_than_there_are_packet_identifiers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law 6, where identifiers are few: what was sent beyond them waits again."""
    monkeypatch.setattr(merge_queue, "QOS_1_IDS", 4)
    with world() as of:
        a = start(of, [("publish", ["a"], 0)] * 6)
        b = a.fork()
        live(a, [("send", "a", 6), ("settle", "a", 0)])
        for site in (a, b):
            site.close()
        lowest = min(look(a.folder).places.values())
        found = look(merged(of, a.folder, b.folder))
        assert sorted(found.places.values()) == list(range(lowest, lowest + 5))
        assert found.sent["a"] == lowest + 3

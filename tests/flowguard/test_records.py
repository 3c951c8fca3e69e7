"""Keys of sinks: what is stored under them is found again by every later version."""

from dataclasses import fields

import pytest

from flowguard.records import (
    SessionRecord,
    SinkKind,
    WillRecord,
    is_group,
    key_of,
    label_of,
    owner_name,
    sink_of,
)
from flowguard.types import Publish, SubscriptionOptions

FILTER = "$share/g/spread member"
KEYS = [
    (SinkKind.SESSION, "spread a", "spread a"),
    (SinkKind.SHARED, FILTER, "\0$share/g/spread member"),
    (SinkKind.SPREAD, FILTER, "\0spread $share/g/spread member"),
    (SinkKind.MEMBERS, FILTER, "\0member $share/g/spread member"),
    (SinkKind.OWED, "", "\0owed"),
    (SinkKind.PEER, "w1", "\0peer w1"),
]


@pytest.mark.parametrize(("kind", "name", "key"), KEYS)
def test_sink_has_the_key_of_stored_data(kind: SinkKind, name: str, key: str) -> None:
    assert key_of(kind, name) == key
    assert sink_of(key) == (kind, name)
    assert is_group(key) is (kind is not SinkKind.SESSION)


def test_words_for_people_have_no_nul() -> None:
    assert {kind for kind, _, _ in KEYS} == set(SinkKind)
    for kind, name, key in KEYS:
        assert label_of(key) == ("owed" if kind is SinkKind.OWED else name)
        assert "\0" not in owner_name(key)
        if name == FILTER:
            assert owner_name(key) == f"shared subscription {FILTER!r}"
    assert owner_name("\0$share/g/t") == "shared subscription '$share/g/t'"
    assert owner_name("c") == "session 'c'"


def test_copy_of_a_record_has_all_its_values() -> None:
    record, empty = SessionRecord("c", 9, 5.0), SessionRecord("", 0)
    record.subscriptions, record.inbound_ids = {"f": SubscriptionOptions(1)}, {7}
    record.will = WillRecord(Publish("w", b""), 3)
    record.next_pos, record.sent_pos = 5, 4
    record.unsettled_count, record.unsettled_bytes = 2, 300
    record.log_place, record.log_starts = b"p", {"f": b"s"}
    record.is_application, record.user, record.retained_after = True, "u", {"f": "t"}
    names = [each.name for each in fields(record)]
    assert all(getattr(record, name) != getattr(empty, name) for name in names)
    copy = record.copied()
    assert copy == record
    copy.next_pos = 6
    assert copy != record

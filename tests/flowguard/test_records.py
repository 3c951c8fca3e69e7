"""Keys of sinks: what is stored under them is found again by every later version."""

import pytest

from flowguard.records import SinkKind, is_group, key_of, label_of, owner_name, sink_of

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

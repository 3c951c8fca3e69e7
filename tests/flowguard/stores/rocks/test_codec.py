"""Records: what is read is what was written; what is damaged is refused, never guessed."""

from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.errors import CorruptionError
from flowguard.records import NEVER_S, Delivery, QueueEntry, WillRecord
from flowguard.stores.messages import decode_message, encode_message
from flowguard.stores.redis import values
from flowguard.stores.rocks.layouts import keys
from flowguard.stores.rocks.layouts.codec import (
    INLINE,
    decode_entry,
    decode_varint,
    encode_entry,
    encode_shared_entry,
    encode_varint,
    entry_place,
    entry_size_bytes,
    entry_uid,
)
from flowguard.stores.rocks.layouts.codec import uid as uid_bytes
from flowguard.stores.rocks.layouts.session_codec import (
    check_inbound,
    decode_retained,
    decode_session,
    decode_subscription,
    encode_inbound,
    encode_retained,
    encode_session,
    encode_subscription,
    row_uid,
    session_user,
)
from flowguard.stores.rows import decode_will, encode_will
from flowguard.types import NO_PROPERTIES, Properties, Publish, SubscriptionOptions
from tests.flowguard.stores.test_contract import described

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
U32 = st.integers(0, 2**32 - 1)
INSTANTS = st.just(NEVER_S) | st.floats(0, 2**40)
PROPERTIES = st.just(NO_PROPERTIES) | st.builds(
    Properties,
    payload_format_indicator=st.none() | st.integers(0, 1),
    message_expiry_interval=st.none() | U32,
    content_type=st.none() | TEXT,
    response_topic=st.none() | st.just("answer/\u00e9"),
    correlation_data=st.none() | st.binary(max_size=20),
    user_properties=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
)
MESSAGES = st.builds(
    Publish, TEXT, st.binary(max_size=200), st.integers(0, 2), st.booleans(), properties=PROPERTIES
)
DELIVERIES = st.builds(
    Delivery,
    MESSAGES,
    st.integers(1, 2),
    st.booleans(),
    st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple),
    INSTANTS,
)
UIDS = st.tuples(st.integers(0, 2**64 - 1), U32)


def said(delivery: Delivery) -> tuple[object, ...]:
    return described(QueueEntry(1, 1, delivery))


@given(st.integers(0, 2**70), st.binary(max_size=3), st.binary(max_size=3))
def test_a_varint_is_read_where_it_ends(value: int, before: bytes, after: bytes) -> None:
    data = before + encode_varint(value) + after
    assert decode_varint(data, len(before)) == (value, len(data) - len(after))


@given(MESSAGES)
def test_a_message_is_read_as_it_was_written(message: Publish) -> None:
    assert decode_message(b"head" + encode_message(message), 4) == message


@given(DELIVERIES, U32, UIDS)
def test_an_entry_is_read_as_it_was_written(
    sent: Delivery, size_bytes: int, uid: tuple[int, int]
) -> None:
    value = encode_entry(sent, size_bytes, *uid)
    found = decode_entry(value, None)
    assert said(found) == said(sent)
    assert (entry_size_bytes(value), entry_place(value), found.place) == (
        size_bytes,
        INLINE,
        INLINE,
    )
    assert entry_uid(value) == uid_bytes(*uid)


@given(DELIVERIES, U32, UIDS, st.binary(min_size=12, max_size=12))
def test_an_entry_finds_its_message_elsewhere(
    sent: Delivery, size_bytes: int, uid: tuple[int, int], place: bytes
) -> None:
    value = encode_shared_entry(sent, size_bytes, *uid, place)
    assert entry_uid(value) == uid_bytes(*uid)
    found = decode_entry(value, encode_message(sent.message))
    assert said(found) == said(sent)
    assert (entry_size_bytes(value), entry_place(value), found.place) == (size_bytes, place, place)
    with pytest.raises(CorruptionError):
        decode_entry(value, None)


@given(MESSAGES, U32)
def test_a_will_is_read_as_it_was_written(message: Publish, delay_s: int) -> None:
    will = WillRecord(message, delay_s)
    assert decode_will(encode_will(will)) == will


@given(MESSAGES, INSTANTS, UIDS)
def test_a_retained_message_is_read_as_it_was_written(
    message: Publish, expires_at_s: float, uid: tuple[int, int]
) -> None:
    value = encode_retained(message, expires_at_s, *uid)
    assert decode_retained(value) == (message, expires_at_s)
    assert row_uid(value) == uid_bytes(*uid)


@given(st.integers(1, 2**64 - 1), U32, st.none() | st.floats(0, 2**40), UIDS, st.text())
def test_a_session_is_read_as_it_was_written(
    qno: int, expiry: int, ends_at_s: float | None, uid: tuple[int, int], user: str
) -> None:
    value = encode_session(qno, expiry, ends_at_s, *uid, user=user)
    assert decode_session(value) == (qno, expiry, ends_at_s)
    assert row_uid(value) == uid_bytes(*uid)
    assert session_user(value) == user


def test_a_session_that_was_stored_without_a_user_has_none() -> None:
    of_rocks = Struct(">BQIBQId").pack(1, 7, 1, 1, 9, 20, 30.5)
    assert decode_session(of_rocks) == (9, 20, 30.5)
    of_redis = Struct(">BBId").pack(1, 1, 20, 30.5)
    assert values.decode_session(of_redis) == (20, 30.5)
    assert session_user(of_rocks) == values.session_user(of_redis) == ""
    for row, user in ((of_rocks, session_user), (of_redis, values.session_user)):
        with pytest.raises(CorruptionError):
            user(row + b"\xff")


@given(
    st.builds(
        SubscriptionOptions,
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2),
        st.integers(0, 268_435_455),
    ),
    st.none() | st.text(),
    UIDS,
)
def test_a_subscription_is_read_as_it_was_written(
    options: SubscriptionOptions, after: str | None, uid: tuple[int, int]
) -> None:
    value = encode_subscription(options, after, *uid)
    assert decode_subscription(value) == (options, after)
    assert row_uid(value) == row_uid(encode_inbound(*uid)) == uid_bytes(*uid)


SAMPLE = Delivery(
    Publish("t/\u00e9", b"payload", 1, properties=Properties(user_properties=(("k", "v"),))),
    1,
    False,
    (300,),
    5.5,
)
OPTIONS = SubscriptionOptions(2, True, True, 1, 99)
RECORDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "message": (encode_message(SAMPLE.message), lambda data: decode_message(data, 0)),
    "entry": (encode_entry(SAMPLE, 9, 1, 1), lambda data: decode_entry(data, None)),
    "shared entry": (
        encode_shared_entry(SAMPLE, 9, 1, 1, bytes(12)),
        lambda data: decode_entry(data, encode_message(SAMPLE.message)),
    ),
    "session": (encode_session(1, 2, 3.0, 1, 1), decode_session),
    "subscription": (encode_subscription(OPTIONS, "t", 1, 1), decode_subscription),
    "inbound id": (encode_inbound(1, 1), check_inbound),
    "will": (encode_will(WillRecord(SAMPLE.message, 1)), decode_will),
    "retained": (encode_retained(SAMPLE.message, 5.5, 1, 1), decode_retained),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_another_version_is_refused(name: str) -> None:
    record, decode = RECORDS[name]
    with pytest.raises(CorruptionError):
        decode(b"\x7f" + record[1:])


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_cut_short_is_refused_or_has_less_of_its_payload(name: str) -> None:
    record, decode = RECORDS[name]
    for size in range(len(record)):
        try:
            found = decode(record[:size])
        except CorruptionError:
            continue
        assert size >= len(record) - len(SAMPLE.message.payload)
        assert found != decode(record)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**64 - 2), st.text())
def test_keys_are_told_apart_and_lie_within_their_prefix(
    client_id: str, qno: int, filter: str
) -> None:
    assert keys.client_id_of(keys.session_key(client_id)) == client_id
    filter = filter.encode(errors="replace").decode()
    own = [
        keys.subscription_key(qno, filter),
        keys.inbound_key(qno, 65_535),
        keys.will_key(qno),
    ]
    assert len(set(own)) == 3
    for key in own:
        assert keys.own_prefix(qno) <= key < keys.own_prefix(qno + 1)
        assert key[keys.OWN_KIND_AT] in (keys.SUBSCRIPTION, keys.INBOUND, keys.WILL)
    assert own[0][keys.OWN_KIND_AT + 1 :].decode() == filter
    assert keys.queue_prefix(qno) <= keys.record_key(qno) < keys.entry_prefix(qno)
    assert keys.entry_prefix(qno) < keys.queue_prefix(qno + 1)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=9))
def test_session_keys_are_in_the_order_of_client_ids(client_ids: list[str]) -> None:
    assert sorted(client_ids) == sorted(client_ids, key=keys.session_key)

"""Arguments of a program to a client in its own process: a wrong one is rejected by its name."""

from typing import Any

import pytest

from flowguard.broker.local.local_packets import (
    connect_packet,
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)
from flowguard.codec.packets import Will
from flowguard.types import NO_PROPERTIES, Properties

MESSAGE = {"topic": "a", "payload": b"x", "qos": 1, "retain": False, "properties": NO_PROPERTIES}
CONNECT = {
    "client_id": "me",
    "clean_start": True,
    "session_expiry_s": 0,
    "username": None,
    "password": None,
    "will": None,
    "receive_maximum": 100,
}

WRONG_MESSAGES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": b"a"}, TypeError, "topic is expected to be a str, not bytes"),
    ({"topic": ""}, ValueError, "topic is empty"),
    ({"topic": "a/#"}, ValueError, "topic 'a/#' has wildcards"),
    ({"topic": "a\0"}, ValueError, r"topic .* has U\+0000"),
    ({"topic": "\ud800"}, ValueError, "topic .* has a surrogate"),
    ({"topic": "ä" * 32_768}, ValueError, "topic has 65,536 bytes in UTF-8"),
    ({"payload": "text"}, TypeError, "payload is expected to be bytes, not str"),
    ({"payload": None}, TypeError, "payload is expected to be bytes, not NoneType"),
    ({"qos": 3}, ValueError, "qos is 3; 0 to 2 is expected"),
    ({"qos": -1}, ValueError, "qos is -1"),
    ({"qos": 1.5}, TypeError, "qos is expected to be an int, not float"),
    ({"retain": "no"}, TypeError, "retain is expected to be a bool, not str"),
    ({"retain": 2}, TypeError, "retain is expected to be a bool, not int"),
    ({"retain": None}, TypeError, "retain is expected to be a bool, not NoneType"),
    ({"properties": None}, TypeError, "properties is expected to be Properties, not NoneType"),
]
WRONG_PROPERTIES: list[tuple[dict[str, Any], str]] = [
    ({"message_expiry_interval": -1}, "a number up to 4,294,967,295 is expected"),
    ({"message_expiry_interval": "soon"}, "a number up to 4,294,967,295 is expected"),
    ({"payload_format_indicator": 300}, "0 or 1 is expected"),
    ({"payload_format_indicator": 2}, "neither 0 nor 1"),
    ({"topic_alias": 65_536}, "a number up to 65,535 is expected"),
    ({"topic_alias": 0}, "is zero"),
    ({"content_type": "x" * 65_536}, "a str of at most 65,535 bytes"),
    ({"content_type": b"x"}, "a str of at most 65,535 bytes"),
    ({"content_type": "a\0"}, r"U\+0000"),
    ({"correlation_data": "x"}, "bytes are expected, 65,535 at most"),
    ({"response_topic": "a/#"}, "wildcards"),
    ({"user_properties": (("a", 1),)}, "a tuple of pairs of str"),
    ({"user_properties": {"a": "b"}}, "a tuple of pairs of str"),
    ({"subscription_identifiers": (1,)}, "a client may not send"),
    ({"receive_maximum": 5}, "cannot carry"),
]
WRONG_CONNECTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"client_id": 5}, TypeError, "client_id is expected to be a str, not int"),
    ({"client_id": "x" * 65_536}, ValueError, "client_id has 65,536 bytes"),
    ({"clean_start": 5}, TypeError, "clean_start is expected to be a bool"),
    ({"session_expiry_s": 2**32}, ValueError, "session_expiry_s is 4294967296; 0 to 4,294,967,295"),
    ({"session_expiry_s": 0.5}, TypeError, "session_expiry_s is expected to be an int"),
    ({"session_expiry_s": float("inf")}, TypeError, "session_expiry_s is expected to be an int"),
    ({"username": b"me"}, TypeError, "username is expected to be a str, not bytes"),
    ({"password": "secret"}, TypeError, "password is expected to be bytes, not str"),
    ({"password": b"x" * 65_536}, ValueError, "password has 65,536 bytes"),
    ({"will": ("a", b"x")}, TypeError, "will is expected to be a Will, not tuple"),
    ({"will": Will("a/+", b"x")}, ValueError, r"will\.topic 'a/\+' has wildcards"),
    ({"will": Will("", b"x")}, ValueError, r"will\.topic is empty"),
    ({"will": Will("a", b"x" * 65_536)}, ValueError, r"will\.payload has 65,536 bytes"),
    ({"will": Will("a", b"x", 3)}, ValueError, r"will\.qos is 3"),
    (
        {"will": Will("a", b"x", properties=Properties(topic_alias=1))},
        ValueError,
        r"will\.properties\.topic_alias is 1",
    ),
]
WRONG_FILTERS: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    ((), ValueError, "no filter is given"),
    ((["a", "b"],), TypeError, "filter is expected to be a str, not list"),
    (("a", ""), ValueError, "filter '' is not valid"),
    (("a/#/b",), ValueError, "filter 'a/#/b' is not valid"),
    (("a+",), ValueError, r"filter 'a\+' is not valid"),
    (("$share/x",), ValueError, r"filter '\$share/x' is not valid"),
    (("x" * 65_536,), ValueError, "filter has 65,536 bytes"),
]


def of_kinds(*values: object) -> list[tuple[type, object]]:
    return [(type(value), value) for value in values]


@pytest.mark.parametrize("yes", [1, 1.0, True])
def test_numbers_and_truths_are_taken_for_each_other_where_they_say_the_same(yes: Any) -> None:
    packet = publish_packet("a", b"x", yes, bool(yes), NO_PROPERTIES)
    assert of_kinds(packet.qos, packet.retain) == of_kinds(1, True)
    if isinstance(yes, int):  # A compiled Will takes nothing else.
        will = connect_packet(**CONNECT | {"will": Will("a", b"x", yes, True)}).will  # type: ignore[arg-type]
        assert will is not None
        assert of_kinds(will.qos, will.retain) == of_kinds(1, True)
    ((_, options),) = subscribe_packet(("a",), yes).filters
    assert of_kinds(options.qos) == of_kinds(1)


@pytest.mark.parametrize(("given", "meant"), [(0, False), (1, True)])
def test_a_flag_may_be_0_or_1(given: Any, meant: bool) -> None:
    packet = publish_packet(**MESSAGE | {"retain": given})  # type: ignore[arg-type]
    connect = connect_packet(**CONNECT | {"clean_start": given})  # type: ignore[arg-type]
    assert of_kinds(packet.retain, connect.clean_start) == of_kinds(meant, meant)


def test_a_session_may_expire_after_a_float_that_is_whole() -> None:
    connect = connect_packet(**CONNECT | {"session_expiry_s": 3600.0})  # type: ignore[arg-type]
    assert of_kinds(connect.properties.session_expiry_interval) == of_kinds(3600)


@pytest.mark.parametrize(("wrong", "kind", "says"), WRONG_MESSAGES)
def test_a_wrong_message_is_refused_by_name(
    wrong: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        publish_packet(**MESSAGE | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrong", "says"), WRONG_PROPERTIES)
def test_a_wrong_property_is_refused_by_name(wrong: dict[str, Any], says: str) -> None:
    (field,) = wrong
    try:
        properties = Properties(**wrong)
    except TypeError:
        return  # Compiled, it refuses another type by itself.
    with pytest.raises(ValueError, match=says) as caught:
        publish_packet(**MESSAGE | {"properties": properties})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"properties.{field} is ")


@pytest.mark.parametrize(("wrong", "kind", "says"), WRONG_CONNECTS)
def test_a_wrong_connect_is_refused_by_name(
    wrong: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        connect_packet(**CONNECT | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("filters", "kind", "says"), WRONG_FILTERS)
def test_a_wrong_filter_is_refused_by_name(
    filters: tuple[Any, ...], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        subscribe_packet(filters, 1)
    with pytest.raises(kind, match=says):
        unsubscribe_packet(filters)


def test_what_a_message_may_carry_passes() -> None:
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=60,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"7",
        topic_alias=1,
        user_properties=(("a", "b"), ("a", "c")),
    )
    packet = publish_packet("", bytearray(b"x"), 0, True, properties)  # type: ignore[arg-type]
    assert packet.payload == b"x"
    assert packet.properties == properties
    will = Will("a", b"x", properties=Properties(will_delay_interval=5))
    assert connect_packet(**CONNECT | {"will": will}).will == will  # type: ignore[arg-type]
    assert subscribe_packet(("$share/x/a/+", "#"), 2).filters[1][0] == "#"

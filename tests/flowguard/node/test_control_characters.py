"""Control characters and non-characters in strings: let through, or malformed, by a setting."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Subscribe,
    Unsubscribe,
    Will,
)
from flowguard.types import MQTT_5, Properties, Publish, ReasonCode, SubscriptionOptions
from tests.support.stage import Client, Stage

UNWANTED = ["\x01", "\x1f", "\x7f", "\x9f", "\ufdd0", "\ufdef", "\ufffe", "\uffff", "\U0001fffe"]
WANTED = ["\x20", "~", "\xa0", "\ufdcf", "\ufdf0", "\ufffd", "\U00010000", "\ufeff"]
OPTIONS = SubscriptionOptions()


def refusing() -> Stage:
    return Stage({"session": {"control_characters": False}})


def packets_with(text: str) -> dict[str, Packet]:
    """A packet for each string of a client; all well-formed."""
    user = Properties(user_properties=(("k", "v"), (text, "v")))
    return {
        "topic": Publish(text, b"x"),
        "topic, QoS 1": Publish(f"a/{text}", b"x", 1, packet_id=1),
        "content type": Publish("a", b"", properties=Properties(content_type=text)),
        "response topic": Publish("a", b"", properties=Properties(response_topic=text)),
        "name of a user property": Publish("a", b"", properties=user),
        "value of a user property": Publish(
            "a", b"", properties=Properties(user_properties=(("k", text),))
        ),
        "filter": Subscribe(1, (("a", OPTIONS), (text, OPTIONS))),
        "filter to unsubscribe": Unsubscribe(1, ("a", text)),
        "reason string": Puback(1, 0, Properties(reason_string=text)),
        "last words": Disconnect(0, Properties(reason_string=text)),
    }


def connects_with(text: str) -> dict[str, Connect]:
    return {
        "client id": Connect(text),
        "user name": Connect("c", username=text),
        "will topic": Connect("c", will=Will(text, b"x")),
        "property of a will": Connect(
            "c", will=Will("w", b"x", properties=Properties(content_type=text))
        ),
        "user property": Connect("c", properties=Properties(user_properties=((text, "v"),))),
    }


def is_malformed(client: Client) -> bool:
    (goodbye,) = (each for each in client.take() if isinstance(each, Disconnect))
    return client.is_closed and goodbye.reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize("character", UNWANTED)
@pytest.mark.parametrize("place", packets_with("x"))
def test_a_string_with_an_unwanted_character_is_malformed(place: str, character: str) -> None:
    client = refusing().connect("c")
    client.send(packets_with(f"x{character}y")[place])
    assert is_malformed(client)


@pytest.mark.parametrize("character", UNWANTED[::3])
@pytest.mark.parametrize("place", connects_with("x"))
def test_a_connect_with_one_is_refused(place: str, character: str) -> None:
    client = refusing().attempt(connects_with(f"x{character}")[place])
    assert client.expect(Connack).reason_code == ReasonCode.MALFORMED_PACKET
    assert client.is_closed


@pytest.mark.parametrize("place", packets_with("x"))
def test_its_neighbours_are_characters_like_others(place: str) -> None:
    stage = refusing()
    client = stage.connect("c")
    client.send(packets_with("".join(WANTED))[place])
    assert stage.node.counters.malformed == 0


@pytest.mark.parametrize("character", UNWANTED)
@pytest.mark.parametrize("place", packets_with("x"))
def test_by_default_they_are_let_through(place: str, character: str) -> None:
    stage = Stage()
    stage.connect("c").send(packets_with(f"x{character}y")[place])
    assert stage.node.counters.malformed == 0


def test_a_topic_that_another_node_has_let_through_is_looked_at_all_the_same() -> None:
    """Known topics are shared by all connections of a process."""
    Stage().connect("c").publish("known\x01")
    client = refusing().connect("c")
    client.publish("known\x01", qos=1)
    assert is_malformed(client)


def test_good_packets_come_before_the_malformed_one_and_in_their_order() -> None:
    stage = refusing()
    witness = stage.connect("w")
    witness.subscribe("a")
    client = stage.connect("c")
    payloads = [b"%d" % number for number in range(1, 30)]
    data = b"".join(
        encode(Publish("a", payload, n % 2, packet_id=n if n % 2 else 0), MQTT_5)
        for n, payload in enumerate(payloads, 1)
    )
    client.send_bytes(data + encode(Publish("\x01", b""), MQTT_5) + data)
    assert [each.payload for each in witness.publishes()] == payloads
    assert client.is_closed


def test_a_payload_is_no_string() -> None:
    stage = refusing()
    witness = stage.connect("w")
    witness.subscribe("a")
    stage.connect("c").publish("a", b"\x01\x7f", payload_format_indicator=1)
    assert [each.payload for each in witness.publishes()] == [b"\x01\x7f"]

"""The first inputs of a fuzzer: each packet of a client, in each version."""

from collections.abc import Iterator

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
    Will,
)
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties, Publish, SubscriptionOptions
from tests.fuzz.streams import ANOTHER, VERSIONS


def seeds() -> Iterator[bytes]:
    """Inputs for both targets: options, seed of the pieces, stream."""
    for index, version in enumerate(VERSIONS):
        spoken = version or MQTT_5
        said = [encode(packet, spoken) for packet in packets(spoken)]
        for seed in (0, 5):
            for options in (index, index | 4, index | 12):
                for frame in said:
                    yield bytes((options, seed)) + frame
                yield bytes((options, seed)) + b"".join(said)
                yield bytes((options, seed)) + b"".join(said[1:])
                for overlap in (0, 16):
                    yield bytes((options | overlap, seed)) + ANOTHER.join([b"".join(said[:6])] * 2)


def packets(version: int) -> list[Packet]:
    """A conversation."""
    is_5 = version == MQTT_5
    properties = Properties(
        message_expiry_interval=3,
        topic_alias=1,
        content_type="c",
        response_topic="r",
        correlation_data=b"d",
        user_properties=(("k", "v"),),
    )
    will = Will("w", b"gone", 1, retain=True)
    some = Properties(session_expiry_interval=9, receive_maximum=2, topic_alias_maximum=3)
    said: list[Packet] = [
        Connect("c", version, False, 5, "u", b"p", will, some if is_5 else NO_PROPERTIES),
        Subscribe(1, (("a/+", SubscriptionOptions(2)), ("$share/g/a", SubscriptionOptions(1)))),
        Publish("a/b", b"0"),
        Publish("a/b", b"1", 1, packet_id=2),
        Publish("a/b", b"2", 2, True, packet_id=3),
        Pubrel(3),
        Puback(1),
        Pubrec(32_768),
        Pubcomp(32_768),
        Pingreq(),
        Unsubscribe(4, ("a/+",)),
    ]
    if is_5:
        said.append(Publish("a/b", b"3", 1, packet_id=5, properties=properties))
        said.append(Publish("", b"4", properties=Properties(topic_alias=1)))
        said.append(Auth(0x19, Properties(authentication_method="m")))
    return [*said, Disconnect()]

"""Parts that a packet may repeat without end are counted, because its decoding is one time
slice."""

import pytest

from flowguard.codec import PacketDecoder
from flowguard.codec.bodies import FILTERS_MAX
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connect, Packet, Subscribe, Unsubscribe, Will
from flowguard.codec.properties import USER_PROPERTIES_MAX
from flowguard.errors import PeerError
from flowguard.types import (
    MQTT_5,
    MQTT_311,
    Properties,
    Publish,
    ReasonCode,
    SubscriptionOptions,
)
from tests.support.stage import Stage

LARGE = 1 << 21


def users(count: int) -> Properties:
    return Properties(user_properties=(("", ""),) * count)


def with_users(kind: str, count: int) -> Packet:
    properties = users(count)
    if kind == "CONNECT":
        return Connect("c", properties=properties)
    if kind == "will":
        return Connect("c", will=Will("t", b"", properties=properties))
    if kind == "SUBSCRIBE":
        return Subscribe(1, (("f", SubscriptionOptions()),), properties)
    return Publish("t", b"", properties=properties)


def with_filters(kind: str, count: int) -> Packet:
    if kind == "SUBSCRIBE":
        return Subscribe(1, (("f", SubscriptionOptions()),) * count)
    return Unsubscribe(1, ("f",) * count)


def decoded(packet: Packet, version: int = MQTT_5) -> Packet | None:
    decoder = PacketDecoder(LARGE, 0 if isinstance(packet, Connect) else version)
    decoder.feed(encode(packet, version))
    return decoder.next()


@pytest.mark.parametrize("kind", ["CONNECT", "will", "SUBSCRIBE", "PUBLISH"])
def test_user_properties_are_counted(kind: str) -> None:
    fits = with_users(kind, USER_PROPERTIES_MAX)
    assert decoded(fits) == fits
    with pytest.raises(PeerError) as raised:
        decoded(with_users(kind, USER_PROPERTIES_MAX + 1))
    assert raised.value.reason_code is ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE"])
def test_filters_are_counted(kind: str, version: int) -> None:
    fits = with_filters(kind, FILTERS_MAX)
    assert decoded(fits, version) == fits
    with pytest.raises(PeerError) as raised:
        decoded(with_filters(kind, FILTERS_MAX + 1), version)
    assert raised.value.reason_code is ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.spec("MQTT-3.3.4-6")
def test_the_first_identifier_in_a_publish_of_a_client_is_one_too_many(known: bool) -> None:
    published = Publish("t", b"", properties=Properties(subscription_identifiers=(1,) * 30))
    if known:  # The block of properties has been seen, in a packet of a server.
        client = PacketDecoder(LARGE, MQTT_5, role="client")
        client.feed(encode(published, MQTT_5))
        assert client.next() == published
    with pytest.raises(PeerError) as raised:
        decoded(published)
    assert raised.value.reason_code is ReasonCode.PROTOCOL_ERROR


def test_who_sends_more_is_told_why() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.send(with_filters("SUBSCRIBE", FILTERS_MAX + 1))
    assert client.is_closed
    assert [packet.reason_code for packet in client.inbox] == [ReasonCode.QUOTA_EXCEEDED]  # type: ignore[union-attr]
    newcomer = stage.open()
    newcomer.send(with_users("CONNECT", USER_PROPERTIES_MAX + 1))
    assert newcomer.is_closed
    assert [packet.reason_code for packet in newcomer.inbox] == [ReasonCode.QUOTA_EXCEEDED]  # type: ignore[union-attr]

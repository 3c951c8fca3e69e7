"""Hypothesis strategies for every packet that can be, by version and sender.

`packets(version, "client")` are those that a server receives in the middle of a connection,
`packets(version, "server")` those that a client does. Everything drawn survives encode and decode
unchanged.
"""

from typing import Literal

from hypothesis import strategies as st

from flowguard.codec import properties as p
from flowguard.codec import tables as t
from flowguard.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from flowguard.codec.primitives import VARIABLE_MAX
from flowguard.types import (
    MQTT_5,
    MQTT_31,
    NO_PROPERTIES,
    Properties,
    Publish,
    SubscriptionOptions,
)

Sender = Literal["client", "server"]

versions = st.sampled_from((3, 4, 5))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
topic_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=20
) | st.sampled_from(("a", "a/b", "sensors/1/temperature", "é/ü", "x" * 300))
topic_filters = texts.filter(bool) | st.sampled_from(("#", "+/b", "a/#", "$share/g/a", "$SYS/#"))
payloads = st.binary(max_size=300)
blobs = st.binary(max_size=30)
packet_ids = st.integers(1, 65_535)

_VALUES: dict[int, st.SearchStrategy[object]] = {
    p.BYTE: st.integers(0, 1),
    p.U16: st.integers(1, 65_535),
    p.U32: st.integers(1, 0xFFFF_FFFF),
    p.STRING: texts,
    p.BINARY: blobs,
    p.VARIABLE: st.lists(st.integers(1, VARIABLE_MAX), max_size=3).map(tuple),
    p.PAIR: st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
}


def properties(
    packet_type: int, *, in_will: bool = False, without: tuple[str, ...] = ()
) -> st.SearchStrategy[Properties]:
    """Any properties that this packet may carry, most often none."""
    carrier = p.WILL if in_will else 1 << packet_type
    fields: dict[str, st.SearchStrategy[object]] = {}
    for row in p.TABLE:
        if row.carriers & carrier and row.field not in without:
            values = _VALUES[row.wire]
            if row.field == "response_topic":
                values = topic_names
            elif row.wire == p.VARIABLE and packet_type == t.SUBSCRIBE:
                values = st.tuples(st.integers(1, VARIABLE_MAX))
            fields[row.field] = values
    some = st.fixed_dictionaries({}, optional=fields).map(_properties)
    return st.just(NO_PROPERTIES) | some


def _properties(fields: dict[str, object]) -> Properties:
    return Properties(**fields) if fields else NO_PROPERTIES  # type: ignore[arg-type]


def _only_5(version: int, strategy: st.SearchStrategy[Properties]) -> st.SearchStrategy[Properties]:
    return strategy if version == MQTT_5 else st.just(NO_PROPERTIES)


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    block = draw(_only_5(version, properties(t.CONNECT, in_will=True)))
    payload = draw(payloads)
    if block.payload_format_indicator:
        payload = draw(texts).encode()
    return Will(draw(topic_names), payload, draw(st.integers(0, 2)), draw(st.booleans()), block)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    block = draw(_only_5(version, properties(t.CONNECT, without=("authentication_data",))))
    username = draw(st.none() | texts)
    password = draw(st.none() | blobs)
    return Connect(
        draw(texts),
        version,
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        username,
        password if version == MQTT_5 or username is not None else None,
        draw(st.none() | wills(version)),
        block,
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> Connack:
    codes = t.CONNACK_REASONS if version == MQTT_5 else t.CONNACK_FROM_311
    code = int(draw(st.sampled_from(sorted(codes))))
    session_present = code == 0 and version != MQTT_31 and draw(st.booleans())
    return Connack(session_present, code, draw(_only_5(version, properties(t.CONNACK))))


@st.composite
def publishes(draw: st.DrawFn, version: int, sender: Sender = "client") -> Publish:
    without = ("subscription_identifiers",) if sender == "client" else ()
    block = draw(_only_5(version, properties(t.PUBLISH, without=without)))
    payload = draw(payloads)
    if block.payload_format_indicator:
        payload = draw(texts).encode()
    topic = draw(topic_names)
    if block.topic_alias is not None and draw(st.booleans()):
        topic = ""
    qos = draw(st.integers(0, 2))
    dup = qos > 0 and draw(st.booleans())
    packet_id = draw(packet_ids) if qos else 0
    return Publish(topic, payload, qos, draw(st.booleans()), dup, packet_id, block)


_ACKS = (
    (Puback, t.PUBACK, t.PUBACK_REASONS),
    (Pubrec, t.PUBREC, t.PUBREC_REASONS),
    (Pubrel, t.PUBREL, t.PUBREL_REASONS),
    (Pubcomp, t.PUBCOMP, t.PUBCOMP_REASONS),
)


@st.composite
def acks(draw: st.DrawFn, version: int) -> Puback | Pubrec | Pubrel | Pubcomp:
    record, packet_type, reasons = draw(st.sampled_from(_ACKS))
    if version != MQTT_5:
        return record(draw(packet_ids))
    reason = int(draw(st.sampled_from(sorted(reasons))))
    return record(draw(packet_ids), reason, draw(properties(packet_type)))


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> Subscribe:
    block = draw(_only_5(version, properties(t.SUBSCRIBE)))
    identifier = block.subscription_identifiers[0] if block.subscription_identifiers else 0
    filters: list[tuple[str, SubscriptionOptions]] = []
    for topic_filter in draw(st.lists(topic_filters, min_size=1, max_size=4)):
        options = SubscriptionOptions(draw(st.integers(0, 2)))
        if version == MQTT_5:
            no_local = not topic_filter.startswith("$share/") and draw(st.booleans())
            handling = draw(st.integers(0, 2))
            options = SubscriptionOptions(
                options.qos, no_local, draw(st.booleans()), handling, identifier
            )
        filters.append((topic_filter, options))
    return Subscribe(draw(packet_ids), tuple(filters), block)


@st.composite
def subacks(draw: st.DrawFn, version: int) -> Suback:
    codes = t.SUBACK_REASONS if version == MQTT_5 else t.SUBACK_REASONS_311
    drawn = draw(st.lists(st.sampled_from(sorted(codes)), min_size=1, max_size=4))
    block = draw(_only_5(version, properties(t.SUBACK)))
    return Suback(draw(packet_ids), tuple(map(int, drawn)), block)


@st.composite
def unsubscribes(draw: st.DrawFn, version: int) -> Unsubscribe:
    filters = tuple(draw(st.lists(topic_filters, min_size=1, max_size=4)))
    return Unsubscribe(draw(packet_ids), filters, draw(_only_5(version, properties(t.UNSUBSCRIBE))))


@st.composite
def unsubacks(draw: st.DrawFn, version: int) -> Unsuback:
    if version != MQTT_5:
        return Unsuback(draw(packet_ids))
    codes = draw(st.lists(st.sampled_from(sorted(t.UNSUBACK_REASONS)), min_size=1, max_size=4))
    return Unsuback(draw(packet_ids), tuple(codes), draw(properties(t.UNSUBACK)))


@st.composite
def disconnects(draw: st.DrawFn, version: int, sender: Sender = "client") -> Disconnect:
    if version != MQTT_5:
        return Disconnect()
    client = sender == "client"
    codes = t.DISCONNECT_REASONS_OF_CLIENT if client else t.DISCONNECT_REASONS_OF_SERVER
    without = () if client else ("session_expiry_interval",)
    return Disconnect(
        draw(st.sampled_from(sorted(codes))), draw(properties(t.DISCONNECT, without=without))
    )


@st.composite
def auths(draw: st.DrawFn, sender: Sender = "client") -> Auth:
    codes = t.AUTH_REASONS_OF_CLIENT if sender == "client" else t.AUTH_REASONS_OF_SERVER
    block = Properties(
        authentication_method=draw(texts),
        authentication_data=draw(st.none() | blobs),
        reason_string=draw(st.none() | texts),
    )
    return Auth(int(draw(st.sampled_from(sorted(codes)))), block)


def packets(version: int, sender: Sender = "client") -> st.SearchStrategy[Packet]:
    """Any packet that `sender` may send once CONNECT has passed, or CONNACK too if a server."""
    kinds: list[st.SearchStrategy[Packet]] = [
        publishes(version, sender),
        acks(version),
    ]
    if sender == "client":
        kinds += [
            subscribes(version),
            unsubscribes(version),
            st.just(Pingreq()),
            disconnects(version),
        ]
    else:
        kinds += [
            connacks(version),
            subacks(version),
            unsubacks(version),
            st.just(Pingresp()),
        ]
        if version == MQTT_5:
            kinds.append(disconnects(version, sender))
    if version == MQTT_5:
        kinds.append(auths(sender))
    return st.one_of(kinds)

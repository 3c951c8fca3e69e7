"""Encoded deliveries, shared by all clients that get them."""

from flowguard.codec.encoder import publish_frame
from flowguard.records import NEVER_S, Delivery
from flowguard.session.outbound.aliases import TopicAliases
from flowguard.types import MQTT_5, MQTT_311, NO_PROPERTIES, Properties

Frame = tuple[bytes, bytes]
"""Head and tail of a PUBLISH; above QoS 0 its packet identifier goes between them."""


def frame_v4(delivery: Delivery) -> Frame:
    """Encode for 3.1.1 and 3.1, and remember; at QoS 0 all of it is head."""
    frame = publish_frame(delivery.message, MQTT_311, delivery.qos, delivery.retain, NO_PROPERTIES)
    if not delivery.qos:
        frame = (frame[0] + frame[1], b"")
    delivery.frame_v4 = frame
    return frame


def frame_v5(delivery: Delivery, aliases: TopicAliases | None, now_s: float) -> Frame:
    """Encode for 5.0; remember unless it depends on time or aliases. QoS 0 has only a head."""
    properties = forwarded(delivery, now_s)
    if aliases is not None and delivery.qos <= aliases.qos_max:
        return aliases.frame(delivery, properties)
    frame = publish_frame(delivery.message, MQTT_5, delivery.qos, delivery.retain, properties)
    if not delivery.qos:
        frame = (frame[0] + frame[1], b"")
    if delivery.expires_at_s == NEVER_S:
        delivery.frame_v5 = frame
    return frame


def forwarded(delivery: Delivery, now_s: float) -> Properties:
    """Return the properties that a server forwards: those of the application."""
    received = delivery.message.properties
    if received is NO_PROPERTIES and not delivery.identifiers:
        return NO_PROPERTIES
    remaining_s = None
    if delivery.expires_at_s != NEVER_S:
        # [MQTT-3.3.2-6] the received interval minus the time it waited here.
        remaining_s = max(0, round(delivery.expires_at_s - now_s))
    return Properties(
        payload_format_indicator=received.payload_format_indicator,  # [MQTT-3.3.2-4]
        message_expiry_interval=remaining_s,
        content_type=received.content_type,  # [MQTT-3.3.2-20]
        response_topic=received.response_topic,  # [MQTT-3.3.2-15]
        correlation_data=received.correlation_data,  # [MQTT-3.3.2-16]
        user_properties=received.user_properties,  # [MQTT-3.3.2-17]
        subscription_identifiers=delivery.identifiers,  # [MQTT-3.3.4-3]
    )

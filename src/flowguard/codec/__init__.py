"""Bytes to packets and back: MQTT 5.0, 3.1.1 and 3.1, strict, incremental, without IO.

`PacketDecoder` takes bytes as they come and gives packets, or raises `PeerError` with the reason
code that the standard wants; nothing else leaves it, whatever the bytes. `encode` is the way back.
The room knows packets one by one. What is allowed when, and what follows, is for `session`.
"""

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import (
    PINGREQ_FRAME,
    PINGRESP_FRAME,
    encode,
    puback_frame,
    pubcomp_frame,
    publish_frame,
    publish_qos_0_frame,
    pubrec_frame,
    pubrel_frame,
)
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

__all__ = [
    "PacketDecoder",
    "encode",
    "publish_frame",
    "publish_qos_0_frame",
    "puback_frame",
    "pubrec_frame",
    "pubrel_frame",
    "pubcomp_frame",
    "PINGREQ_FRAME",
    "PINGRESP_FRAME",
    "Packet",
    "Connect",
    "Will",
    "Connack",
    "Puback",
    "Pubrec",
    "Pubrel",
    "Pubcomp",
    "Subscribe",
    "Suback",
    "Unsubscribe",
    "Unsuback",
    "Pingreq",
    "Pingresp",
    "Disconnect",
    "Auth",
]

"""Bytes to packets and back: MQTT 5.0, 3.1.1 and 3.1, strict, incremental, without IO.

`PacketDecoder` takes bytes as they come and returns packets, or raises `PeerError` with the
standard's reason code. It raises nothing else, whatever the bytes. `encode` is the inverse. The
package handles single packets; their order and effects belong to `session`.
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

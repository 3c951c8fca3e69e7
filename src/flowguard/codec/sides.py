"""The packets that each side sends, and the readers of their bodies except CONNECT and PUBLISH."""

from collections.abc import Callable
from typing import Final

from flowguard.codec import bodies
from flowguard.codec import tables as t
from flowguard.codec.connect import decode_connack
from flowguard.codec.packets import Packet

Body = Callable[[bytes, int, int, int, int], Packet]

BOTH: Final[dict[int, Body]] = {
    t.PUBACK: bodies.decode_puback,
    t.PUBREC: bodies.decode_pubrec,
    t.PUBREL: bodies.decode_pubrel,
    t.PUBCOMP: bodies.decode_pubcomp,
}
FROM_CLIENT: Final[dict[int, Body]] = {
    **BOTH,
    t.SUBSCRIBE: bodies.decode_subscribe,
    t.UNSUBSCRIBE: bodies.decode_unsubscribe,
    t.PINGREQ: bodies.decode_pingreq,
    t.DISCONNECT: bodies.decode_disconnect_from_client,
    t.AUTH: bodies.decode_auth_from_client,
}
FROM_SERVER: Final[dict[int, Body]] = {
    t.CONNACK: decode_connack,
    **BOTH,
    t.SUBACK: bodies.decode_suback,
    t.UNSUBACK: bodies.decode_unsuback,
    t.PINGRESP: bodies.decode_pingresp,
    t.DISCONNECT: bodies.decode_disconnect_from_server,
    t.AUTH: bodies.decode_auth_from_server,
}

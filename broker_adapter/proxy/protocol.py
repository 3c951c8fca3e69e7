"""The PROXY protocol, version 2: a header with the client's address, before any other bytes.

https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt, section 2.2
"""

from ipaddress import IPv4Address, ip_address
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
LOCAL: Final = 0x20
"""Version 2: the header names no client."""
PROXY: Final = 0x21
"""Version 2: the header names a client of the proxy."""
TCP_4: Final = 0x11
TCP_6: Final = 0x21
UNKNOWN: Final = 0x00


def header(source: object, destination: object) -> bytes:
    """Return the header for both ends of the client's connection; only TCP addresses are named."""
    if not (isinstance(source, tuple) and isinstance(destination, tuple)):
        return SIGNATURE + bytes((LOCAL, UNKNOWN, 0, 0))
    ends = [
        (ip_address(str(end[0]).partition("%")[0]), int(end[1])) for end in (source, destination)
    ]
    is_4 = all(isinstance(address, IPv4Address) for address, _ in ends)
    body = b"".join(address.packed for address, _ in ends)
    body += b"".join(port.to_bytes(2, "big") for _, port in ends)
    return (
        SIGNATURE + bytes((PROXY, TCP_4 if is_4 else TCP_6)) + len(body).to_bytes(2, "big") + body
    )

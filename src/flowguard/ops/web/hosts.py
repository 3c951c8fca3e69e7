"""Names under which the HTTP port may be asked.

A web page can give a name of its own the address of this port, and then is, for the browser that
shows it, of the same origin as the broker (DNS rebinding). The browser says the name in the Host
header. An address needs no list: nobody can make a browser look up an address.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

LOCALHOST: Final = "localhost"
HOST: Final = re.compile(r"(?:\[(?P<address>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::\d*)?", re.ASCII)
"""The forms of a Host header: `name`, `name:port`, `192.0.2.1`, `[2001:db8::1]:port` [RFC 9110,
7.2]."""


def is_ours(host: str | None, names: Collection[str]) -> bool:
    """Whether `host`, as in a Host header, is an IP address, localhost, or one of `names`.

    None: the request has no such header; browsers always send it.
    """
    if host is None:
        return True
    parts = HOST.fullmatch(host)
    if parts is None:
        return False
    name = (parts["name"] or "").lower().removesuffix(".")
    return name == LOCALHOST or name in names or _is_address(parts["address"] or name)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

"""Names under which the HTTP port may be requested.

A web page can point its own name to the address of this port. For the browser, its origin then
equals that of the broker (DNS rebinding). The browser sends this name in the Host header. IP
addresses need no list, because no page can make a browser resolve one.
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
    """Return True if `host`, as in a Host header, is an IP address, localhost, or one of `names`.

    `host` is None for a request without the header; browsers always send it.
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

"""A listener of mosquitto.conf, and the reasons to leave it out."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, final

from flowguard.address import Address, Scheme
from flowguard.errors import ConfigError
from store_tools.mosquitto.options import Value, creates

WILDCARDS: Final = frozenset((None, "0.0.0.0", "::"))


class Access(NamedTuple):
    """The clients that may connect, and their rules."""

    allow_anonymous: bool
    password_file: Value | None
    acl_file: Value | None


@final
@dataclass(slots=True)
class MosquittoListener:
    """A listener with the options that were read for it."""

    place: str
    """`FILE:LINE` of its line."""
    host: str | None
    """A host, the path of a Unix socket with port 0, or None for all addresses of IPv4 and IPv6."""
    port: int
    is_default: bool = False
    """True if it is the listener of options above the first `listener`."""
    options: dict[str, Value] = field(default_factory=dict)
    flaws: list[str] = field(default_factory=list)
    """Reasons to leave it out."""

    @property
    def exists(self) -> bool:
        """True if Mosquitto opens it, provided that it is the default listener."""
        return any(creates(*each) for each in self.options.items())

    def overlaps(self, other: "MosquittoListener") -> bool:
        """Return True if Mosquitto cannot open both."""
        if self.port != other.port or not self.versions & other.versions:
            return False
        hosts = {self.host, other.host}
        return len(hosts) == 1 or (self.port > 0 and bool(hosts & WILDCARDS))

    @property
    def versions(self) -> set[int]:
        """The IP versions that it may use; Mosquitto does not start if there is none."""
        allowed = {"ipv4": {4}, "ipv6": {6}}.get(str(self.options.get("socket_domain")), {4, 6})
        with suppress(ValueError):
            allowed &= {ip_address(self.host or "").version}
        return allowed

    @property
    def has_tls(self) -> bool:
        return {"certfile", "keyfile"} <= self.options.keys()

    @property
    def address(self) -> Address:
        """The address in flowguard. Raises ConfigError if there is none."""
        if not self.port:
            return Address.parse(f"unix:{self.host}")
        host = self.host or ("0.0.0.0" if self.versions == {4} else "::")
        names = {(False, False): "mqtt", (True, False): "mqtts", (False, True): "ws"}
        scheme = Scheme(names.get((self.has_tls, self.is_websocket), "wss"))
        return Address.parse(str(Address(scheme, host, self.port)))

    @property
    def is_websocket(self) -> bool:
        return self.options.get("protocol") == "websockets"

    @property
    def has_names(self) -> bool:
        """True if a client's certificate alone determines its user name."""
        asked = ("require_certificate", "use_identity_as_username")
        return self.has_tls and all(self.options.get(name) for name in asked)

    def fits(self, own: Access, other: Access) -> bool:
        """Return True if clients have the same rights with `other` as with the access `own`."""
        return own == other or (self.has_names and own.acl_file == other.acl_file)

    def find_flaws(self, access: Access) -> list[str]:
        """Return the reasons why it would accept clients that Mosquitto rejects."""
        has, host = self.options.get, self.host or ""
        asks, has_names = has("require_certificate"), has("use_identity_as_username")
        is_open = access == Access(True, None, None)
        is_bound = has("socket_domain") or (host and self.versions != {4})
        checks = [
            (bool(has("certfile")) != bool(has("keyfile")), "TLS needs a certfile and a keyfile"),
            ((asks or has_names) and not self.has_tls, "without TLS no client has a certificate"),
            (has_names and not asks, "without require_certificate no client has a certificate"),
            (asks and not has("cafile"), "no cafile names the authorities of clients"),
            (
                asks and not (has_names or is_open),
                "a certificate alone is enough here, and it names the user",
            ),
            (not self.port and (self.has_tls or self.is_websocket), "a Unix socket has plain MQTT"),
            (self.is_websocket and is_bound, "Mosquitto opens WebSocket on IPv4 or all addresses"),
            (not self._is_address(), "its address is none of flowguard"),
        ]
        return [why for is_so, why in checks if is_so]

    def _is_address(self) -> bool:
        try:
            return not re.search(r"\s", self.address.place)
        except ConfigError:
            return False

    def settings(self) -> dict[str, Any]:
        """Return it as in `network.listeners`."""
        address = self.address
        found: dict[str, Any] = {"address": str(address)}
        if address.host == "::" and self.versions == {6}:
            found["ipv6_only"] = True
        if self.has_tls:
            names = {"certfile": "cert", "keyfile": "key", "cafile": "chain"}
            if self.options.get("require_certificate"):
                names |= {"cafile": "client_ca", "crlfile": "crl"}
            found |= {
                ours: self.options[name] for name, ours in names.items() if name in self.options
            }
        if int(self.options.get("max_connections", 0)) > 0:
            found["connections_max"] = self.options["max_connections"]
        return found

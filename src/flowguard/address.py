"""Addresses as text: of a listener, or of a Kafka topic.

127.0.0.1:1883   [::1]:1883   mqtts://0.0.0.0:8883   ws://127.0.0.1:8080   unix:/run/mqtt.sock
kafka://127.0.0.1:9092,127.0.0.1:9093/telemetry
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Self, final

from flowguard.errors import ConfigError

PORT_MAX = 65_535
PATH_BYTES_MAX = 107
"""Maximum length of a Unix socket's path in the kernel, without the final NUL, bytes."""
UNIX = "unix:"
KAFKA = "kafka://"
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Valid names of Kafka topics, except `.` and `..`."""


class Scheme(StrEnum):
    """The layers between a socket and MQTT."""

    MQTT = "mqtt"
    MQTTS = "mqtts"
    WS = "ws"
    WSS = "wss"

    @property
    def has_tls(self) -> bool:
        return self in (Scheme.MQTTS, Scheme.WSS)

    @property
    def has_websocket(self) -> bool:
        return self in (Scheme.WS, Scheme.WSS)


@final
@dataclass(frozen=True, slots=True)
class Address:
    scheme: Scheme
    host: str
    """The host, or the path of a Unix socket."""
    port: int | None
    """The port; 0 for a free one, None for a Unix socket."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST:PORT`, with or without a scheme, or `unix:PATH`; raises ConfigError."""
        if text.startswith(UNIX):
            path = text.removeprefix(UNIX).removeprefix("//")
            if not path.startswith("/"):
                raise ConfigError(f"{text}: expected a whole path, as in unix:/run/mqtt.sock")
            if len(path.encode()) > PATH_BYTES_MAX:
                raise ConfigError(
                    f"{text}: a Unix socket has a path of {PATH_BYTES_MAX} bytes at most"
                )
            return cls(Scheme.MQTT, path, None)
        name, separator, place = text.partition("://")
        if not separator:
            return cls(Scheme.MQTT, *parse_address(text))
        if name not in tuple(Scheme):
            known = ", ".join(f"{scheme}://" for scheme in Scheme)
            raise ConfigError(f"{text}: {name}:// is none of {known} and unix:")
        return cls(Scheme(name), *parse_address(place.removesuffix("/")))

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach it."""
        if self.port is None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def place(self) -> str:
        """The address without its scheme, as given to a client."""
        if self.port is None:
            return f"{UNIX}{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.place if self.port is None else f"{self.scheme}://{self.place}"


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port in `HOST:PORT` or `[IPv6]:PORT`; raises ConfigError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ConfigError(f"{text}: expected HOST:PORT, for example 127.0.0.1:1883")
    return host, int(port)


@final
@dataclass(frozen=True, slots=True)
class KafkaTopic:
    servers: str
    """HOST:PORT,... of some of the cluster's nodes."""
    topic: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `kafka://HOST:PORT,HOST:PORT/TOPIC`; raises ConfigError."""
        place = text.removeprefix(KAFKA)
        servers, _, topic = place.partition("/")
        fits = _TOPIC.fullmatch(topic) is not None and topic.strip(".")
        if place == text or not servers or not fits:
            raise ConfigError(f"{text}: expected kafka://HOST:PORT,HOST:PORT/TOPIC")
        for server in servers.split(","):
            parse_address(server)
        return cls(servers, topic)

    def __str__(self) -> str:
        return f"{KAFKA}{self.servers}/{self.topic}"

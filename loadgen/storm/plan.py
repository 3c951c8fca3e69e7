"""The plan of a storm: target, crowd, messages; and when a rejected client retries."""

import socket
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, Self, final

from flowguard.types import MQTT_5
from loadgen.storm.access import PLAIN, ClientAccess

LONG_KEEP_ALIVE_S: Final = 65_535
"""Longer than any crowd stays. It is not 0 (none), as rumqttd closes such connections
unanswered."""


class RetryMode(StrEnum):
    """The reaction of a client to a failed attempt."""

    NONE = "none"
    """Gives up."""
    FIXED = "fixed"
    """Waits the same time after every failure: the retry storm in its purest form."""
    BACKOFF = "backoff"
    """Waits twice as long after each failure in a row, with jitter."""


@final
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`first_s` is the wait after the first failure, `max_s` the longest, jitter included."""

    kind: RetryMode = RetryMode.BACKOFF
    first_s: float = 1.0
    max_s: float = 60.0

    def delay_s(self, failures: int, rng: Random) -> float | None:
        """Return the wait after `failures` (>= 1) failed attempts in a row, or None to give up."""
        assert failures >= 1
        match self.kind:
            case RetryMode.NONE:
                return None
            case RetryMode.FIXED:
                return self.first_s
            case RetryMode.BACKOFF:
                doubled_s = self.first_s * 2.0 ** min(failures - 1, 30)
                return min(self.max_s, doubled_s * rng.uniform(0.5, 1.5))


@final
@dataclass(frozen=True, slots=True)
class Target:
    """The broker's address, resolved once, and the protocol version to speak."""

    host: str
    port: int
    version: int
    family: socket.AddressFamily
    address: tuple[str | int | bytes, ...]
    access: ClientAccess = PLAIN

    @classmethod
    def resolve(cls, host: str, port: int, version: int = MQTT_5) -> Self:
        """Ask the resolver. Raises OSError."""
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return cls(host, port, version, family, address)

    @classmethod
    def knock(cls, host: str, port: int, version: int, patience_s: float) -> Self:
        """Return the first of the resolver's addresses that answers, as a client would find it.
        Raises OSError, and UnicodeError for an invalid name."""
        with socket.create_connection((host, port), patience_s) as found:
            return cls(host, port, version, found.family, found.getpeername())


@final
@dataclass(frozen=True, slots=True)
class CrowdPlan:
    clients: int
    retry: RetryPolicy = RetryPolicy()
    timeout_s: float = 10.0
    """Time that an attempt waits for its CONNACK."""
    seconds: float = 60.0
    """Time in which the crowd tries; clients that are not connected by then are counted as
    `trying`."""
    hold_s: float = 1.0
    """Time for which connections stay when no client tries any more."""
    durable: bool = False
    """Sessions that outlive their connections, so that the broker has to store them."""
    seed: int = 0
    returns: bool = False
    """True if a client that loses its connection tries again, as after a failed attempt."""
    keep_alive_s: int = LONG_KEEP_ALIVE_S
    """The keep-alive that clients ask for; their part has to send the PINGREQs."""


@final
@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """Groups of publishers and subscribers; each publisher writes to all subscribers of its group.

    pairs: many groups of 1 and 1; fan-out: one group of 1 and many; fan-in: one of many and 1;
    slow subscriber: fan-out, some read slowly or not at all while messages are published.
    """

    groups: int
    publishers: int
    subscribers: int
    qos: int = 1
    payload_bytes: int = 64
    outstanding: int = 10
    """Maximum number of QoS 1 and 2 messages of a publisher without PUBACK or PUBCOMP."""
    backlog: int | None = 200
    """Maximum number of messages in flight to a subscriber, or None for no bound.

    A broker drops those that it cannot queue. Without a bound, the publisher does not wait for
    deliveries.
    """
    rate_per_s: float | None = None
    """Messages per second of each publisher, or None for as fast as the bounds allow."""
    seconds: float = 10.0
    late_s: float = 5.0
    """Time for messages in flight to arrive after the last PUBLISH."""
    slow: int = 0
    """Number of subscribers per group that read slowly until the last PUBLISH, then as all
    others."""
    slow_bytes_per_s: int = 0
    """Bytes per second that each slow subscriber reads from its socket; 0 if it reads none."""

    @property
    def backlog_share(self) -> int | None:
        """Maximum number of messages of one publisher in flight to a subscriber, or None for no
        bound."""
        return None if self.backlog is None else max(1, self.backlog // self.publishers)

    @property
    def clients(self) -> int:
        return self.groups * (self.publishers + self.subscribers)

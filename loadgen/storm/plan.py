"""The plan of a storm: target, crowd, messages; and when a refused client tries again."""

import socket
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, Self, final

from flowguard.types import MQTT_5

LONG_KEEP_ALIVE_S: Final = 65_535
"""Longer than any crowd stays. Not 0, none at all: rumqttd closes such connections unanswered."""


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
        """How long to wait after `failures` (>= 1) failed attempts in a row; None: give up."""
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

    @classmethod
    def resolve(cls, host: str, port: int, version: int = MQTT_5) -> Self:
        """Ask the resolver; raises OSError."""
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return cls(host, port, version, family, address)

    @classmethod
    def knock(cls, host: str, port: int, version: int, patience_s: float) -> Self:
        """The first of the resolver's addresses that answers, as a client would find it; raises
        OSError, and UnicodeError for what is no name."""
        with socket.create_connection((host, port), patience_s) as found:
            return cls(host, port, version, found.family, found.getpeername())


@final
@dataclass(frozen=True, slots=True)
class CrowdPlan:
    clients: int
    retry: RetryPolicy = RetryPolicy()
    timeout_s: float = 10.0
    """How long an attempt waits for its CONNACK."""
    seconds: float = 60.0
    """How long the crowd tries; who is not in by then is counted as `trying`."""
    hold_s: float = 1.0
    """How long connections stay when nobody tries any more."""
    durable: bool = False
    """Sessions that outlive their connections, so that the broker has to store them."""
    seed: int = 0
    returns: bool = False
    """Whether a client that loses its connection tries again, as after a failed attempt."""
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
    """QoS 1 and 2 messages of a publisher without PUBACK or PUBCOMP, messages."""
    backlog: int | None = 200
    """Messages on their way to a subscriber, at most; with more than a broker queues, it drops.

    None: no bound, the publisher does not care what arrives.
    """
    rate_per_s: float | None = None
    """Messages per second of each publisher; None: as fast as the bounds allow."""
    seconds: float = 10.0
    late_s: float = 5.0
    """Time that messages on their way have to arrive after the last PUBLISH."""
    slow: int = 0
    """Subscribers of each group that read slowly until the last PUBLISH, then as all others."""
    slow_bytes_per_s: int = 0
    """Bytes per second that each slow subscriber takes out of its socket; 0: it takes none."""

    @property
    def backlog_share(self) -> int | None:
        """Messages that one publisher may have on their way to a subscriber; None: no bound."""
        return None if self.backlog is None else max(1, self.backlog // self.publishers)

    @property
    def clients(self) -> int:
        return self.groups * (self.publishers + self.subscribers)

"""Upstream: one of the brokers behind a proxy, as far as it can be seen from here."""

from ssl import SSLContext
from typing import Final, final

from broker_adapter.proxy_packets import Outstanding

BUSY_S: Final = 1.0
"""So long a broker's own refusals are pressure."""


@final
class Upstream:
    """Its address, and its health."""

    __slots__ = (
        "address",
        "busy_until_s",
        "dials",
        "family",
        "host",
        "in_process",
        "is_up",
        "name",
        "pairs_count",
        "probe_s",
        "tls",
    )

    def __init__(
        self,
        name: str = "upstream",
        family: int = 0,
        address: tuple[str, int] = ("", 0),
        host: str = "",
        tls: SSLContext | None = None,
    ) -> None:
        """`host`: whose certificate it must have where there is `tls`."""
        self.name = name
        """As its address was written."""
        self.family = family
        self.address = address
        self.host = host
        self.tls = tls
        self.is_up = True
        """Whether it was there when it was last asked."""
        self.probe_s = 0.0
        """When it may be asked again, where it was not."""
        self.busy_until_s = 0.0
        self.dials = 0
        """Connections to it that are being opened."""
        self.pairs_count = 0
        """Clients that it has, or that are on their way to it."""
        self.in_process: dict[Outstanding, None] = {}
        """Packets, the oldest first."""

    def age_s(self, now_s: float) -> float:
        """How long the oldest packet in process has waited for it."""
        if not self.in_process:
            return 0.0
        return now_s - next(iter(self.in_process)).since_s

    def is_busy(self, now_s: float) -> bool:
        """Whether it has just refused somebody for that."""
        return now_s < self.busy_until_s

    def pressure(self, now_s: float, objective_s: float) -> float:
        """How long it takes, as a multiple of what it may; 1 where it is calm."""
        return max(1.0, self.age_s(now_s) / objective_s, 2.0 * self.is_busy(now_s))

"""The limit of each resource, the one that ends first, and the time of a full reconnect."""

from dataclasses import asdict, dataclass
from typing import Any, final

from flowguard.bounds import CONNECTION_BYTES, SESSION_BYTES, TLS_BYTES, Bounds
from flowguard.broker.sockets.descriptors import Descriptors


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """Units of work that one core does per second, or None if it was not measured."""

    connects: float
    handshakes: float | None
    passwords: float | None


@final
@dataclass(frozen=True, slots=True)
class Capacity:
    """The clients that a broker with these settings can serve on this machine."""

    workers: int
    cores: int
    """Cores that serve clients: one for each worker, as far as there are cores."""
    has_tls: bool
    descriptors_limit: int
    """Descriptors of each process."""
    descriptors_clients: int
    """Clients that there are descriptors for."""
    memory_bytes: int
    """Memory limit of all processes."""
    memory_clients: int
    """Connected clients that fit in memory, or `node.connections_max` if it is set."""
    durable_clients: int
    """Clients whose session remains when they disconnect, or `node.sessions_max` if it is set."""
    client_bytes: int
    """Memory that the broker reserves for an idle client."""
    durable_client_bytes: int
    """Memory that the broker reserves for an idle client with a durable session."""
    memory_key: str
    """Name of the limit behind `memory_clients`: "memory", or a setting."""
    rates: Rates

    @property
    def clients(self) -> int:
        """Clients that can be connected at once."""
        return min(self.descriptors_clients, self.memory_clients)

    @property
    def ends_first(self) -> str:
        return "descriptors" if self.descriptors_clients == self.clients else self.memory_key

    @property
    def work_s(self) -> dict[str, float]:
        """Processor time of a reconnect of one client, by kind of work, seconds."""
        rates = self.rates
        found = {"CONNECTs": rates.connects, "passwords": rates.passwords}
        if self.has_tls:
            found["TLS handshakes"] = rates.handshakes
        return {kind: 1 / rate for kind, rate in found.items() if rate}

    @property
    def reconnect_s(self) -> float:
        """Time until all clients are connected again, if the broker does nothing else."""
        return self.clients * sum(self.work_s.values()) / self.cores

    @property
    def sentence(self) -> str:
        """The first limit and the time of a full reconnect, as text."""
        keys = {"descriptors": "ulimit -n", "memory": "flow.memory_max_bytes"}
        key = keys.get(self.ends_first, self.ends_first)
        work_s = self.work_s
        most = max(work_s, key=lambda kind: work_s[kind])
        return (
            f"The first limit is {self.ends_first}, at {self.clients:,} clients: raise {key} for "
            f"more. A full reconnect of them takes about {duration(self.reconnect_s)}, "
            f"most of it for {most}."
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "clients": self.clients,
            "ends_first": self.ends_first,
            "reconnect_s": self.reconnect_s,
            "sentence": self.sentence,
        }


def capacity_of(
    bounds: Bounds,
    descriptors: Descriptors,
    rates: Rates,
    *,
    memory_bytes: int,
    workers: int,
    cores: int,
    has_tls: bool,
) -> Capacity:
    """Return the capacity of `workers` processes, each with these bounds and descriptors."""
    is_set = bounds.asked.node.connections_max is not None
    client_bytes = CONNECTION_BYTES * 9 // 8 + (TLS_BYTES * 9 // 8 if has_tls else 0)
    return Capacity(
        workers=workers,
        cores=min(workers, cores),
        has_tls=has_tls,
        descriptors_limit=descriptors.limit,
        descriptors_clients=workers * descriptors.places,
        memory_bytes=memory_bytes,
        memory_clients=workers * bounds.connections_max,
        durable_clients=workers * bounds.sessions_max,
        client_bytes=client_bytes,
        durable_client_bytes=client_bytes + SESSION_BYTES,
        memory_key="node.connections_max" if is_set else "memory",
        rates=rates,
    )


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0.1):,.1f} s"
    return f"{seconds / 60:,.0f} min"

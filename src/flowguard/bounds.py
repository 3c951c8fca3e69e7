"""Bounds: divide the memory limit among everything that a peer can make a node hold.

The limit has two parts. The first is for memory that may be held *for long*: clients, sessions,
messages for slow readers, incomplete packets, the store's caches. It has the share
`flow.memory_objective` of the limit, less the memory of a process without clients. So clients that
only fill their shares do not put the node under pressure. The rest is for *work in process*, which
ends by itself.

Explicit settings are kept. The rest of each part is divided by weight among the other settings, and
each gets at least its minimum. All bounds and the process together fit in the limit, or `Bounds.of`
reports the settings that do not fit (docs/explain/limits.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from flowguard.address import Address
from flowguard.config import KIB, MIB, Settings
from flowguard.errors import ConfigError

PROCESS_BYTES: Final = 75 * MIB
"""Memory of a process without clients: 61 MiB resident with the memory store, 72 with RocksDB; 74
after clients have come and gone, because more of its code is loaded then."""
CONNECTION_BYTES: Final = 4 * KIB
"""Memory of a client. A client with a session that ends with it takes 2.0 to 2.5 KB resident (1,000
to 2,000 clients of MQTT 3.1.1 and 5.0, compiled and not, CPython 3.11). `INPUT_FREE_BYTES`, which
no budget counts, are included."""
INPUT_FREE_BYTES: Final = KIB
"""Undecoded input of each connection that CONNECTION_BYTES already includes."""
TLS_BYTES: Final = 16 * KIB
"""Additional memory of a TLS connection: 9 KiB resident while it is idle (OpenSSL 3.0), and the
rest of a record that a full socket does not take."""
SESSION_BYTES: Final = 2_000
"""Memory of a kept session without its client id, subscriptions and messages: 1.3 KB resident after
its client has disconnected, and its data in the store."""
WRITE_BUFFERS: Final = 4
"""Number of write buffers of `store.write_buffer_bytes` in all column families together."""
SOCKETS_MIN: Final = 64
"""Number of sockets beyond the clients that the process's own memory includes."""
CLIENT_SHARE: Final = 8
"""Divisor of a total that limits one client: an eighth, unless a setting overrides it."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a part of the memory for a setting without an explicit value."""

    key: str
    weight: float
    unit_bytes: int = 1
    """Memory per unit of the setting, bytes."""
    least: int = MIB
    """Minimum value, in the setting's own unit; with less the node could not serve."""
    most: int | None = None
    """Maximum value, in the setting's own unit; more would have no use."""


LONG: Final = (
    Share("node.connections_max", 20, CONNECTION_BYTES + CONNECTION_BYTES // 8, least=100),
    Share("node.sessions_max", 10, SESSION_BYTES, least=100),
    Share("node.state_bytes_max", 12),
    Share("node.retained_bytes_max", 10),
    Share("node.queue_bytes_max", 14),
    Share("node.inflight_bytes_max", 10),
    Share("node.outbox_bytes_max", 8),
    Share("node.input_bytes_max", 8),
    Share("node.plans_bytes_max", 4, most=64 * MIB),
    Share("store.cache_bytes", 4, most=64 * MIB),
    Share("store.write_buffer_bytes", 4, WRITE_BUFFERS, most=32 * MIB),
)
"""Bounds on memory that peers can make the node hold for any time."""
IN_PROCESS: Final = "flow.unfinished_bytes_max"
WORK: Final = (
    Share(IN_PROCESS, 25),
    Share("flow.journal_bytes_max", 3, most=64 * MIB),
    Share("flow.connect_buffer_bytes_max", 2, least=256 * KIB, most=16 * MIB),
)
"""Bounds on memory that is held until the work is done."""
RECORDING: Final = Share("telemetry.buffer_bytes_max", 4, most=32 * MIB)
"""The bound on rows that wait for the disk, if the node records itself."""
GROUPS: Final = Share("kafka.groups_bytes_max", 6, most=64 * MIB)
"""The bound on messages of groups of several brokers on this node, if there are such groups."""
OF_A_CLIENT: Final = {
    "session.queue_bytes_max": "node.queue_bytes_max",
    "session.outbox_bytes_max": "node.outbox_bytes_max",
    "session.state_bytes_max": "node.state_bytes_max",
}
"""Settings for one client, with the total for all clients that includes each."""
HOLDS_A_PACKET: Final = (
    "node.queue_bytes_max",
    "node.inflight_bytes_max",
    "node.input_bytes_max",
    "kafka.groups_bytes_max",
)
"""Bounds that must allow the largest packet."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a node; in bytes, unless the name has another unit."""

    memory_bytes: int
    """The whole memory limit, including the process."""
    asked: Settings = field(compare=False)
    """The node's settings as configured."""
    settings: Settings
    """The node's settings, with every bound filled in."""
    long_bytes: int
    """The part of `memory_bytes` for long-held memory, including the process."""
    connections_max: int
    """Maximum number of connected clients."""
    sockets_max: int
    """Maximum number of open sockets: clients, and an eighth more without a CONNECT."""
    sessions_max: int
    """Maximum number of sessions that outlive their connection."""
    state_bytes: int
    retained_bytes: int
    queue_bytes: int
    inflight_bytes: int
    outbox_bytes: int
    input_bytes: int
    plans_bytes: int
    store_bytes: int
    """Memory that the store itself uses, bytes."""

    @classmethod
    def of(cls, settings: Settings, memory_bytes: int) -> "Bounds":
        """Divide `memory_bytes`; raises ConfigError if explicit settings do not fit in it."""
        kept = _kept(settings)
        long = _wanted(_long(settings), settings)
        if settings.telemetry.record_dir or settings.telemetry.record_topic:
            long.append(RECORDING)
        if settings.store.application_store == "kafka" and settings.kafka.groups_prefix:
            long += _wanted((GROUPS,), settings)
        if settings.store.kind != "rocks":
            long = [share for share in long if not share.key.startswith("store.")]
        work = _wanted(WORK, settings)
        least_bytes = PROCESS_BYTES + _least_bytes(long, kept) + _least_bytes(work, kept)
        if least_bytes > memory_bytes:
            raise ConfigError(_too_little(memory_bytes, least_bytes, [*long, *work], kept))
        for_work_bytes = _least_bytes(work, kept)
        long_bytes = int(settings.flow.memory_objective * memory_bytes) - PROCESS_BYTES
        long_bytes = max(long_bytes, _least_bytes(long, kept))
        long_bytes = min(long_bytes, memory_bytes - PROCESS_BYTES - for_work_bytes)
        values = _shared_out(long, long_bytes, kept)
        long_bytes = PROCESS_BYTES + _bytes_of(long, values)
        values |= _shared_out(work, memory_bytes - long_bytes, kept)
        if IN_PROCESS not in kept:
            most_bytes = _process_bytes_max(settings, memory_bytes)
            values[IN_PROCESS] = min(values[IN_PROCESS], most_bytes)
        assert long_bytes + _bytes_of(work, values) <= memory_bytes
        filled = _filled(settings, memory_bytes, values, kept)
        return cls(
            memory_bytes=memory_bytes,
            asked=settings,
            settings=filled,
            long_bytes=long_bytes,
            connections_max=values["node.connections_max"],
            sockets_max=_sockets_max(values["node.connections_max"]),
            sessions_max=values["node.sessions_max"],
            state_bytes=values["node.state_bytes_max"],
            retained_bytes=values["node.retained_bytes_max"],
            queue_bytes=values["node.queue_bytes_max"],
            inflight_bytes=values["node.inflight_bytes_max"],
            outbox_bytes=values["node.outbox_bytes_max"],
            input_bytes=values["node.input_bytes_max"],
            plans_bytes=values["node.plans_bytes_max"],
            store_bytes=sum(
                share.unit_bytes * values[share.key]
                for share in long
                if share.key.startswith("store.")
            ),
        )

    def shortfall(self, process_bytes: int = PROCESS_BYTES) -> str | None:
        """Why the memory limit leaves nothing for clients, or None if it does.

        `process_bytes`: memory of this process without its store and clients.
        """
        objective = self.settings.flow.memory_objective
        rest_bytes = process_bytes + self.store_bytes
        if rest_bytes <= objective * self.memory_bytes:
            return None
        default = " (3/4 of the memory here)" if self.asked.flow.memory_max_bytes is None else ""
        # A larger limit has larger shares for the store: a tenth more than the process needs.
        more_bytes = max(0, process_bytes + process_bytes // 10 - PROCESS_BYTES)
        return (
            f"flow.memory_max_bytes: of {self.memory_bytes:,} bytes{default} the broker takes "
            f"{rest_bytes:,} without any client, more than flow.memory_objective "
            f"({objective:g}): it would reject all clients as overloaded. "
            f"Raise it to {self.needed_bytes + int(more_bytes / objective):,}"
        )

    @property
    def rest_bytes(self) -> int:
        """Memory of the process and its store without any client, bytes."""
        return PROCESS_BYTES + self.store_bytes

    @property
    def needed_bytes(self) -> int:
        """Memory limit with which every long-held bound fits below the objective, bytes."""
        return int(self.long_bytes / self.settings.flow.memory_objective) + 1


def _long(settings: Settings) -> tuple[Share, ...]:
    """Return `LONG`, with more memory per connection if a listener or the cluster uses TLS."""
    listeners = settings.network.listeners
    has_tls = any(Address.parse(listener.address).scheme.has_tls for listener in listeners)
    if not has_tls and settings.cluster.cert is None:
        return LONG
    first = LONG[0]
    assert first.key == "node.connections_max"
    more_bytes = TLS_BYTES + TLS_BYTES // 8
    return (replace(first, unit_bytes=first.unit_bytes + more_bytes), *LONG[1:])


def _process_bytes_max(settings: Settings, memory_bytes: int) -> int:
    """Return the bytes in process that fit between a node at rest and the objective of memory.

    This is half of the free memory, because the journal holds these bytes a second time.
    """
    free_bytes = int(settings.flow.memory_objective * memory_bytes) - PROCESS_BYTES
    return max(MIB, free_bytes // 2)


def _sockets_max(connections_max: int) -> int:
    """Return the number of sockets; additional ones are needed to reject further clients."""
    return connections_max + max(SOCKETS_MIN, connections_max // 8)


def _value(settings: Settings, key: str) -> int | None:
    section, _, name = key.partition(".")
    value: int | None = getattr(getattr(settings, section), name)
    return value


def _is_set(settings: Settings, key: str) -> bool:
    section, _, name = key.partition(".")
    return name in getattr(settings, section).model_fields_set


def _kept(settings: Settings) -> dict[str, int]:
    """Return the explicitly set bounds, by key."""
    keys = [share.key for share in (*LONG, *WORK, RECORDING, GROUPS)]
    values = {key: _value(settings, key) for key in keys if _is_set(settings, key)}
    return {key: value for key, value in values.items() if value is not None}


def _wanted(shares: tuple[Share, ...], settings: Settings) -> list[Share]:
    """Return the shares, each with at least the size that a packet or a client is promised."""
    promised = {key: settings.session.packet_size_max for key in HOLDS_A_PACKET}
    for of_one, of_all in OF_A_CLIENT.items():
        if _is_set(settings, of_one):
            promised[of_all] = max(promised.get(of_all, 0), _value(settings, of_one) or 0)
    return [replace(each, least=max(each.least, promised.get(each.key, 0))) for each in shares]


def _least_bytes(shares: list[Share], kept: Mapping[str, int]) -> int:
    return sum(share.unit_bytes * kept.get(share.key, share.least) for share in shares)


def _bytes_of(shares: list[Share], values: Mapping[str, int]) -> int:
    return sum(share.unit_bytes * values[share.key] for share in shares)


def _shared_out(shares: list[Share], room_bytes: int, kept: Mapping[str, int]) -> dict[str, int]:
    """Return a value for each share: kept values, and the rest of the memory by weight and limits.

    The memory is at least the sum of all minimums. Shares at their maximum leave the rest to
    others.
    """
    values = {share.key: kept[share.key] for share in shares if share.key in kept}
    open_shares = [share for share in shares if share.key not in kept]
    while open_shares:
        left_bytes = room_bytes - _bytes_of([s for s in shares if s.key in values], values)
        weights = sum(share.weight for share in open_shares)
        fair = {s.key: int(left_bytes * s.weight / weights) // s.unit_bytes for s in open_shares}
        at_end = {s.key: s.least for s in open_shares if fair[s.key] < s.least}
        if not at_end:
            at_end = {
                s.key: s.most for s in open_shares if s.most is not None and fair[s.key] > s.most
            }
        values |= at_end or fair
        open_shares = [share for share in open_shares if share.key not in values]
    return values


def _filled(
    settings: Settings, memory_bytes: int, values: Mapping[str, int], kept: Mapping[str, int]
) -> Settings:
    """Return the settings with these values, and with the limits of one client derived from
    them."""
    changed = {key: value for key, value in values.items() if key not in kept}
    changed["flow.memory_max_bytes"] = memory_bytes
    for of_one, of_all in OF_A_CLIENT.items():
        default = _value(settings, of_one)
        assert default is not None
        if not _is_set(settings, of_one):
            fair = max(values[of_all] // CLIENT_SHARE, 16 * KIB)
            if of_one == "session.queue_bytes_max":
                fair = max(fair, settings.session.packet_size_max)
            changed[of_one] = min(default, fair)
    sections: dict[str, dict[str, int]] = {}
    for key, value in changed.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return settings.model_copy(
        update={
            section: getattr(settings, section).model_copy(update=update)
            for section, update in sections.items()
        }
    )


def _too_little(
    memory_bytes: int, least_bytes: int, shares: list[Share], kept: Mapping[str, int]
) -> str:
    taken = {s.key: s.unit_bytes * kept.get(s.key, s.least) for s in shares}
    largest = sorted(taken, key=lambda key: -taken[key])[:3]
    parts = ", ".join(f"{key} {taken[key]:,}" for key in largest)
    return (
        f"flow.memory_max_bytes: {memory_bytes:,} bytes are less than the {least_bytes:,} that the "
        f"process itself ({PROCESS_BYTES:,}) and all bounds may take together, the largest being "
        f"{parts}; raise it to {least_bytes}, or lower those"
    )

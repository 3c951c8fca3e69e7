"""Bounds: how the memory limit is shared out among all that a peer can make a node hold.

The limit has two parts. What may be held *for long* (clients, sessions, messages that wait for a
reader who does not read, half packets, the store's caches) has `flow.memory_objective` of it, less
what a process without clients takes, so that nobody who only fills his share puts the node under
pressure. The rest is for *work in process*, which ends by itself.

A setting that is there is kept; what is left of a part is shared out by weight among the others,
none of which gets less than it needs. All bounds and the process together are within the limit, or
`Bounds.of` says what does not fit (docs/explain/limits.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from flowguard.address import Address
from flowguard.config import KIB, MIB, Settings
from flowguard.errors import ConfigError

PROCESS_BYTES: Final = 75 * MIB
"""Memory of a process without clients: 61 MiB resident with the memory store, 72 with RocksDB; 74
when clients have come and gone, because more of its code has been read then."""
CONNECTION_BYTES: Final = 4 * KIB
"""Memory of a client: 2.0 to 2.5 KB resident with a session that ends with it (1,000 to 2,000
clients of MQTT 3.1.1 and 5.0, compiled and not, CPython 3.11), and `INPUT_FREE_BYTES`, which no
budget counts."""
INPUT_FREE_BYTES: Final = KIB
"""Bytes received and not decoded, of each connection, that CONNECTION_BYTES includes already."""
TLS_BYTES: Final = 16 * KIB
"""Memory of TLS on a connection besides: 9 KiB resident while it is idle (OpenSSL 3.0), and what a
socket that takes nothing leaves of a record."""
SESSION_BYTES: Final = 2_000
"""Memory of a session that is kept, without its client id, subscriptions and messages: 1.3 KB
resident after its client has gone, and what the store keeps of it."""
WRITE_BUFFERS: Final = 4
"""All column families together write this many buffers of `store.write_buffer_bytes`."""
SOCKETS_MIN: Final = 64
"""The process's own memory includes this many sockets beyond the clients."""
CLIENT_SHARE: Final = 8
"""One client may have an eighth of what all have, unless a setting says otherwise."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a part of the memory that a setting gets where nobody has set it."""

    key: str
    weight: float
    unit_bytes: int = 1
    """Memory for one of the things that the setting counts."""
    least: int = MIB
    """The least value, in the setting's own unit; with less the node could not serve."""
    most: int | None = None
    """The largest value, in the setting's own unit; with more it would serve no better."""


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
"""Bounds on what peers can make the node hold as long as they wish."""
IN_PROCESS: Final = "flow.unfinished_bytes_max"
WORK: Final = (
    Share(IN_PROCESS, 25),
    Share("flow.journal_bytes_max", 3, most=64 * MIB),
    Share("flow.connect_buffer_bytes_max", 2, least=256 * KIB, most=16 * MIB),
)
"""Bounds on what is held until the work is done."""
RECORDING: Final = Share("telemetry.buffer_bytes_max", 4, most=32 * MIB)
"""The bound on rows that wait for the disk, where the node records itself."""
GROUPS: Final = Share("kafka.groups_bytes_max", 6, most=64 * MIB)
"""The bound on messages of groups of several brokers that are here, where there are such groups."""
OF_A_CLIENT: Final = {
    "session.queue_bytes_max": "node.queue_bytes_max",
    "session.outbox_bytes_max": "node.outbox_bytes_max",
    "session.state_bytes_max": "node.state_bytes_max",
}
"""Settings for one client, and the total for all clients that each is a part of."""
HOLDS_A_PACKET: Final = (
    "node.queue_bytes_max",
    "node.inflight_bytes_max",
    "node.input_bytes_max",
    "kafka.groups_bytes_max",
)
"""Bounds within which the largest packet must find room."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds on what a node may hold; bytes, unless the name says otherwise."""

    memory_bytes: int
    """The whole memory limit, the process included."""
    asked: Settings = field(compare=False)
    """The node's settings as they were given."""
    settings: Settings
    """The node's settings, with every bound filled in."""
    long_bytes: int
    """The part of `memory_bytes` for what is held for long; the process is in it."""
    connections_max: int
    """Clients connected at once."""
    sockets_max: int
    """Open sockets: clients, and an eighth more that may have said nothing yet."""
    sessions_max: int
    """Sessions that outlive their connection."""
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
        """Share `memory_bytes` out; raises ConfigError where what is set does not fit in it."""
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

    @property
    def shortfall(self) -> str | None:
        """Why the memory limit leaves nothing for clients, or None if it does."""
        objective = self.settings.flow.memory_objective
        rest_bytes = PROCESS_BYTES + self.store_bytes
        if rest_bytes <= objective * self.memory_bytes:
            return None
        return (
            f"flow.memory_max_bytes: of {self.memory_bytes:,} bytes the broker takes "
            f"{rest_bytes:,} without any client, more than flow.memory_objective ({objective:g}): "
            f"it is never calm, and rejects clients although {self.connections_max:,} are in "
            f"force: raise it to {int(self.long_bytes / objective) + 1:,}"
        )


def _long(settings: Settings) -> tuple[Share, ...]:
    """`LONG`, where a connection takes more if a listener speaks TLS."""
    listeners = settings.network.listeners
    if not any(Address.parse(listener.address).scheme.has_tls for listener in listeners):
        return LONG
    first = LONG[0]
    assert first.key == "node.connections_max"
    more_bytes = TLS_BYTES + TLS_BYTES // 8
    return (replace(first, unit_bytes=first.unit_bytes + more_bytes), *LONG[1:])


def _process_bytes_max(settings: Settings, memory_bytes: int) -> int:
    """Return the bytes in process that fit between a node at rest and the objective of memory.

    It is half of what is free there, because the journal holds them a second time.
    """
    free_bytes = int(settings.flow.memory_objective * memory_bytes) - PROCESS_BYTES
    return max(MIB, free_bytes // 2)


def _sockets_max(connections_max: int) -> int:
    """Sockets for so many clients: some more, because one that is too many has to be told so."""
    return connections_max + max(SOCKETS_MIN, connections_max // 8)


def _value(settings: Settings, key: str) -> int | None:
    section, _, name = key.partition(".")
    value: int | None = getattr(getattr(settings, section), name)
    return value


def _is_set(settings: Settings, key: str) -> bool:
    section, _, name = key.partition(".")
    return name in getattr(settings, section).model_fields_set


def _kept(settings: Settings) -> dict[str, int]:
    """The bounds that somebody has set, by key."""
    keys = [share.key for share in (*LONG, *WORK, RECORDING, GROUPS)]
    values = {key: _value(settings, key) for key in keys if _is_set(settings, key)}
    return {key: value for key, value in values.items() if value is not None}


def _wanted(shares: tuple[Share, ...], settings: Settings) -> list[Share]:
    """The shares, each with a least value of what one packet, or one client, is promised."""
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
    """A value for each share: what is kept, and the rest of the room by weight, within its limits.

    The room is at least what all need; those that are content with less leave it to the others.
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
    """The settings with these values, and what follows from them for one client."""
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

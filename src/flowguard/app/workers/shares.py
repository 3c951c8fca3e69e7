"""Shares: the settings of one of several workers; together they have no more than is configured."""

import os
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from flowguard.bounds import PROCESS_BYTES, Bounds
from flowguard.broker.memory import bounds_of
from flowguard.config import Settings
from flowguard.errors import ConfigError, UnreadyError
from flowguard.section import complaint

TOTALS: Final = (
    "flow.unfinished_max",
    "flow.connects_in_process_max",
    "flow.connect_buffer_max",
    "flow.journal_ops_max",
    "node.subscriptions_max",
    "store.wal_bytes_max",
    "store.log_bytes_max",
    "telemetry.keep_bytes",
    "telemetry.buffer_rows_max",
)
"""Totals of the whole broker, of which each worker has its part, also of the default."""
TOTALS_IF_SET: Final = (
    "flow.unfinished_bytes_max",
    "flow.connect_buffer_bytes_max",
    "flow.journal_bytes_max",
    "node.connections_max",
    "node.sessions_max",
    "node.queue_bytes_max",
    "node.inflight_bytes_max",
    "node.outbox_bytes_max",
    "node.input_bytes_max",
    "node.plans_bytes_max",
    "node.state_bytes_max",
    "store.cache_bytes",
    "store.write_buffer_bytes",
    "telemetry.buffer_bytes_max",
)
"""Totals whose default is a share of the memory limit already (`flowguard.bounds`)."""


def workers_of(settings: Settings) -> int:
    """Return the number of workers that the settings ask for; in a cluster, the most that this node
    is to run. Raises ConfigError."""
    wanted = settings.node.workers
    count = len(os.sched_getaffinity(0)) if wanted == "auto" else wanted
    if settings.cluster.address is not None:
        if settings.store.kind != "redis":
            raise ConfigError(
                "cluster.address needs store.kind redis: the sessions of a node that is down go on "
                "at another one, so both must reach them"
            )
        if "workers" not in settings.node.model_fields_set:
            return settings.cluster.shards
        return min(count, settings.cluster.shards)
    if count > 1 and settings.store.kind == "redis":
        raise ConfigError(
            "node.workers: with Redis several workers are a cluster, also on one machine: give it "
            "an address (--cluster 127.0.0.1:7000), or start with --workers 1"
        )
    if count > 1 and settings.store.application_store == "kafka":
        raise ConfigError(
            "node.workers: several workers cannot keep queues of applications in Kafka: "
            "start with --workers 1"
        )
    return count


def share_of(
    settings: Settings, count: int, index: int, memory_bytes: int, disk_bytes: int | None
) -> Settings:
    """Return the settings of worker `index` of `count`.

    `memory_bytes` is the limit of all processes, and `disk_bytes` that of all queues on disk or
    None if the store has none. Raises ConfigError if a total is too small for `count` workers.
    """
    values: dict[str, Any] = settings.model_dump(mode="json", exclude_unset=True)
    for key in TOTALS + TOTALS_IF_SET:
        section, _, name = key.partition(".")
        total = getattr(getattr(settings, section), name)
        is_set = name in getattr(settings, section).model_fields_set
        if total is not None and (is_set or key in TOTALS):
            _put(values, key, _part(key, total, count))
    for listener in values.get("network", {}).get("listeners", ()):
        total = listener.get("connections_max")
        if total is not None:
            name = f"connections_max of {listener['address']}"
            listener["connections_max"] = _part(name, total, count)
    if disk_bytes is not None:
        _put(values, "node.disk_queue_bytes_max", _part("disk", disk_bytes, count))
    _put(values, "flow.memory_max_bytes", (memory_bytes - PROCESS_BYTES) // count)
    if settings.cluster.address is not None:
        _put(values, "redis.prefix", f"{settings.redis.prefix}.{index}")
        _put(values, "node.drain_over_s", 0.0)  # The sessions of a shard move at one moment.
        _put(values, "node.server_reference", None)  # It is this node's; clients get the taker's.
        _put(values, "redis.takeover", True)  # It waits until the last owner of the shard ends.
    if settings.telemetry.record_dir is not None:
        _put(values, "telemetry.record_dir", str(settings.telemetry.record_dir / f"worker-{index}"))
    return _valid(values, count)


def check_shares(
    settings: Settings, count: int, memory_bytes: int, disk_bytes: int | None = None
) -> Bounds:
    """Return the bounds of each of several workers; raise ConfigError if its part is too small."""
    share = share_of(settings, count, 0, memory_bytes, disk_bytes)
    try:
        bounds = bounds_of(share)
    except ConfigError as error:
        raise ConfigError(f"for each of {count} workers: {error}") from error
    if bounds.shortfall() is not None:
        raise UnreadyError(
            f"flow.memory_max_bytes: each of {count} workers gets {bounds.memory_bytes:,} of "
            f"{memory_bytes:,} bytes, and takes {bounds.rest_bytes:,} without any client, more "
            f"than flow.memory_objective ({settings.flow.memory_objective:g}): it would reject all "
            f"clients as overloaded. Raise it to {count * bounds.needed_bytes + PROCESS_BYTES:,}, "
            "or lower node.workers"
        )
    return bounds


def _part(key: str, total: int, count: int) -> int:
    if total < count:
        raise ConfigError(
            f"{key}: {total:,} cannot be divided between {count} workers: raise it, or lower "
            "node.workers"
        )
    return total // count


def _put(values: dict[str, Any], key: str, value: object) -> None:
    section, _, name = key.partition(".")
    values.setdefault(section, {})[name] = value


def _valid(values: Mapping[str, Any], count: int) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{key or 'settings'}: for each of {count} workers: {complaint(Settings, first)}"
        ) from error

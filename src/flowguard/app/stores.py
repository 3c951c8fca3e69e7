"""Stores by their kind (`store.kind`), opened with the clocks and chance of this process.

A store joins by a line in OPENERS, and by its name in `flowguard.config.StoreSettings`.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import structlog

from flowguard.app.workers.data_folder import check_single
from flowguard.broker.logs.error_log import printable
from flowguard.config import Settings
from flowguard.errors import ConfigError
from flowguard.kafka_settings import OWNER_FILE
from flowguard.stores import MemoryStore, Store

log = structlog.get_logger()

OnWait = Callable[[str, bool], None]
"""Called repeatedly while another broker has the store, with the name of the owner and True, or
with an error and False if the store does not answer."""
TOKEN_BYTES: Final = 12
"""Random bytes in the unique name of an owner of sessions in Redis."""


def _open_memory(settings: Settings, data: Path, on_wait: OnWait | None) -> Store:
    return MemoryStore()


# Each imports its engine itself, because only stores in use load their engine.


def _open_rocks(settings: Settings, data: Path, on_wait: OnWait | None) -> Store:
    from flowguard.stores.rocks import RocksStore

    data.mkdir(parents=True, exist_ok=True)
    return RocksStore(
        data,
        settings.store,
        wall_s=time.time,
        random_node=partial(secrets.randbits, 32),
        monotonic_s=time.monotonic,
    )


def _open_redis(settings: Settings, data: Path, on_wait: OnWait | None) -> Store:
    from flowguard.stores.redis import RedisStore

    return RedisStore(
        settings,
        token=secrets.token_urlsafe(TOKEN_BYTES),
        name=f"{socket.gethostname()}, process {os.getpid()}",
        clock=time.monotonic,
        sleep=time.sleep,
        keeps_time=True,
        on_wait=on_wait,
    )


OPENERS: Final[Mapping[str, Callable[[Settings, Path, OnWait | None], Store]]] = {
    "memory": _open_memory,
    "rocks": _open_rocks,
    "redis": _open_redis,
}


def _in_kafka(base: Store, settings: Settings, data: Path) -> Store:
    """The queues of applications in Kafka, everything else in `base`."""
    from flowguard.stores.kafka.connection.access import access_of
    from flowguard.stores.kafka.store import KafkaStore
    from flowguard.stores.kafka.topics import KafkaPlace

    kafka = settings.kafka
    place = KafkaPlace(
        kafka.servers,
        kafka.prefix,
        kafka.replicas,
        kafka.min_in_sync,
        {"retention.ms": str(int(kafka.retention_s * 1_000))},
        kafka.timeout_s,
        access_of(kafka),
        kafka.groups_prefix,
        kafka.groups_partitions,
    )
    if kafka.groups_bytes_max is not None:
        place.groups_bytes_max = kafka.groups_bytes_max
    store = KafkaStore(base, place, base.clock or time.time, data / OWNER_FILE)
    if store.missing:
        log.warning(
            "topics of applications missing in kafka; created empty, their messages are lost",
            applications=len(store.missing),
            first=printable(store.missing[0]),
            servers=kafka.servers,
        )
    return store


def check_store(settings: Settings) -> None:
    """Check the settings of the store and of Kafka without a connection.

    It imports what the store needs. Raises `ConfigError`, and `ModuleNotFoundError` as
    `open_store`.
    """
    if settings.store.kind == "rocks":
        import_module("flowguard.stores.rocks")
    if settings.store.kind == "redis":
        from flowguard.stores.redis.connection.server import check_address

        check_address(settings.redis.url)
    if settings.store.application_store == "kafka" or settings.telemetry.record_topic is not None:
        from flowguard.stores.kafka.connection.access import access_of
        from flowguard.stores.kafka.connection.driver import check_driver

        check_driver()
        access_of(settings.kafka)


def open_store(settings: Settings, data: Path, on_wait: OnWait | None = None) -> Store:
    """The store that the settings name; one with files has them in `data`.

    With `redis.takeover`, `on_wait` is called ten times a second with the owner's name.

    Raises `ConfigError`, `StoreError`, `OSError`, and `ModuleNotFoundError` if its driver, an
    extra of the same name, is not installed.
    """
    wants_kafka = settings.store.application_store == "kafka"
    if not wants_kafka and (data / OWNER_FILE).exists():
        raise ConfigError(
            f"queues of applications in {data} are in Kafka: start with --kafka-servers HOST:PORT, "
            "or move them back as described in docs/operate/kafka.md"
        )
    if settings.store.kind == "rocks":
        check_single(data)
    base = OPENERS[settings.store.kind](settings, data, on_wait)
    if not wants_kafka:
        return base
    try:
        return _in_kafka(base, settings, data)
    except BaseException:
        base.close()
        raise

"""Stores on a Kafka that all tests of a process share: each has a prefix of its own."""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from flowguard.records import PutSession, SessionRecord, StoreOp
from flowguard.stores import Fenced, Store
from flowguard.stores.kafka.connection.link import KafkaLink
from flowguard.stores.kafka.store import KafkaStore
from flowguard.stores.kafka.topics import KafkaPlace
from tests.support.kafka import Kafka
from tests.support.opened import OPENED
from tests.support.patience import HANG_S

_numbers = itertools.count(1)


def new_prefix() -> str:
    return f"t{os.getpid()}-{next(_numbers)}"


def place_on(server: Kafka, prefix: str, **configs: str) -> KafkaPlace:
    return KafkaPlace(
        server.servers, prefix, replicas=len(server.nodes), configs=configs, wait_s=HANG_S
    )


def open_store(base: Store, place: KafkaPlace) -> KafkaStore:
    store = KafkaStore(base, place, time.time)
    OPENED.append(store._link)
    return store


def open_link(server: Kafka) -> KafkaLink:
    link = KafkaLink(server.servers, wait_s=HANG_S)
    OPENED.append(link)
    return link


class ForApplications:
    """A store in which all queues are applications'; `said` is what was put: sessions show that."""

    def __init__(self, store: KafkaStore, said: dict[str, bool]) -> None:
        self._store = store
        self._said = said

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        batch: list[StoreOp] = []
        for op in ops:
            if isinstance(op, PutSession):
                self._said[op.client_id] = op.is_application
                client_id, expiry_s = op.client_id, op.expiry_interval_s
                batch.append(PutSession(client_id, expiry_s, op.ends_at_s, True, op.user))
            else:
                batch.append(op)
        return self._store.commit(batch)

    def sessions(self) -> Iterator[SessionRecord]:
        for record in self._store.sessions():
            found = record.copied()
            found.is_application = self._said[record.client_id]
            yield found

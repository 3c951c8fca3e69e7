"""Stores on a Kafka that all tests of a process share: each has a prefix of its own."""

import itertools
import os
import time

from flowguard.records import PutSession, SessionRecord
from flowguard.stores import Store
from flowguard.stores.kafka.store import KafkaStore
from flowguard.stores.kafka.topics import KafkaPlace
from tests.support.kafka import Kafka

WAIT_S = 60.0
_numbers = itertools.count(1)


def new_prefix() -> str:
    return f"t{os.getpid()}-{next(_numbers)}"


def everybody(_: PutSession | SessionRecord) -> bool:
    return True


def place_on(server: Kafka, prefix: str, **configs: str) -> KafkaPlace:
    return KafkaPlace(
        server.servers, prefix, replicas=len(server.nodes), configs=configs, wait_s=WAIT_S
    )


def open_store(base: Store, place: KafkaPlace) -> KafkaStore:
    """A store in which all sessions are applications."""
    return KafkaStore(base, place, everybody, time.time)

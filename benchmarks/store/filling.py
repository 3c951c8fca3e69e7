"""A store with sessions and messages in it.

As a program (`python -m benchmarks.store.filling FOLDER --sessions N --each N`) it fills one, says
`filled`, and waits: SIGTERM closes the store, SIGKILL does not.
"""

import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from flowguard.config import StoreSettings
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    PutSession,
    PutSubscription,
    Sent,
    Settle,
    StoreOp,
)
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish, SubscriptionOptions

EXPIRY_S: Final = 86_400
TOPIC: Final = "b/000000"
PAYLOAD_BYTES: Final = 200
BATCH: Final = 300
"""Messages of one commit: what a broker with a hundred busy publishers has."""


def open_store(folder: Path, **settings: Any) -> RocksStore:
    """`settings` are those of `StoreSettings`."""
    return RocksStore(
        folder,
        StoreSettings(**settings),
        wall_s=time.time,
        random_node=partial(secrets.randbits, 32),
    )


def client_id(number: int) -> str:
    return f"s{number:07}"


def delivery(payload_bytes: int = PAYLOAD_BYTES) -> Delivery:
    """A message of its own, as each PUBLISH of a pair is."""
    return Delivery(Publish(TOPIC, b"x" * payload_bytes, 1), 1, False, (), NEVER_S)


def add_sessions(store: RocksStore, count: int, *, ended: bool = False) -> None:
    """Durable sessions with one subscription each; `ended`: their clients are not connected."""
    ends_at_s = time.time() + EXPIRY_S if ended else None
    options = SubscriptionOptions(qos=1)
    for number in range(count):
        name = client_id(number)
        subscription = PutSubscription(name, f"b/{number:06}", options)
        store.commit([PutSession(name, EXPIRY_S, ends_at_s), subscription])


def conversation(sessions: int, messages: int, batch: int = BATCH) -> Iterator[list[StoreOp]]:
    """Batches in which each message is appended, then sent, then settled, round robin.

    As in a broker whose clients keep up: a batch holds the messages of now, says that those of the
    batch before were sent, and settles the ones before those.
    """
    appended: list[Append] = []
    sent: list[Append] = []
    for start in range(0, messages + 2 * batch, batch):
        fresh = [
            Append(client_id(index % sessions), 1 + index // sessions, delivery())
            for index in range(start, min(start + batch, messages))
        ]
        last = {op.client_id: op.pos for op in appended}
        ops: list[StoreOp] = [*fresh, *(Settle(op.client_id, op.pos, op.delivery) for op in sent)]
        ops += [Sent(name, pos) for name, pos in last.items()]
        yield ops
        appended, sent = fresh, appended


def fill(store: RocksStore, sessions: int, each: int) -> None:
    """`each` messages waiting for every one of `sessions` clients that are away."""
    add_sessions(store, sessions, ended=True)
    names = [client_id(number) for number in range(sessions)]
    for pos in range(1, each + 1):
        store.commit([Append(name, pos, delivery()) for name in names])


def main(
    folder: Path,
    sessions: Annotated[int, typer.Option(min=1)] = 100,
    each: Annotated[int, typer.Option(min=1)] = 1_000,
) -> None:
    store = open_store(folder)
    fill(store, sessions, each)
    sys.stdout.write("filled\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM})
    store.close()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.environ.pop("PYTHONPATH", None)
    typer.run(main)

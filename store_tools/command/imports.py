"""`flowguard store import-tbmq`: imports the queues of a TBMQ in Redis as sessions."""

import csv
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flowguard.errors import CorruptionError, StoreError
from flowguard.records import Append, PutSession, PutSubscription, Release, StoreOp
from flowguard.routing.filters import SHARE_PREFIX, valid_filter
from flowguard.stores import Store
from flowguard.types import SubscriptionOptions
from store_tools.command.copy import is_url, open_place
from store_tools.tbmq import TbmqMessage, TbmqReader
from store_tools.transfer import nothing

PAGE: Final = 256


@dataclass(slots=True)
class Imported:
    """The counts of an import."""

    sessions: int = 0
    subscriptions: int = 0
    entries: int = 0
    problems: list[str] = field(default_factory=list)
    """Errors of messages that could not be read."""


def import_tbmq(
    source: str,
    target: str,
    tbmq_prefix: str,
    redis_prefix: str,
    redis_layout: str,
    subscriptions: Path | None,
    session_expiry_s: int,
    progress: Callable[[int, int], None],
) -> Imported:
    """Import the queues. Raises `StoreError`, `ConfigError`, and OSError for unreadable files."""
    if not is_url(target) and Path(target).exists():
        raise StoreError(f"{target} exists; name a new directory")
    wanted = {} if subscriptions is None else read_subscriptions(subscriptions)
    found = Imported()
    clock, sleep = time.monotonic, time.sleep
    reader = TbmqReader(source, tbmq_prefix, clock=clock, sleep=sleep, wall_s=time.time())
    with closing(reader):
        names = sorted({*reader.client_ids(), *wanted})
        if not names:
            raise StoreError(f"there is no queue of TBMQ at {source}: is --tbmq-prefix right?")
        with closing(open_place(target, redis_prefix, redis_layout)) as store:
            if next(store.sessions(), None) is not None:
                raise StoreError("the target is not empty: name a new one, or another prefix")
            for done, name in enumerate(names):
                progress(done, len(names))
                store.commit([PutSession(name, session_expiry_s, None)])
                found.sessions += 1
                options = wanted.get(name, {})
                store.commit([PutSubscription(name, *each) for each in options.items()])
                found.subscriptions += len(options)
                _import_queue(reader, store, name, found)
    return found


def _import_queue(reader: TbmqReader, store: Store, name: str, found: Imported) -> None:
    messages: list[TbmqMessage] = []
    for message in reader.messages(name):
        if isinstance(message, CorruptionError):
            found.problems.append(str(message))
        else:
            messages.append(message)
    # Start above these packet identifiers, so that new positions do not use them again.
    owed = [each.packet_id % 2**15 for each in messages if each.delivery is None]
    first_pos = max(owed, default=0) + 1
    for first in range(0, len(messages), PAGE):
        ops: list[StoreOp] = []
        for pos, each in enumerate(messages[first : first + PAGE], first_pos + first):
            if each.delivery is not None:
                ops.append(Append(name, pos, each.delivery))
                continue
            released = nothing(2)
            ops += (Append(name, pos, released), Release(name, pos, each.packet_id, released))
        store.commit(ops)
    found.entries += len(messages)


def read_subscriptions(file: Path) -> dict[str, dict[str, SubscriptionOptions]]:
    """Return the subscriptions by client, from lines CLIENT_ID,FILTER,QOS.

    Raises `StoreError` with the line's number, and OSError.
    """
    found: dict[str, dict[str, SubscriptionOptions]] = {}
    with file.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            if not row:
                continue
            if len(row) != 3 or not row[0] or row[2].strip() not in {"0", "1", "2"}:
                raise StoreError(f"{file}, line {number}: it is not CLIENT_ID,FILTER,QOS")
            name, topic_filter, qos = row
            if not valid_filter(topic_filter):
                raise StoreError(f"{file}, line {number}: {topic_filter!r} is no topic filter")
            if topic_filter.startswith(SHARE_PREFIX):
                raise StoreError(
                    f"{file}, line {number}: shared subscriptions are not imported: leave it out, "
                    "clients subscribe to it again"
                )
            found.setdefault(name, {})[topic_filter] = SubscriptionOptions(int(qos))
    return found

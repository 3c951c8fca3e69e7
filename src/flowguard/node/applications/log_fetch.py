"""LogFetch: a page of the durable log that a session, or a shared subscription, is to read; and
what of it is for its reader."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from flowguard.node.shared.shared_queue import SharedQueue
from flowguard.records import QueueEntry
from flowguard.routing import has_wildcard, parse_shared
from flowguard.routing.filters import matches
from flowguard.session.outbound.fetch import Fetch
from flowguard.session.owner import MessageSink
from flowguard.session.session import Session
from flowguard.stores import LogStore, Store
from flowguard.stores.log.replays import LogBatch
from flowguard.types import SubscriptionOptions


@final
class Starts:
    """Filters of a session's subscriptions with a place of their own; never changed."""

    __slots__ = ("filters",)

    def __init__(self, filters: frozenset[str]) -> None:
        self.filters = filters


OnBatch = Callable[["LogFetch", float], None]


@final
class LogFetch(Fetch):
    """A page of the log that a session, or the queue of a shared subscription, is to read."""

    __slots__ = ("batch", "filters", "on_batch", "place", "reader", "starts")

    def __init__(
        self, reader: MessageSink, starts: "Starts | None", count_max: int, bytes_max: int
    ) -> None:
        super().__init__(reader, 0, 0, count_max, bytes_max, looks=False)
        self.reader = reader
        self.starts = starts
        """Those of the session when it is asked for; the store knows all of them."""
        self.filters = filters_of(reader)
        self.batch: LogBatch | None = None
        self.place = b""
        """The place to read from, or b"" for that of the session."""
        self.on_batch: OnBatch | None = None
        """Called with the page, and the time, instead of moving it into a queue."""

    def ask(self, store: Store) -> list[QueueEntry]:
        assert isinstance(store, LogStore)
        self.batch = store.read_log(
            self.client_id, self.filters, self.count_max, self.bytes_max, self.place
        )
        return []


def filters_of(reader: MessageSink) -> list[str]:
    """The filters of those of its subscriptions that read the log."""
    if isinstance(reader, SharedQueue):
        return [reader.filter]
    assert isinstance(reader, Session)
    return [
        filter
        for filter, options in reader.subscriptions.items()
        if options.qos and parse_shared(filter) is None
    ]


def may_receive(reader: MessageSink, topic: str) -> bool:
    """Whether its rights let it; members of a shared subscription may receive all of it."""
    return not isinstance(reader, Session) or reader.may_receive(topic)


def _is_for(batch: LogBatch, stamp: int, filter: str) -> bool:
    """Whether a message of the batch is for the subscription, if that matches it."""
    if batch.filter:
        return filter == batch.filter
    return stamp > batch.ends.get(filter, 0)


@dataclass(slots=True)
class LogOptions:
    """The sum of a session's subscriptions that match a topic."""

    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]


OF_ANY_MEMBER: Final = LogOptions(2, True, ())
"""The queue of a shared subscription has messages as they were published."""


def options_of(
    reader: MessageSink, topic: str, publisher: str, stamp: int, batch: LogBatch | None
) -> LogOptions | None:
    """Return the options for a message of `batch` or a later one, or None if none matches."""
    if isinstance(reader, SharedQueue):
        return OF_ANY_MEMBER if matches(reader.filter, topic) else None
    assert isinstance(reader, Session)
    session = reader
    qos, retain, identifiers, wanted = 0, False, list[int](), False
    for filter, options in session.subscriptions.items():
        if filter != topic and not has_wildcard(filter):
            continue
        if options.no_local and publisher == session.client_id:
            continue  # [MQTT-3.8.3-3]
        if batch is not None and not _is_for(batch, stamp, filter):
            continue
        if parse_shared(filter) is None and matches(filter, topic):
            wanted = True
            qos = max(qos, options.qos)
            retain = retain or options.retain_as_published
            if options.identifier:
                identifiers.append(options.identifier)
    return LogOptions(qos, retain, tuple(identifiers)) if wanted else None


def begins_to_read(
    session: Session, filter: str, before: SubscriptionOptions | None, options: SubscriptionOptions
) -> bool:
    """Whether a subscription of a session that catches up is the first to read the log for that
    filter: what the session still has to read there is older than that."""
    is_new = options.qos > 0 and (before is None or not before.qos)
    return session.reads_log and is_new and parse_shared(filter) is None

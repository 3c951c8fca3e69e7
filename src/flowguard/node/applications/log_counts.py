"""LogCount: the number of messages in the durable log that a session has not read yet."""

from collections.abc import Callable
from typing import Final, final

from flowguard.node.applications.log_fetch import LogFetch, may_receive, options_of
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session
from flowguard.stores.log.replays import LogBatch

# Not final: tests have smaller ones, and the compiled code should look at them.
PAGE_MAX = 500
PAGES_MAX = 50
PAGE_BYTES_MAX: Final = 256 * 1024


@final
class LogCount:
    """Reads the log as the session would, a page at a time, and changes nothing."""

    __slots__ = ("_node", "_on_end", "_pages", "_session", "is_complete", "is_stopped", "messages")

    def __init__(self, session: Session, node: NodeState, on_end: Callable[[], None]) -> None:
        """`on_end` is called when all is counted, or as much as is allowed."""
        self._session = session
        self._node = node
        self._on_end = on_end
        self._pages = 0
        self.messages = 0
        """Messages counted, which the session may receive and which have not expired."""
        self.is_complete = False
        """True if there are no more."""
        self.is_stopped = False
        """True if the number is no longer needed."""

    def begin(self) -> None:
        self._ask(b"")

    def _ask(self, place: bytes) -> None:
        fetch = LogFetch(self._session, None, PAGE_MAX, PAGE_BYTES_MAX)
        fetch.place, fetch.on_batch = place, self._came
        self._node.fetches.append(fetch)

    def _came(self, fetch: LogFetch, now_s: float) -> None:
        batch = fetch.batch
        self._pages += 1
        # A subscription into the past has a place of its own, which only reading moves.
        if self.is_stopped or self._session.ended or batch is None or batch.filter:
            self._on_end()
            return
        self.messages += self._wanted(batch, now_s)
        if batch.is_done or self._pages >= PAGES_MAX:
            self.is_complete = batch.is_done
            self._on_end()
        else:
            self._ask(batch.place)

    def _wanted(self, batch: LogBatch, now_s: float) -> int:
        session, count = self._session, 0
        for logged in batch.messages:
            if logged.expires_at_s <= now_s or not may_receive(session, logged.message.topic):
                continue
            topic = logged.message.topic
            options = options_of(session, topic, logged.publisher, logged.stamp, batch)
            count += options is not None and options.qos > 0
        return count

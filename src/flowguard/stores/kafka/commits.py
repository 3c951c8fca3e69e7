"""WindowCommits: commits windows to Kafka, in the background unless the caller needs the result."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import final

from flowguard.errors import StallError, StoreError
from flowguard.stores.kafka.connection.errors import NoTopicError
from flowguard.stores.kafka.connection.link import KafkaLink
from flowguard.stores.kafka.connection.reader import Committed, KafkaReader
from flowguard.stores.kafka.plan import CHANGES_MAX
from flowguard.stores.kafka.queue import ApplicationQueue

Queues = Mapping[str, ApplicationQueue]
"""By client id."""


@final
class WindowCommits:
    """One commit at a time, so that an older one never overwrites a newer one."""

    def __init__(
        self,
        link: KafkaLink,
        reader: KafkaReader,
        make_again: Callable[[Queues, StoreError], StallError],
    ) -> None:
        """`make_again` creates missing topics."""
        self._link = link
        self._reader = reader
        self._make_again = make_again
        self._begun: Future[None] | None = None
        self._waiting: Queues = {}
        """Queues whose windows are in the commit that has begun."""

    def commit(self, queues: Queues) -> None:
        """Commit the windows of all queues, and wait for the result. Raises StallError."""
        if not queues:
            return
        self.finish()
        self._begin(queues)
        begun, self._begun = self._begun, None
        assert begun is not None
        self._end(begun)

    def begin(self, queues: Queues) -> None:
        """Begin to commit the windows that have changed; the next call handles the result.

        While a commit is under way, this does nothing unless a window has many changes; then it
        waits.
        """
        changed = {name: queue for name, queue in queues.items() if queue.unsaved_count}
        most = max((queue.unsaved_count for queue in changed.values()), default=0)
        if self._begun is not None and not self._begun.done() and most <= 2 * CHANGES_MAX:
            return
        self.finish()
        if changed:
            self._begin(changed)

    def finish(self) -> bool:
        """Wait for the commit that has begun. Return False if it failed; then its windows count as
        changed again."""
        begun, self._begun = self._begun, None
        try:
            if begun is not None:
                self._end(begun)
        except StallError:
            return False
        return True

    def _begin(self, queues: Queues) -> None:
        windows = ((queue.topic, queue.window) for queue in queues.values())
        self._begun = self._reader.begin_commit(
            {topic: Committed(window.floor, window.encode()) for topic, window in windows}
        )
        self._waiting = queues
        for queue in queues.values():
            queue.unsaved_count = 0

    def _end(self, begun: "Future[None]") -> None:
        try:
            self._link.result(begun)
        except StoreError as error:
            for queue in self._waiting.values():
                queue.unsaved_count += 1
            if isinstance(error, NoTopicError):
                raise self._make_again(self._waiting, error) from error
            raise

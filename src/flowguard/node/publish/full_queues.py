"""Full queues: with `session.queue_policy` `block`, publishers wait for capacity in a queue.

If the queue of one subscriber lacks capacity for a PUBLISH of QoS 1 or 2, the message is not
routed, and its connection handles no further packets. Publishers that wait for the same queue form
a line, so that none of them is overtaken forever. A later publisher waits at the end of the line,
even if the queue has capacity. In each scheduling round the first publisher of every line tries
again if the queue has capacity for its message. It may have to wait for another queue next, at the
end of that line.

A publisher waits for `session.block_s` at most: the queue may be its own, or of a client that never
reconnects. Then the message is routed to all queues with capacity, and dropped for the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from flowguard.node.publish.plans import Plan, Shared
from flowguard.node.publish.publishing import Router
from flowguard.records import message_bytes
from flowguard.session.host import WAITS
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.owner import lacks_room
from flowguard.session.session import Session
from flowguard.types import Publish

Queue = Session | Shared
"""The queue of a client or of a shared subscription.

A shared subscription without a queue stands for the queues of all its members. Capacity in one of
them is enough.
"""


@final
@dataclass(slots=True, eq=False)
class Wait:
    """A publisher in a line. If `called`, it may try again, and keeps its place until then."""

    inbound: Inbound
    queue: Queue
    size_bytes: int
    since_s: float
    until_s: float
    logs: bool
    """True if its message is logged; readers of the log need no capacity for it."""
    ticket: int
    """A first-come number over all lines: a smaller one has waited longer."""
    called: bool = False
    overdue: bool = False
    """True if it has waited for `session.block_s`."""


@final
class FullQueues:
    """The lines of one node; a session waits in one of them at most."""

    def __init__(self, node: NodeState, router: Router) -> None:
        self._node = node
        self._router = router
        self._block_s = node.settings.session.block_s
        self._waits: dict[Session, Wait] = {}
        """Waits by publisher."""
        self._lines: dict[Queue, dict[Session, Wait]] = {}
        self._tickets = 0

    def wait_of(self, publisher: Session) -> Wait | None:
        """Return the wait of a publisher, or None if it does not wait."""
        return self._waits.get(publisher)

    def publish(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        """Call `Router.publish` if all queues have capacity; see `Routing.publish`."""
        wait = None
        if message.qos and len(message.payload) <= self._router.payload_bytes_max:
            publisher = inbound.session
            wait = self._waits.get(publisher)
            if wait is None or not wait.overdue:
                size_bytes = message_bytes(message)
                plan = self._router.plans.find(message.topic)
                while plan.making is not None:
                    plan.making.step()  # All pieces at once, as all queues are checked together.
                for queue in _queues(plan, publisher):
                    if self._is_full(queue, publisher, size_bytes, plan.logs, now_s):
                        if not self._router.may_publish(publisher, message):
                            break  # `publish` rejects it.
                        self._stand(inbound, queue, size_bytes, plan.logs, now_s)
                        return WAITS
        code = self._router.publish(inbound, message, now_s)
        if wait is not None and code != WAITS:
            self.left(wait.inbound.session)
        return code

    def _is_full(
        self, queue: Queue, publisher: Session, size_bytes: int, logs: bool, now_s: float
    ) -> bool:
        """Return True if the queue lacks capacity, or other publishers are before this one."""
        if logs and _reads_log(queue):
            return False
        line = self._lines.get(queue)
        if line is not None and publisher not in line:
            # The publisher that has waited longest goes first. Otherwise two publishers could wait
            # for two queues forever, each in the line that the other has just left.
            wait = self._waits.get(publisher)
            if wait is None or any(other.ticket < wait.ticket for other in line.values()):
                return True
        return self._lacks_room(queue, size_bytes, logs, now_s)

    def _lacks_room(self, queue: Queue, size_bytes: int, logs: bool, now_s: float) -> bool:
        if logs and _reads_log(queue):
            return False
        if isinstance(queue, Session):
            return lacks_room(queue, size_bytes, self._node, now_s)
        shared_queue = self._router.queues.of(queue)
        if shared_queue is not None:
            return lacks_room(shared_queue, size_bytes, self._node, now_s)
        members = queue.members()
        for session, options in members:
            if not options.qos or not lacks_room(session, size_bytes, self._node, now_s):
                return False
        return bool(members)

    # --- lines -------------------------------------------------------------------------------

    def _stand(
        self, inbound: Inbound, queue: Queue, size_bytes: int, logs: bool, now_s: float
    ) -> None:
        """Wait in the line of `queue`; a publisher that is in it already keeps its place."""
        inbound.blocked = True
        publisher = inbound.session
        wait = self._waits.get(publisher)
        since_s = now_s
        self._tickets += 1
        ticket = self._tickets
        if wait is not None:
            if wait.queue is queue:
                wait.called, wait.logs = False, logs
                return
            since_s, ticket = wait.since_s, wait.ticket
            self.left(publisher)
        until_s = since_s + self._block_s
        wait = Wait(inbound, queue, size_bytes, since_s, until_s, logs, ticket)
        self._waits[publisher] = wait
        self._lines.setdefault(queue, {})[publisher] = wait

    def left(self, publisher: Session) -> None:
        """Remove a publisher when its message is routed, or its connection has ended."""
        wait = self._waits.pop(publisher, None)
        if wait is None:
            return
        line = self._lines[wait.queue]
        del line[publisher]
        if not line:
            del self._lines[wait.queue]

    def turn(self, now_s: float) -> None:
        """Call the first publisher of each line that has capacity; once per scheduling round."""
        if not self._lines:
            return
        for queue, line in list(self._lines.items()):
            first = next(iter(line.values()))
            if first.called:
                continue
            if not self._lacks_room(queue, first.size_bytes, first.logs, now_s):
                _call(first)

    def tick(self, heard_s: float) -> None:
        """Call the publishers that have waited for `session.block_s` at `heard_s`.

        Acknowledgements that arrived before that time have freed their slots already.
        """
        for wait in self._waits.values():
            if wait.until_s <= heard_s:
                wait.overdue = True
                _call(wait)

    def routes_changed(self, subscriber: Session) -> None:
        """Call the publishers that wait for a session whose subscriptions have changed."""
        for wait in self._lines.get(subscriber, {}).values():
            _call(wait)


def _reads_log(queue: Queue) -> bool:
    """Return True if logged messages do not enter a queue."""
    return isinstance(queue, Session) and queue.reads_log


def _call(wait: Wait) -> None:
    if not wait.called:
        wait.called = True
        wait.inbound.go_on()


def _queues(plan: Plan, publisher: Session) -> Iterator[Queue]:
    """Yield the queues that a message of `publisher` enters."""
    for group in plan.groups:
        if group.qos:
            for session in group.sessions:
                if session is not publisher or not group.no_local:
                    yield session
    for group in plan.own:
        if group.qos and publisher in group.sessions:
            yield publisher
    yield from plan.shared

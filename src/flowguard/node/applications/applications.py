"""Applications: clients that consume everything, however far they fall behind; others are devices.

CONNECT decides whether a client is one: the first of its roles with such a rule, else the settings'
patterns for user names and client ids. A session that ends with its connection is a device's. The
class is stored with the session: it holds while the client is offline, and after a restart.

With a durable log, all messages for an application are stored there, and those beyond its queue are
read from there (`log_readers`). So nothing has to be copied when the class changes: messages in the
queue are older than those that are logged from then on, and are sent first. A device that was an
application reads on until it has all that was logged for it.

A store may keep the queues of applications itself, apart from others (`ApplicationStore`). Then it
gets the class with the session, and those queues have no bounds here.
"""

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import final

from flowguard.access.rights import Rights
from flowguard.flow import FairBudget
from flowguard.node.applications.log_readers import LogReaders
from flowguard.node.publish.plans import Plans
from flowguard.routing import parse_shared
from flowguard.session.chores import FILTERS_PIECE
from flowguard.session.node_state import UNKNOWN_DISK_BYTES, NodeState
from flowguard.session.owner import UNBOUNDED, MessageSink, own_queue
from flowguard.session.session import Session, queue_messages_max
from flowguard.stores import ApplicationStore, Store


@final
class Applications:
    __slots__ = (
        "_budget",
        "_client_ids",
        "_here",
        "_is_stored_apart",
        "_log",
        "_node",
        "_plans",
        "_users",
        "connected_count",
        "lost_count",
    )

    def __init__(self, node: NodeState, plans: Plans, log: LogReaders) -> None:
        settings = node.settings.session
        self._node = node
        self._is_stored_apart = False
        self._budget = FairBudget(UNKNOWN_DISK_BYTES)
        """Budget of the messages that wait for them in a store of their own."""
        self._users = _matcher(settings.application_users)
        self._client_ids = _matcher(settings.application_client_ids)
        self._plans = plans
        self._log = log
        self._here: dict[Session, bool] = {}
        """Sessions of applications, with True if their client is connected."""
        self.connected_count = 0
        self.lost_count = 0
        """Messages that a store which keeps them apart has lost to retention, since the start."""

    def __len__(self) -> int:
        return len(self._here)

    def use(self, store: Store) -> None:
        """Before sessions are recovered: where their messages wait."""
        self._is_stored_apart = isinstance(store, ApplicationStore)

    def is_application(self, client_id: str, user: str | None, rights: Rights | None) -> bool:
        """Whether a client is one, by its roles, or else by its names."""
        if rights is not None and rights.is_application is not None:
            return rights.is_application
        if user is not None and self._users is not None and self._users.match(user):
            return True
        return self._client_ids is not None and self._client_ids.match(client_id) is not None

    def claimed(self, session: Session, user: str | None, rights: Rights | None) -> None:
        """A client has taken its session: its class from now on."""
        is_one = session.durable and self.is_application(session.client_id, user, rights)
        if is_one != session.is_application:
            self._change(session, is_one)
        if is_one:
            self._here[session] = True
            self.connected_count += 1

    def recovered(self, session: Session) -> None:
        """An application's session, as the store remembers it."""
        self._change(session, True)
        self._here[session] = False

    def left(self, session: Session) -> None:
        """Note that the client of a session has left, or was never connected."""
        if self._here.get(session, False):
            self._here[session] = False
            self.connected_count -= 1

    def ended(self, session: Session) -> None:
        self.left(session)
        self._here.pop(session, None)

    def _change(self, session: Session, is_one: bool) -> None:
        """Make the plans of its subscriptions again: its messages are logged, or no longer."""
        if not is_one:
            self._here.pop(session, None)
        if not self.keep(session, is_one):
            return
        filters = [each for each in session.subscriptions if parse_shared(each) is None]
        if len(filters) > FILTERS_PIECE:  # One after the other they would take too long.
            filters = ["#", *{each for each in filters if each.startswith("$")}]
        for filter in filters:
            self._plans.changed(filter)

    def keep(self, owner: MessageSink, is_one: bool) -> bool:
        """Whether its messages wait elsewhere from now on, so that its plans must be made again."""
        owner.is_application = is_one
        if not self._is_stored_apart:
            return self._log.keep(owner, is_one)
        node = self._node
        if is_one:
            own_queue(owner, node).move(UNBOUNDED, UNBOUNDED, self._budget)
        else:
            bytes_max = node.settings.session.queue_bytes_max
            most = queue_messages_max(owner, node)
            own_queue(owner, node).move(most, bytes_max, node.disk_queue_budget)
        return False


def _matcher(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """Return one expression for all of them, case-sensitive, or None if there are none."""
    return re.compile("|".join(map(translate, patterns))) if patterns else None

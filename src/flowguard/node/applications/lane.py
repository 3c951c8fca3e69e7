"""ApplicationLane: the way of a node's work to the store of applications.

This lane is that of a node with one store. Applications have their messages in the same journal and
store as devices, and nothing waits here. `SeparateLane` is the lane of a node with two stores.
"""

from flowguard.flow import Pause
from flowguard.node.journal import Continuation
from flowguard.node.publish.deliveries import Admitted, Deliveries
from flowguard.node.publish.incoming import Incoming
from flowguard.node.publish.plans import Plan
from flowguard.records import Release, SessionRecord, Settle, StoreOp
from flowguard.session.inbound.packets import Inbound
from flowguard.session.session import Session
from flowguard.stores import Store
from flowguard.types import Publish


class ApplicationLane:
    """The lane without a store of applications; a lane that `is_separate` has all methods."""

    def __init__(self) -> None:
        self.is_separate = False
        """Whether applications have a store of their own."""
        self.names: set[str] = set()
        """Keys of the sessions and groups whose queues are in that store."""
        self.is_away = False
        """Whether that store has accepted nothing for a while."""
        self.ops_max = self.bytes_max = 0
        """Bounds of the journal of applications."""

    # --- figures -----------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Operations in the journal of applications."""
        return 0

    @property
    def size_bytes(self) -> int:
        """Size of these operations, bytes."""
        return 0

    @property
    def held_bytes(self) -> int:
        """Size of these operations and of the packets that wait for them, bytes."""
        return 0

    @property
    def waiting_count(self) -> int:
        """Publishers that wait with a message."""
        return 0

    def away_s(self, now_s: float) -> float:
        """Seconds since the store of applications became unavailable, or 0.0."""
        return 0.0

    # --- publishers --------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether messages for applications have to wait before they are routed."""
        return False

    def concerns(self, deliveries: Deliveries, inbound: Inbound, message: Publish) -> bool:
        """Whether a message is for an application, or its publisher has one in process here."""
        raise NotImplementedError

    def wait(self, inbound: Inbound) -> None:
        """Pause a publisher until the lane is open."""
        raise NotImplementedError

    def is_before(self, inbound: Inbound, pause: Pause) -> bool:
        """Whether this lane is the reason for a publisher's pause."""
        return False

    def delays(self, inbound: Inbound) -> bool:
        """Whether a publisher's messages wait here for a store that is unavailable."""
        return False

    def left(self, session: Session) -> None:
        """Forget a publisher whose connection has ended."""

    # --- messages ----------------------------------------------------------------------------

    def takes(
        self,
        deliveries: Deliveries,
        incoming: Incoming,
        plan: Plan,
        admitted: list[Admitted],
        code: int,
    ) -> bool:
        """Whether a message is in process here from now on, and answered with `code` later."""
        return False

    def hold(
        self, incoming: Incoming, ops: list[StoreOp], then: Continuation, now_s: float
    ) -> None:
        """Store a message for applications; its publisher's packet counts here until `then`."""
        raise NotImplementedError

    def give_back(self, incoming: Incoming) -> None:
        """Count a packet as in process for all clients again."""
        raise NotImplementedError

    def owe(
        self,
        deliveries: Deliveries,
        message: Publish,
        admitted: list[Admitted],
        ops: list[StoreOp],
        settle: Settle | None,
    ) -> Continuation | None:
        """Take applications out of `admitted`; add to `ops` that the node owes them its message.

        `settle` becomes durable with the message. Returns what to call after the commit, or None.
        """
        if settle is not None:
            ops.append(settle)
        return None

    def hand_over(self, release: Release, ops: list[StoreOp]) -> Continuation | None:
        """Add to `ops`, which give a member a message of its group, that the release is owed.

        Returns what to call after their commit, or None if `release` is to be in the same commit.
        """
        return None

    # --- time, restart -----------------------------------------------------------------------

    def turn(self, now_s: float) -> None:
        """Let publishers that wait go on, if the lane is open; called once per turn."""

    def tick(self, now_s: float) -> None:
        """Observe the store of applications; called every 100 ms."""

    def use_groups(self) -> None:
        """The store of applications has groups of several brokers."""

    def recovered(self, record: SessionRecord) -> None:
        """Take notice of a stored session or group."""

    def recover_owed(
        self, deliveries: Deliveries, record: SessionRecord, store: Store, now_s: float
    ) -> None:
        """Give applications what the node owed them before a restart; all sessions are known."""

"""DecisionLooks: what the broker decides about a connection, found by comparing looks at its state.

A connection remembers no decisions, so that it costs nothing. A pause between two looks is not
seen.
"""

from typing import Final, final

from flowguard.flow import Reason
from flowguard.node.node import Node
from flowguard.ops.common.explanation import Cause
from flowguard.ops.explain import pauses_of, undelivered_of
from flowguard.ops.explain_words import DROPS
from flowguard.session.connection import ServerConnection
from flowguard.session.states import Undelivered

USUAL: Final = (Undelivered.NOTHING_MATCHES, Undelivered.OFFLINE)
"""States in which no message waits for a reason that ends."""

Decision = tuple[str, dict[str, object]]
"""The event of a line and its fields."""


@final
class DecisionLooks:
    """The last look at one connection."""

    def __init__(self) -> None:
        self._paused: list[str] = []
        self._paused_s = 0.0
        self._window: float | None = None
        self._held = ""
        """Reason why it was sent nothing at the last look, or ""."""
        self._told = ""
        """The reason of the last line."""
        self._dropped: list[Reason] = []

    def look(self, node: Node, connection: ServerConnection, now_s: float) -> list[Decision]:
        """Return what has changed since the last look."""
        if connection.ended or connection.session is None:
            return []
        found = self._pauses(pauses_of(node, connection, now_s), now_s)
        inbound = connection.inbound
        window = self._window
        self._window = None if inbound is None else inbound.window.limit
        if window is not None and self._window is not None and window != self._window:
            found.append(("window", {"packets": self._window, "before": window}))
        cause = undelivered_of(node, connection.session)
        found += self._sending(cause)
        dropped = connection.session.dropped_now(node.state)
        if dropped != self._dropped:
            self._dropped = dropped
            why = "; ".join(DROPS.get(reason, reason) for reason in dropped)
            found.append(("drops", {"reasons": list(dropped), "why": why or "nothing any more"}))
        return found

    def _pauses(self, causes: list[Cause], now_s: float) -> list[Decision]:
        reasons = [cause["reason"] for cause in causes]
        if reasons == self._paused:
            return []
        before_s, self._paused = self._paused_s, reasons
        if not reasons:
            return [("resumed", {"paused_s": round(now_s - before_s, 3)})]
        self._paused_s = now_s
        why = "; ".join(cause["text"] for cause in causes)
        return [("paused", {"reasons": reasons, "why": why})]

    def _sending(self, cause: Cause) -> list[Decision]:
        """Return a line if the reason to send nothing lasts: a busy client has one all the time."""
        reason = "" if cause["reason"] in USUAL else cause["reason"]
        held, self._held = self._held, reason
        if reason != held or reason == self._told:
            return []
        self._told = reason
        if not reason:
            return [("sends again", {})]
        return [("sends nothing", {"reason": reason, "why": cause["text"]})]

"""The actions of overload protection, for readers of the log.

Counts of rejections and drops that overload did not cause have a line of their own. Each of the two
lines comes once per interval; that of other counts once more, before an overload that begins.
"""

from collections.abc import Mapping
from typing import Final, final

import structlog

from flowguard.broker.protected import Protected
from flowguard.flow import Reason
from flowguard.flow.controller import CUT_ABOVE
from flowguard.flow.law import pressure_text
from flowguard.flow.load.signals import CALM
from flowguard.node.connect.accept_state import Rest

INTERVAL_S: Final = 10.0
"""The interval; a storm must not fill a disk: later events are counted into the next line."""
REJECTED: Final = frozenset(
    {
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_REFUSED,
        Reason.PAYLOAD_TOO_LARGE,
        Reason.STORE_FULL,
        Reason.RETAINED_FULL,
        Reason.STATE_BYTES,
        Reason.NODE_STATE_BYTES,
    }
)
"""Reasons to reject a packet; for others a message is dropped."""
NOT_OVERLOAD: Final = REJECTED - {Reason.STATE_BYTES, Reason.NODE_STATE_BYTES} | {
    Reason.PACKET_TOO_LARGE,
    Reason.MESSAGE_EXPIRED,
    Reason.LOG_RETENTION,
    Reason.OFFLINE_QOS_0,
}
"""Reasons to reject or drop that occur without overload, too."""
PAUSES: Final = {
    Rest.DESCRIPTORS: "for_free_descriptors",
    Rest.REFUSALS: "for_waiting_connects",
    Rest.HANDSHAKES: "for_waiting_handshakes",
    Rest.LISTENER: "by_listener_limit",
}
"""Reason of a listener to accept no connections -> its words in the log."""

log = structlog.get_logger()


@final
class OverloadLog:
    """Compares the node's counters with the last line; call `tick` every 100 ms."""

    def __init__(self, node: Protected, now_s: float) -> None:
        self._node = node
        self._due_s = now_s
        self._logged_s = now_s
        """When the last line was written; its counts are those of `_logged`."""
        self._logged: dict[str, int] = {}
        self._window_min = self._window()
        self._worst = CALM
        self._first_pressed_s: float | None = None
        """The first tick of this interval with a pressure that cuts windows, or None."""
        self._last_pressed_s = now_s
        self._begin_due_s = now_s
        """The first moment at which an overload that begins may be logged."""
        self._since_s: float | None = None
        """The start of the overload, or None if there is none."""
        self._before: dict[str, int] = {}
        """The counts at its start, or at the last tick without pressure if there is none."""

    def tick(self, now_s: float) -> None:
        """Watch the extremes; log what has changed, if it is time."""
        pressure, counts = self._node.guard.grant.pressure, self._counts()
        self._window_min = min(self._window_min, self._window())
        if pressure.value > self._worst.value:
            self._worst = pressure
        if pressure.value > CUT_ABOVE:
            self._last_pressed_s = now_s
            if self._first_pressed_s is None:
                self._first_pressed_s = now_s
        elif self._since_s is None:
            self._before = counts
        may_begin = self._since_s is None and now_s >= self._begin_due_s
        if now_s >= self._due_s or (may_begin and self._is_overload(self._by_overload(counts))):
            self._flush(counts, now_s)

    def flush(self, now_s: float) -> None:
        """Log what has changed since the last line."""
        self._flush(self._counts(), now_s)

    def _flush(self, counts: dict[str, int], now_s: float) -> None:
        changed, by_overload = _difference(counts, self._logged), self._by_overload(counts)
        is_calm = self._first_pressed_s is None and not self._is_cut
        has_ended = self._since_s is not None and is_calm
        has_line = has_ended or self._is_overload(by_overload)
        others = _difference(changed, by_overload) if has_line else changed
        if others:
            counted_s = _rounded(now_s - self._logged_s)
            log.warning(
                "counts of rejections, drops and errors", counts_of_last_s=counted_s, **others
            )
        if has_ended:
            self._log_end(counts, now_s)
        elif has_line:
            self._log_overload(by_overload, now_s)
        if has_line:
            self._begin_due_s = now_s + INTERVAL_S
        if others or has_line:
            self._logged, self._logged_s, self._due_s = counts, now_s, now_s + INTERVAL_S
        self._window_min, self._worst, self._first_pressed_s = self._window(), CALM, None

    def _by_overload(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return what overload protection did since the last line, or since an overload began."""
        before = self._before if self._since_s is None else self._logged
        return _of_overload(_difference(counts, before))

    def _log_overload(self, by_overload: Mapping[str, int], now_s: float) -> None:
        """Log an overload that begins or continues, and what it has done in this interval."""
        assert self._first_pressed_s is not None
        counted_since_s = self._first_pressed_s if self._since_s is None else self._logged_s
        counted_s = _rounded(now_s - counted_since_s)
        log.warning(
            "overload began" if self._since_s is None else "overload continues",
            cause=pressure_text(self._worst),
            window=f"each client's window (packets in process) {self._node.guard.grant.why}",
            window_packets=self._window(),
            window_lowest_packets=self._window_min,
            **({"counts_of_last_s": counted_s} if by_overload else {}),
            **by_overload,
        )
        if self._since_s is None:
            self._since_s = self._first_pressed_s

    def _log_end(self, counts: Mapping[str, int], now_s: float) -> None:
        assert self._since_s is not None
        lasted_s = _rounded(self._last_pressed_s - self._since_s)
        total = _of_overload(_difference(counts, self._before))
        counted = {"counts_of_last_s": _rounded(now_s - self._since_s)} if total else {}
        log.warning("overload ended", lasted_s=lasted_s, **counted, **total)
        self._since_s = None

    @property
    def _is_cut(self) -> bool:
        """True if windows were below their maximum in this interval."""
        return self._window_min < self._node.guard.window.limit_max

    def _is_overload(self, by_overload: Mapping[str, int]) -> bool:
        """True if pressure in this interval made overload protection cut, reject or drop."""
        return self._first_pressed_s is not None and (self._is_cut or bool(by_overload))

    def _window(self) -> float:
        """The window of each client now, in packets; at most the maximum of the settings."""
        node = self._node
        return round(min(node.guard.grant.window, float(node.guard.window.limit_max)), 3)

    def _counts(self) -> dict[str, int]:
        node = self._node
        counts = {f"rejected_{reason}": count for reason, count in node.guard.gate.refused.items()}
        counts |= {_name(reason): count for reason, count in node.counters.dropped.items()}
        counts |= {
            f"times_accepting_paused_{PAUSES[reason]}": count
            for reason, count in node.door.rests.items()
        }
        counts["protocol_errors"] = node.counters.malformed
        counts["pages_unreadable"] = node.counters.pages_unreadable
        return counts


def _rounded(seconds: float) -> float:
    return round(seconds, 1)


def _name(reason: Reason) -> str:
    return f"{'rejected' if reason in REJECTED else 'dropped'}_{reason}"


def _of_overload(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of what overload protection did."""
    return {name: count for name, count in counts.items() if name not in _OTHERS}


_OTHERS: Final = {*map(_name, NOT_OVERLOAD), "protocol_errors", "pages_unreadable"}
"""Counts of `NOT_OVERLOAD`, and of other events without overload."""


def _difference(counts: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    changed = {name: count - before.get(name, 0) for name, count in counts.items()}
    return {name: count for name, count in changed.items() if count}

"""The actions of overload protection, for readers of the log: one line per interval at most."""

from collections.abc import Mapping
from typing import Final, final

import structlog

from flowguard.flow.controller import CUT_ABOVE
from flowguard.flow.law import cause_text
from flowguard.flow.policy import Grant
from flowguard.node.node import Node

INTERVAL_S: Final = 10.0
"""The interval; a storm must not fill a disk: later events are counted into the next line."""

log = structlog.get_logger()


@final
class OverloadLog:
    """Compares the node's counters with the last line; call `tick` every 100 ms."""

    def __init__(self, node: Node, now_s: float) -> None:
        self._node = node
        self._due_s = now_s
        self._logged_s = now_s
        """When the last line was written; its counts are those of `_logged`."""
        self._logged: dict[str, int] = {}
        self._window_min = node.window.limit_max
        self._worst = Grant(self._window_min)
        self._since_s: float | None = None
        """The start of the overload, or None if there is none."""
        self._before: dict[str, int] = {}
        """The counts of the last line before it."""

    def tick(self, now_s: float) -> None:
        """Watch the extremes; log what has changed, if it is time."""
        node = self._node
        self._window_min = min(self._window_min, node.window.limit)
        if node.guard.grant.pressure.value > self._worst.pressure.value:
            self._worst = node.guard.grant
        if now_s >= self._due_s:
            self.flush(now_s)

    def flush(self, now_s: float) -> None:
        """Log what has changed since the last line."""
        node, counts = self._node, self._counts()
        changed = _difference(counts, self._logged)
        grant, pressed = self._worst, self._worst.pressure.value > CUT_ABOVE
        if self._since_s is not None and not pressed and self._window_min == node.window.limit_max:
            changed = _difference(counts, self._before)
            lasted_s = _rounded(now_s - self._since_s)
            log.warning("overload ended", lasted_s=lasted_s, **changed)
            self._since_s = None
            self._wrote(counts, now_s)
        elif changed or (pressed and self._window_min < node.window.limit_max):
            counted_s = _rounded(now_s - self._logged_s)
            if pressed:
                log.warning(
                    "overload began" if self._since_s is None else "overload continues",
                    cause=cause_text(grant.pressure),
                    pressure_max=round(grant.pressure.value, 2),
                    counted_s=counted_s,
                    **changed,
                    window=f"each client's window {grant.why}",
                    window_packets=node.window.limit,
                    window_lowest_packets=self._window_min,
                )
            else:
                log.warning("rejections, drops or errors", counted_s=counted_s, **changed)
            if pressed and self._since_s is None:
                self._since_s, self._before = now_s, self._logged
            self._wrote(counts, now_s)
        self._window_min = node.window.limit
        self._worst = Grant(self._window_min)

    def _wrote(self, counts: dict[str, int], now_s: float) -> None:
        self._logged, self._logged_s, self._due_s = counts, now_s, now_s + INTERVAL_S

    def _counts(self) -> dict[str, int]:
        node = self._node
        counts = {f"rejected_{reason}": count for reason, count in node.guard.gate.refused.items()}
        counts |= {f"dropped_{reason}": count for reason, count in node.counters.dropped.items()}
        counts |= {
            f"times_accept_paused_by_{reason}": count for reason, count in node.door.rests.items()
        }
        counts["protocol_errors"] = node.counters.malformed
        counts["pages_unreadable"] = node.counters.pages_unreadable
        return counts


def _rounded(seconds: float) -> float:
    return round(seconds, 1)


def _difference(counts: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    changed = {name: count - before.get(name, 0) for name, count in counts.items()}
    return {name: count for name, count in changed.items() if count}

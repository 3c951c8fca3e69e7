"""The actions of overload protection, for readers of the log: one line per interval at most."""

from typing import Final, final

import structlog

from flowguard.flow.controller import CUT_ABOVE
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
        self._logged: dict[str, int] = {}
        self._window_min = node.window.limit_max
        self._worst = Grant(self._window_min)

    def tick(self, now_s: float) -> None:
        """Watch the extremes; log what has changed, if it is time."""
        node = self._node
        self._window_min = min(self._window_min, node.window.limit)
        if node.guard.grant.pressure.value > self._worst.pressure.value:
            self._worst = node.guard.grant
        if now_s < self._due_s:
            return
        counts = self._counts()
        changed = {
            name: count - self._logged.get(name, 0)
            for name, count in counts.items()
            if count != self._logged.get(name, 0)
        }
        pressed = self._worst.pressure.value > CUT_ABOVE
        if changed or (pressed and self._window_min < node.window.limit_max):
            grant = self._worst
            pressure = {"pressure_max": round(grant.pressure.value, 2)}
            cause = {"cause": str(grant.pressure.cause), "why": grant.why} if pressed else {}
            window = {"window_min": self._window_min, "window": node.window.limit}
            log.warning(
                "overload" if pressed else "rejections, drops or errors",
                **changed,
                **window,
                **pressure,
                **cause,
            )
            self._logged = counts
            self._due_s = now_s + INTERVAL_S
        self._window_min = node.window.limit
        self._worst = Grant(self._window_min)

    def _counts(self) -> dict[str, int]:
        node = self._node
        counts = {f"refused_{reason}": count for reason, count in node.guard.gate.refused.items()}
        counts |= {f"dropped_{reason}": count for reason, count in node.counters.dropped.items()}
        counts |= {f"rested_for_{reason}": count for reason, count in node.door.rests.items()}
        counts["protocol_errors"] = node.counters.malformed
        counts["pages_unreadable"] = node.counters.pages_unreadable
        return counts

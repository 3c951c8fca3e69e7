"""`$SYS`: the state of the broker as retained messages.

`$SYS/broker/...` has the names that Mosquitto's users expect. `$SYS/flowguard/...` has the measures
and actions of overload protection.
"""

from typing import TYPE_CHECKING, final

from flowguard import __version__
from flowguard.flow.load.signals import Signal
from flowguard.types import Publish

if TYPE_CHECKING:
    from flowguard.node.node import Node

LOAD_MINUTES = (1, 5, 15)
"""Moving averages per minute over these spans, as in `$SYS/broker/load/...`."""


@final
class SysTopics:
    """Publishes values that changed since the last round; call it every `sys_interval_s`."""

    def __init__(self, node: "Node", now_s: float) -> None:
        self._node = node
        self._shown: dict[str, str] = {}
        self._last: dict[str, int] = {}
        self._last_s = now_s
        self._averages: dict[str, float] = {}

    def publish(self, now_s: float) -> None:
        """Publish every value that differs from the retained one."""
        values = {f"broker/{name}": value for name, value in self._values(now_s).items()}
        values |= {f"broker/{name}": value for name, value in self._loads(now_s).items()}
        values |= {f"flowguard/{name}": value for name, value in self._protection().items()}
        for name, value in values.items():
            if self._shown.get(name) != value:
                self._shown[name] = value
                message = Publish(f"$SYS/{name}", value.encode(), retain=True)
                self._node.router.publish_own(message, now_s)

    def _values(self, now_s: float) -> dict[str, str]:
        node, counters = self._node, self._node.counters
        sessions = node.registry.sessions
        total, connected = len(sessions), node.counters.clients_connected
        retained = len(node.router.retained)
        groups = node.router.queues.spread  # Each has a member without a client.
        values: dict[str, object] = {
            "version": f"flowguard version {__version__}",
            "uptime": f"{int(now_s - node.started_s)} seconds",
            "clients/total": total,
            "clients/connected": connected,
            "clients/active": connected,
            "clients/disconnected": total - connected,
            "clients/inactive": total - connected,
            "clients/maximum": counters.clients_maximum,
            "clients/expired": counters.clients_expired,
            "messages/received": counters.messages_received,
            "messages/sent": counters.messages_sent + counters.publish_sent,
            "publish/messages/received": counters.publish_received,
            "publish/messages/sent": counters.publish_sent,
            "publish/messages/dropped": counters.publish_dropped,
            "publish/bytes/received": counters.publish_bytes_received,
            "publish/bytes/sent": counters.publish_bytes_sent,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "subscriptions/count": node.router.queues.subscriptions_count,
            "shared_subscriptions/count": node.router.table.shared_count - groups.count,
            "retained messages/count": retained,
            "store/messages/count": retained,
            "store/messages/bytes": node.state.queue_budget.used_bytes,
        }
        return {name: str(value) for name, value in values.items()}

    def _protection(self) -> dict[str, str]:
        """Return the values of overload protection: `$SYS/flowguard/...`."""
        node = self._node
        window, gate, pressure = node.guard.window, node.guard.gate, node.guard.grant.pressure
        values: dict[str, object] = {
            "policy": node.guard.policy.name,
            "window": window.limit,
            "pressure": f"{pressure.value:.2f}",
            "cause": pressure.cause or "none",
            "why": node.guard.grant.why or "nothing decided yet",
            "clients/paused": node.state.paused_count,
            "applications/total": len(node.router.applications),
            "applications/connected": node.router.applications.connected_count,
            "applications/catching_up": node.router.log.catching_up_count,
            "applications/groups": node.router.queues.spread.count,
            "applications/groups/messages": node.router.queues.spread.held_count,
            "unfinished/packets": window.in_process,
            "unfinished/bytes": window.in_process_bytes,
            "connects/limit": gate.limit,
            "connects/in_process": gate.in_process,
            "connects/waiting": gate.buffered,
            "connects/rung": gate.rung.name.lower(),
        }
        values |= {
            f"pressure/{signal}": f"{pressure.parts.get(signal, 0.0):.2f}" for signal in Signal
        }
        values |= {f"refused/{reason}": count for reason, count in node.refused_connects().items()}
        values |= {f"dropped/{reason}": count for reason, count in node.counters.dropped.items()}
        return {name: str(value) for name, value in values.items()}

    def _loads(self, now_s: float) -> dict[str, str]:
        """Return exponential moving averages of the counters, per minute."""
        counters = self._node.counters
        totals = {
            "messages/received": counters.messages_received,
            "messages/sent": counters.messages_sent + counters.publish_sent,
            "publish/received": counters.publish_received,
            "publish/sent": counters.publish_sent,
            "publish/dropped": counters.publish_dropped,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "sockets": counters.connections_accepted,
            "connections": counters.connects_accepted,
        }
        elapsed_s = max(now_s - self._last_s, 1e-3)
        self._last_s = now_s
        loads: dict[str, str] = {}
        for name, total in totals.items():
            per_minute = (total - self._last.get(name, 0)) * 60 / elapsed_s
            self._last[name] = total
            for minutes in LOAD_MINUTES:
                key = f"load/{name}/{minutes}min"
                weight = min(1.0, elapsed_s / (60 * minutes))
                average = self._averages.get(key, 0.0)
                self._averages[key] = average + weight * (per_minute - average)
                loads[key] = f"{self._averages[key]:.2f}"
        return loads

"""Overload protection for other brokers and services (docs/operate/embedding.md).

Every module uses one `flowguard.flow.Guard`; none has rules of its own.

- `host_guard`     the guard for your own server: five calls, synchronous, from any thread
- `waits`          context managers over it for servers that wait by `await`
- `trio_guard`     the same, ticked by a task of trio
- `asyncio_guard`  the same, ticked by a timer of asyncio
- `asgi`           middleware for HTTP ingestion: windows per principal, 503 with Retry-After
- `observing`      callbacks of a host that only observe
- `metrics`        metrics of a guard for Prometheus
- `amqtt_plugin`   gate, windows and rejections for amqtt, by a few lines of its configuration
- `proxy`          `flowguard proxy`, in front of any MQTT broker
"""

from broker_adapter.host_guard import GuardedClient, GuardedPacket
from broker_adapter.host_guard import HostGuard as Guard
from broker_adapter.waits import AsyncGuard, RefusedError

__all__ = ["AsyncGuard", "Guard", "GuardedClient", "GuardedPacket", "RefusedError"]

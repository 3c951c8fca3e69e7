"""Overload protection of flowguard for brokers and services of your own (README.md).

- `host_guard`     the guard for your own server: five calls, synchronous, from any thread
- `waits`          context managers over it for servers that wait by `await`
- `asyncio_guard`  the same, ticked by a timer of asyncio
- `trio_guard`     the same, ticked by a task of trio
- `asgi`           middleware for HTTP ingestion
- `config`         `FlowSettings`, the limits of a guard
"""

from flowguard_guard.host_guard import GuardedClient, GuardedPacket
from flowguard_guard.host_guard import HostGuard as Guard
from flowguard_guard.waits import AsyncGuard, RefusedError

__all__ = ["AsyncGuard", "Guard", "GuardedClient", "GuardedPacket", "RefusedError"]

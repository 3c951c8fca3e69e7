"""Overload protection for somebody else's broker or service (docs/operate/embedding.md).

All of it stands behind one `flowguard.flow.Guard`; none brings rules of its own.

- `host_guard`     the guard for a host of your own: five calls, synchronous, from any thread
- `waits`          blocks over it for hosts that wait by `await`
- `trio_guard`     the same, ticked by a task of trio
- `asyncio_guard`  the same, ticked by a timer of asyncio
- `asgi`           middleware for HTTP ingestion: windows per principal, 503 with Retry-After
- `amqtt_plugin`   gate, windows and refusals for amqtt, by a few lines of its configuration
- `proxy_command`  `flowguard proxy`, in front of any MQTT broker: `proxy_reactor` has its sockets,
                   `proxy_core` the guard and the choice among upstreams, `proxy_host` what pairs
                   ask of it, `proxy_upstream` the health of each, `proxy_pair` one client and its
                   connection to one of them, `proxy_states` where that stands, `proxy_connect`
                   what is read of a CONNECT, `proxy_packets` what waits and is in process,
                   `proxy_outgoing` what is to be sent, `proxy_frames` where packets begin,
                   `proxy_protocol` who a client is, as upstreams are told; sans-IO but for the
                   first two
"""

from broker_adapter.host_guard import GuardedClient, GuardedPacket
from broker_adapter.host_guard import HostGuard as Guard
from broker_adapter.waits import AsyncGuard, RefusedError

__all__ = ["AsyncGuard", "Guard", "GuardedClient", "GuardedPacket", "RefusedError"]

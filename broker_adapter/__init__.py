"""Overload protection for other brokers and services (docs/operate/embedding.md).

Every module uses one `flowguard.flow.Guard`; none has rules of its own.

- `host_guard`     the guard for your own server: five calls, synchronous, from any thread
- `waits`          context managers over it for servers that wait by `await`
- `trio_guard`     the same, ticked by a task of trio
- `asyncio_guard`  the same, ticked by a timer of asyncio
- `asgi`           middleware for HTTP ingestion: windows per principal, 503 with Retry-After
- `amqtt_plugin`   gate, windows and rejections for amqtt, by a few lines of its configuration
- `proxy_command`  the command `flowguard proxy`
- `proxy_reactor`  the sockets of the proxy; the modules below have no IO
- `proxy_core`     the guard, and the choice of an upstream
- `proxy_host`     the interface of the core for its pairs
- `proxy_upstream` the health of an upstream
- `proxy_pair`     a client and its connection to an upstream
- `proxy_states`   the states of a pair
- `proxy_connect`  the parts of a CONNECT that the proxy reads
- `proxy_packets`  packets that wait, and packets in process
- `proxy_outgoing` bytes to send
- `proxy_frames`   the boundaries of packets
- `proxy_protocol` the client's address for upstreams, as a PROXY header
"""

from broker_adapter.host_guard import GuardedClient, GuardedPacket
from broker_adapter.host_guard import HostGuard as Guard
from broker_adapter.waits import AsyncGuard, RefusedError

__all__ = ["AsyncGuard", "Guard", "GuardedClient", "GuardedPacket", "RefusedError"]

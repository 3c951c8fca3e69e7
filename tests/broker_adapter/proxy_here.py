"""A proxy of this process, and streams to it through the layers that its doorways speak."""

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import trio

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.reactor import ProxyReactor
from broker_adapter.proxy.run import keep_house
from broker_adapter.proxy.upstream import Upstream
from broker_adapter.proxy.watch.face import Face
from flowguard.broker.memory import bounds_of
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.config import MIB, FlowSettings, Settings
from flowguard.network_settings import NetworkSettings
from tests.support.authority import Authority
from tests.support.real import TEST_S
from tests.support.websocket import WebSocketClient

HOST = "127.0.0.1"


def doorways(authority: Authority, *addresses: str) -> list[Doorway]:
    pair = authority.issue(HOST)
    network = {"listeners": addresses, "cert": pair.cert, "key": pair.key}
    return open_doorways(NetworkSettings.model_validate(network))


def face_of(core: ProxyCore, clock: Callable[[], float] = monotonic) -> Face:
    return Face(core, bounds_of(Settings()), clock, clock(), core.pairs)


def upstream(port: int, tls: ssl.SSLContext | None = None) -> Upstream:
    return Upstream("upstream", [(socket.AF_INET, (HOST, port))], HOST, tls)


@asynccontextmanager
async def proxying(
    listeners: list[Doorway],
    *upstreams: Upstream,
    says_address: bool = False,
    on_error: Callable[[Exception], None] | None = None,
) -> AsyncIterator[ProxyCore]:
    """Yield a proxy of this process; at its end nothing may be held."""
    flow = FlowSettings(store_objective_s=1e9, loop_objective_s=1e9, unfinished_bytes_max=MIB)
    core = ProxyCore(flow, 64 * MIB, upstreams, draw=lambda: 0.5, on_error=on_error)
    reactor = ProxyReactor(core, monotonic, says_address=says_address)
    for doorway in listeners:
        reactor.sockets.listen(doorway, 100)
    try:
        with trio.fail_after(TEST_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reactor.run)
                nursery.start_soon(keep_house, core, reactor, monotonic)
                yield core
                while core.pairs:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
    finally:
        reactor.close()
    assert core.held_bytes == core.in_process_count == 0


async def open_stream(doorway: Doorway, authority: Authority) -> Any:
    """A stream through the layers that are spoken there."""
    stream: Any = await trio.open_tcp_stream(HOST, doorway.address.port or 0)
    if doorway.scheme.has_tls:
        stream = trio.SSLStream(stream, authority.client_context(), server_hostname=HOST)
    if doorway.scheme.has_websocket:
        stream = WebSocketClient(stream)
        await stream.open()
    return stream

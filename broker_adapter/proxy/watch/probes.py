"""Probes: asks upstreams that have no clients whether they accept connections.

Without clients, nothing else would find out that an upstream is lost, or that it is back: a load
balancer sends no clients to a proxy that is not ready.
"""

import ssl
from collections.abc import Callable
from functools import partial
from math import inf
from os import strerror
from typing import Final

import trio

from broker_adapter.proxy.core import PROBE_S, ProxyCore
from broker_adapter.proxy.upstream import DIAL_S, Upstream

IDLE_S: Final = 5.0
"""Time between two probes of an upstream that answers, seconds."""
ERRORS: Final = (OSError, trio.BrokenResourceError, trio.TooSlowError, ssl.SSLError)


async def probe_all(core: ProxyCore, clock: Callable[[], float], wake: Callable[[], None]) -> None:
    """Probe until cancelled. `wake`: runs the loop, which dials clients that wait."""
    async with trio.open_nursery() as nursery:
        for upstream in core.upstreams:
            nursery.start_soon(partial(_probe, core, upstream, clock, wake))


async def _probe(
    core: ProxyCore, upstream: Upstream, clock: Callable[[], float], wake: Callable[[], None]
) -> None:
    asked_s, had_clients = -inf, False
    while True:
        has_clients = upstream.pairs_count > 0
        is_due = had_clients or trio.current_time() - asked_s >= IDLE_S
        if not upstream.is_up or (is_due and not has_clients):
            asked_s = trio.current_time()
            why = await _answer(upstream)
            if why:
                core.fails(upstream, why, clock())
            else:
                core.answers(upstream, clock())
                wake()
        had_clients = has_clients
        await trio.sleep(PROBE_S)


async def _answer(upstream: Upstream) -> str:
    """Return "" if one of the addresses accepts a connection, or the last error."""
    why = ""
    for family, address in upstream.places:
        try:
            with trio.fail_after(DIAL_S):
                await _connect(upstream, family, address)
            return ""
        except ERRORS as error:
            why = _words(error)
    return why


async def _connect(upstream: Upstream, family: int, address: tuple[str, int]) -> None:
    with trio.socket.socket(family) as sock:
        await sock.connect(address)
        if upstream.tls is not None:
            stream = trio.SocketStream(sock)
            await trio.SSLStream(stream, upstream.tls, server_hostname=upstream.host).do_handshake()


def _words(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, trio.TooSlowError):
        return f"no answer within {DIAL_S:g} s"
    number = cause.errno if isinstance(cause, OSError) else None
    return strerror(number) if number else str(cause)

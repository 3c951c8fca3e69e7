"""Addresses of the workers that own other sessions, and connections to them.

An address is a socket in the data directory of this machine, or a port of another node. In a
cluster the address of a worker changes when its shard moves.
"""

from collections.abc import Callable
from errno import EINPROGRESS
from pathlib import Path
from socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    SO_KEEPALIVE,
    SO_REUSEADDR,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
    TCP_NODELAY,
    TCP_USER_TIMEOUT,
    getaddrinfo,
    socket,
)
from typing import Any, Final, NamedTuple

from flowguard.broker.workers.unix_sockets import BACKLOG, connect_unix


class NodeAddress(NamedTuple):
    """A port of another node."""

    host: str
    """IP address."""
    port: int
    name: str
    """The host in the node's `cluster.address`, which its certificate names."""


WorkerAddress = Path | NodeAddress
"""A Unix socket, or a port of another node."""

LOST_S: Final = 5
"""Time without an answer of the other machine after which a connection is lost, seconds."""


def connect(address: WorkerAddress) -> socket | None:
    """Return a socket that is connected or will be, or None if there is no listener now.

    Until it is connected, it takes and gives no bytes (BlockingIOError).
    """
    if isinstance(address, Path):
        return connect_unix(address)
    sock = socket(_family(address.host), SOCK_STREAM | SOCK_NONBLOCK)
    try:
        lose_silent(sock)
        error = sock.connect_ex((address.host, address.port))
    except OSError:
        sock.close()
        return None
    if error not in (0, EINPROGRESS):
        sock.close()
        return None
    return sock


def listen_tcp(address: tuple[str, int]) -> socket:
    """Return a listening socket. Raises OSError."""
    host, port = address
    host = ip_of(host)
    sock = socket(_family(host), SOCK_STREAM | SOCK_NONBLOCK)
    try:
        sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def lose_silent(sock: socket) -> None:
    """Let a TCP connection end when the other machine is silent for `LOST_S`; send at once."""
    sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    sock.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, 1_000 * LOST_S)
    sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    sock.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, 1)
    sock.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, 1)


def ip_of(host: str, look_up: Callable[..., Any] = getaddrinfo) -> str:
    """Return the IP address of a host: that of IPv4 if it has both. So a node listens at the
    address to which others connect. Raises OSError."""
    found = look_up(host, None, type=SOCK_STREAM)
    return str(min(found, key=lambda each: each[0] != AF_INET)[4][0])


def _family(host: str) -> int:
    return AF_INET6 if ":" in host else AF_INET

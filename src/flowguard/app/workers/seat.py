"""Seat: one of several workers as it knows itself, and what connects it with the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from socket import socket
from typing import Final

from flowguard.address import parse_address
from flowguard.app.failures import StartError
from flowguard.broker.server import Running
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.workers.handover import Handover
from flowguard.broker.workers.links import Links
from flowguard.broker.workers.node_tls import NodeTls
from flowguard.broker.workers.unix_sockets import listen_unix
from flowguard.broker.workers.worker_addresses import NodeAddress, WorkerAddress, listen_tcp
from flowguard.broker.workers.worker_ports import WorkerPorts
from flowguard.cluster.members import Members
from flowguard.config import Settings
from flowguard.network_settings import PORTS_PER_SHARD
from flowguard.ops.web.hosts import LOCALHOST

HANDOVER: Final = "handover"
LINKS: Final = "links"
HTTP: Final = "http"
PURPOSES: Final = (LINKS, HANDOVER)
"""Purposes for which workers connect with each other, in the order of their ports."""


def name_of(index: int) -> str:
    return f"worker-{index}"


def socket_path(data: Path, index: int, purpose: str) -> Path:
    return data / f"{name_of(index)}.{purpose}"


def remove_sockets(data: Path, count: int) -> None:
    """Remove the files of the sockets of workers that have ended."""
    for index in range(count):
        for purpose in (HANDOVER, LINKS, HTTP):
            socket_path(data, index, purpose).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Seat:
    index: int
    count: int
    incarnation: int
    """Number of this process, above those of all processes before it."""
    data: Path
    """The data directory that all workers of this machine share."""
    address: tuple[str, int] | None = None
    """In a cluster: the host and the first port at which other nodes reach this one."""
    tls: NodeTls | None = None
    """TLS between the nodes, or None without it."""
    addresses: dict[str, dict[str, WorkerAddress]] = field(default_factory=dict)
    """The address of each worker, by purpose and name; see `move`."""

    @property
    def name(self) -> str:
        return name_of(self.index)

    @property
    def store_folder(self) -> Path:
        return self.data / self.name

    def members(self) -> Members:
        return Members(self.name, self.incarnation, map(name_of, range(self.count)))

    def listen_http(self) -> socket:
        """Return a listening socket for the supervisor. Raises OSError."""
        return listen_unix(socket_path(self.data, self.index, HTTP))

    def join(self, running: Running, doorways: Sequence[Doorway]) -> None:
        """Connect a started broker with the other workers. Raises OSError and StartError."""
        self.move({})
        node, reactor = running.node, running.reactor
        handover = Handover(
            self.members(),
            self._ports(HANDOVER),
            node,
            reactor,
            doorways,
            running.clock,
        )
        handover.http = socket_path(self.data, self.index, HTTP)
        node.handshakes.placement = handover
        running.onlookers.append(lambda now_s, _: handover.tick(now_s))
        if node.router.peers.mesh is not None:
            mesh, ports = node.router.peers.mesh, self._ports(LINKS)
            links = Links(mesh, ports, reactor, running.clock, node.broke)
            running.onlookers.append(lambda now_s, _: links.tick(now_s))

    def move(self, remote: Mapping[int, NodeAddress]) -> None:
        """Take over the addresses of shards on other nodes, each with its node's first port. All
        other workers are on this machine, or down."""
        for purpose in PURPOSES:
            addresses = self.addresses.setdefault(purpose, {})
            for index in range(self.count):
                address: WorkerAddress = socket_path(self.data, index, purpose)
                if index in remote:
                    address = address_of(remote[index], index, purpose)
                addresses[name_of(index)] = address

    def _ports(self, purpose: str) -> WorkerPorts:
        """Listen on a Unix socket, and in a cluster on a port for the other nodes.

        Raises OSError and StartError.
        """
        listeners = [listen_unix(socket_path(self.data, self.index, purpose))]
        if self.address is not None:
            listeners.append(_listen(self.address, self.index, purpose))
        return WorkerPorts(self.addresses[purpose], listeners, self.tls)


def check_ports(node: tuple[str, int], count: int) -> None:
    """Raise StartError if a port of one of `count` shards is not free."""
    for index in range(count):
        for purpose in PURPOSES:
            _listen(node, index, purpose).close()


def _listen(node: tuple[str, int], index: int, purpose: str) -> socket:
    """Listen on a port of a shard. Raises StartError."""
    host, port = port_of(node, index, purpose)
    try:
        return listen_tcp((host, port))
    except OSError as error:
        what = f"flowguard cannot listen on {host}:{port}: {error.strerror}"
        hint = "It is a port of cluster.address, which must be one of this machine's, and free"
        raise StartError(what, hint, 1, error) from error


def address_of(node: NodeAddress, index: int, purpose: str) -> NodeAddress:
    """Return the address of a shard for a purpose, on another node with this first port."""
    return node._replace(port=port_of((node.host, node.port), index, purpose)[1])


def port_of(node: tuple[str, int], index: int, purpose: str) -> tuple[str, int]:
    """Return the address of a shard for a purpose, on a node with this host and first port."""
    host, port = node
    return host, port + PORTS_PER_SHARD * index + PURPOSES.index(purpose)


def page_for_others(settings: Settings, http: socket | None) -> str:
    """Return the URL of this node's page for other machines, or "" if they do not reach it."""
    if http is None or settings.cluster.address is None:
        return ""
    node = parse_address(settings.cluster.address)[0]
    host, port = http.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = node
    elif ip_address(host).is_loopback and not _is_loopback(node):
        return ""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == LOCALHOST

"""Seat: one of several workers as it knows itself, and what connects it with the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Final

from flowguard.broker.server import Running
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.workers.handover import Handover
from flowguard.broker.workers.links import Links
from flowguard.broker.workers.unix_sockets import listen_unix
from flowguard.cluster.members import Members

HANDOVER: Final = "handover"
LINKS: Final = "links"
HTTP: Final = "http"


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
    """The data directory that all workers share."""

    @property
    def name(self) -> str:
        return name_of(self.index)

    @property
    def store_folder(self) -> Path:
        return self.data / self.name

    def members(self) -> Members:
        return Members(self.name, self.incarnation, dict(self._addresses(LINKS)))

    def listen_http(self) -> socket:
        """Return a listening socket for the supervisor. Raises OSError."""
        return listen_unix(socket_path(self.data, self.index, HTTP))

    def join(self, running: Running, doorways: Sequence[Doorway]) -> None:
        """Connect a started broker with the other workers. Raises OSError."""
        node, reactor = running.node, running.reactor
        paths = {name: Path(address) for name, address in self._addresses(HANDOVER)}
        handover = Handover(self.members(), paths, node, reactor, doorways, running.clock)
        node.handshakes.placement = handover
        running.onlookers.append(lambda now_s, _: handover.tick(now_s))
        if node.router.peers.mesh is not None:
            paths = {name: Path(address) for name, address in self._addresses(LINKS)}
            links = Links(node.router.peers.mesh, paths, reactor, running.clock, node.broke)
            running.onlookers.append(lambda now_s, _: links.tick(now_s))

    def _addresses(self, purpose: str) -> list[tuple[str, str]]:
        return [
            (name_of(index), str(socket_path(self.data, index, purpose)))
            for index in range(self.count)
        ]

"""NodeHosts: the IP addresses of other nodes, looked up apart from the signs of life.

A name server that does not answer must not delay a sign of life: the other nodes would take the
shards of this one. The address of a name may change, as that of a pod does when it starts again.
"""

import socket
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Any, Final, final

import structlog
import trio

from flowguard.address import parse_address
from flowguard.broker.workers.worker_addresses import ip_of

WAIT_S: Final = 0.5
"""Maximum wait for all names, in seconds; a later answer is taken the next time."""
NO_ANSWER: Final = "the name server has not answered yet"

log = structlog.get_logger()


@final
class NodeHosts:
    def __init__(self, look_up: Callable[..., Any] = socket.getaddrinfo) -> None:
        self._look_up = look_up
        self._found: dict[str, tuple[str, int]] = {}
        """The last address of each node."""
        self._asked: set[str] = set()
        """Nodes whose names are looked up now, each in a thread."""
        self._faults: dict[str, str] = {}
        """Why the last look-up of a node failed."""
        self._logged: dict[str, str] = {}
        """The faults that are in the log."""
        self._threads = trio.CapacityLimiter(1_000)  # Each name has one at most.

    async def addresses(self, nodes: Collection[str]) -> dict[str, tuple[str, int]]:
        """Return the address of each node that is known, after `WAIT_S` at the latest."""
        with trio.move_on_after(WAIT_S):
            for node in nodes:
                if node not in self._asked and not self._is_number(node):
                    await trio.to_thread.run_sync(
                        self._ask, node, abandon_on_cancel=True, limiter=self._threads
                    )
        for known in (self._found, self._faults):
            for node in set(known).difference(nodes):
                del known[node]
        unknown = [node for node in nodes if node not in self._found]
        faults = {**dict.fromkeys(unknown, NO_ANSWER), **self._faults}
        for node, why in faults.items():
            if self._logged.get(node) != why:
                log.warning("host of a node not found", node=node, why=why)
        self._logged = faults
        return {node: self._found[node] for node in nodes if node in self._found}

    def _is_number(self, node: str) -> bool:
        """Take the address if the host is one."""
        host, port = parse_address(node)
        try:
            ip_address(host)
        except ValueError:
            return False
        self._found[node] = (host, port)
        return True

    def _ask(self, node: str) -> None:
        """Look one name up, in a thread that may outlive the call."""
        self._asked.add(node)
        host, port = parse_address(node)
        try:
            self._found[node] = (ip_of(host, self._look_up), port)
            self._faults.pop(node, None)
        except OSError as error:
            self._faults[node] = error.strerror or str(error)
        finally:
            self._asked.discard(node)

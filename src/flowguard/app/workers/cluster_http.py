"""Requests of the HTTP port of a node to other nodes of its cluster.

A request for a shard of another node goes to the port of that shard for relayed clients, and
begins with a frame (`flowguard.broker.workers.arrivals`). The worker there passes the bytes on to
its own HTTP. So a node asks another one without a port, an address or a token of its own.
"""

from typing import Final, final

import trio

from flowguard.app.workers.cluster_duty import ClusterDuty
from flowguard.app.workers.seat import HANDOVER, address_of
from flowguard.broker.workers.fd_frames import frame_bytes
from flowguard.broker.workers.handover import HTTP_HEAD
from flowguard.broker.workers.worker_addresses import connect

CONNECT_S: Final = 2.0
"""Maximum wait for a connection to another node, seconds."""


@final
class OtherNodes:
    def __init__(self, duty: ClusterDuty) -> None:
        self._duty = duty
        self.status = duty.status

    async def connect(self, index: int) -> trio.abc.Stream | None:
        """Return a connection to the HTTP of a shard that another node runs, or None."""
        node = self._duty.remote.get(index)
        if node is None:
            return None
        sock = connect(address_of(node, index, HANDOVER))
        if sock is None:
            return None
        stream: trio.abc.Stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        if (tls := self._duty.tls) is not None:
            stream = trio.SSLStream(
                stream, tls.connecting, server_hostname=node.name, https_compatible=True
            )
        try:
            with trio.fail_after(CONNECT_S):
                await stream.send_all(frame_bytes(HTTP_HEAD, b""))
        except (trio.TooSlowError, trio.BrokenResourceError):
            await trio.aclose_forcefully(stream)
            return None
        return stream

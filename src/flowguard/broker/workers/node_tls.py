"""TLS between the nodes of a cluster: each end proves a certificate of one authority.

The node that connects also requires that the other certificate names the host of that node's
`cluster.address`.
"""

import ssl
from contextlib import suppress
from typing import Final, final

from flowguard.address import parse_address
from flowguard.broker.layers.layer import ByteStream
from flowguard.broker.layers.tls import TlsFiles, TlsStream
from flowguard.errors import ConfigError
from flowguard.network_settings import ClusterSettings
from flowguard.node.connect.accept_state import OnFault

FLIGHTS_MAX: Final = 4
"""Number of times that each end of a handshake sends, at most."""


@final
class NodeTls:
    def __init__(self, files: TlsFiles, host: str) -> None:
        """`host` is that of this node. Raises ConfigError."""
        self._files = files
        self._host = host
        self.use(self.read())

    def read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Read the files as they are now: for connections from other nodes, and to them.

        Raises ConfigError, also if other nodes would reject the certificate.
        """
        contexts = self._files.load(), self._files.load_for_connecting()
        try:
            _try_handshake(*contexts, self._host)
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", None) or error.reason
            raise ConfigError(
                f"cluster.cert {self._files.cert}: other nodes would reject it: {why}; it must "
                f"name the host {self._host} of cluster.address, and cluster.ca must have signed it"
            ) from error
        return contexts

    def use(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        """Use these contexts for new connections; others keep theirs."""
        self._accepting, self.connecting = contexts

    def accept(self, sock: ByteStream, on_fault: OnFault) -> TlsStream:
        return TlsStream(sock, self._accepting, on_fault)

    def connect(self, sock: ByteStream, host: str, on_fault: OnFault) -> TlsStream:
        """Start the handshake on a socket that is connected or will be. Raises OSError."""
        return TlsStream.connect(sock, self.connecting, host, on_fault)


def node_tls_of(cluster: ClusterSettings) -> NodeTls | None:
    """Return the TLS of a node, or None if the settings name no certificate.

    Raises ConfigError.
    """
    if cluster.cert is None or cluster.key is None or cluster.address is None:
        return None
    files = TlsFiles(cluster.cert, cluster.key, cluster.ca)
    return NodeTls(files, parse_address(cluster.address)[0])


def _try_handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Let a node connect with itself in memory. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(FLIGHTS_MAX):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()

"""A listening socket, with the layers between its connections and MQTT."""

import errno
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

from flowguard.address import Address, Scheme
from flowguard.broker.layers.layer import ByteStream, Layer
from flowguard.broker.layers.proxied import ProxiedStream
from flowguard.broker.layers.tls import TlsFiles, TlsKeeper
from flowguard.errors import ConfigError, UnreadyError
from flowguard.network_settings import ListenerSettings, NetworkSettings
from flowguard.node.connect.accept_state import LayerFault, OnFault

BACKLOG: Final = 4_096
"""Length of the listen queue: SYNs that do not fit are sent again after a second."""
WebSocketMaker = Callable[[ByteStream, Layer | None, OnFault], Layer]
_Wanted = tuple[ListenerSettings, Address, TlsFiles | None, WebSocketMaker | None]
OF_TLS: Final = ("cert", "key", "certs", "chain", "client_ca", "crl")
"""Settings of a listener that apply to TLS only."""
DEFAULT: Final = ListenerSettings(address="127.0.0.1:1883")


@final
class Doorway:
    """A listening socket with at most `connections_max` connections at once (None: no limit)."""

    __slots__ = (
        "_is_shared",
        "_on_fault",
        "_proxies",
        "_websocket",
        "connections_max",
        "count",
        "settings",
        "sock",
        "tls",
    )

    def __init__(
        self,
        sock: socket.socket,
        settings: ListenerSettings = DEFAULT,
        files: TlsFiles | None = None,
        websocket: WebSocketMaker | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        """`websocket` makes that layer, or None without one. `is_shared`: other processes also
        listen on the socket. Raises ConfigError for a certificate that cannot be used."""
        self.sock = sock
        self._is_shared = is_shared
        self.settings = settings
        self.connections_max = settings.connections_max
        self._proxies = settings.proxies
        self._websocket = websocket
        self.count = 0
        """Open connections that this listener has accepted."""
        self._on_fault: OnFault = lambda *_: None
        self.tls = None if files is None else TlsKeeper(files, self._on_layer_fault)

    def report(self, on_fault: OnFault) -> None:
        """Call `on_fault` with the cause of each failed layer from now on."""
        self._on_fault = on_fault

    def _on_layer_fault(self, fault: LayerFault, stream: object, why: str) -> None:
        self._on_fault(fault, stream, why)

    def layer(self, sock: socket.socket) -> Layer | None:
        """Return the top layer on a socket accepted by this listener, or None for plain MQTT."""
        below: Layer | None = None
        if self._proxies:
            below = ProxiedStream(
                sock,
                self._proxies,
                self._on_layer_fault,
                takes_names=self.settings.proxies_check_certificates,
            )
        if self.tls is not None:
            below = self.tls.accept(below or sock)
        if self._websocket is None:
            return below
        return self._websocket(below or sock, below, self._on_layer_fault)

    @property
    def has_layers(self) -> bool:
        """True if a handshake or header comes before MQTT."""
        return bool(self.tls is not None or self._websocket is not None or self._proxies)

    @property
    def handshake_bytes(self) -> int:
        """Maximum memory of an unfinished handshake besides that of its connection."""
        return 0 if self.tls is None else self.tls.handshake_bytes

    @property
    def is_full(self) -> bool:
        """True if this listener has reached its maximum number of connections."""
        return self.connections_max is not None and self.count >= self.connections_max

    @property
    def scheme(self) -> Scheme:
        """The scheme of the address, which names the layers."""
        return Address.parse(self.settings.address).scheme

    @property
    def address(self) -> Address:
        """The address that clients connect to, with the port that the system has chosen."""
        name = self.sock.getsockname()
        if isinstance(name, str):
            return Address(self.scheme, name, None)
        host, port, *_ = name
        return Address(self.scheme, host, port)

    def shut(self) -> None:
        """Let the kernel reject connections until `open`. A Unix socket and a port that the system
        has chosen could not be opened again, so they stay as they are."""
        if Address.parse(self.settings.address).port:
            self.sock.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """Listen again after `shut`."""
        if Address.parse(self.settings.address).port:
            self.sock.listen(BACKLOG)

    def close(self) -> None:
        """Stop listening; remove a Unix socket's file unless other processes listen on it."""
        if self.sock.fileno() < 0:
            return
        name = self.sock.getsockname()
        self.sock.close()
        if isinstance(name, str) and name and not self._is_shared:
            Path(name).unlink(missing_ok=True)


def check_doorways(network: NetworkSettings) -> int:
    """Check that listeners can be opened as configured; return their number. Raises ConfigError."""
    return len(_wanted(network))


def _wanted(network: NetworkSettings) -> list[_Wanted]:
    """Read and check the settings of all listeners before one is opened. Raises ConfigError."""
    wanted = [
        (
            listener,
            Address.parse(listener.address),
            _files(listener, network),
            _websocket(listener, network),
        )
        for listener in network.listeners or (DEFAULT,)
    ]
    if all([files is None for _, _, files, _ in wanted]):
        _check_unused(network)
    for listener, address, files, _ in wanted:
        _check_exposed(listener, address, files, network)
    for _, _, files, _ in wanted:
        if files is not None:
            files.load()
    return wanted


def _check_unused(network: NetworkSettings) -> None:
    """Raise ConfigError for settings of client certificates if no listener uses TLS."""
    if network.client_ca is not None:
        raise ConfigError(
            f"network.client_ca: {network.client_ca} has no effect, as no listener speaks TLS: "
            "use mqtts:// or wss://, or remove it"
        )
    if network.crl is not None:
        raise ConfigError(
            f"network.crl: {network.crl} has no effect, because no listener asks for client "
            "certificates: use mqtts:// or wss://, and set network.client_ca"
        )


def open_doorways(network: NetworkSettings) -> list[Doorway]:
    """Open all configured listeners; raises ConfigError, and OSError with the address in it."""
    wanted = _wanted(network)
    doorways: list[Doorway] = []
    try:
        for listener, address, files, websocket in wanted:
            try:
                sock = _bound(address, ipv6_only=listener.ipv6_only)
            except OSError as error:
                error.filename = address.place
                raise
            doorways.append(Doorway(sock, listener, files, websocket))
    except BaseException:
        for doorway in doorways:
            doorway.close()
        raise
    return doorways


def shared_doorways(network: NetworkSettings, descriptors: Sequence[int]) -> list[Doorway]:
    """Listen on the sockets that the supervisor has opened, in the order of the settings.

    Raises ConfigError.
    """
    return [
        Doorway(socket.socket(fileno=fd), listener, files, websocket, is_shared=True)
        for fd, (listener, _, files, websocket) in zip(descriptors, _wanted(network), strict=True)
    ]


def _check_exposed(
    listener: ListenerSettings, address: Address, files: TlsFiles | None, network: NetworkSettings
) -> None:
    """Raise ConfigError for a listener beyond loopback without TLS or authentication, unless the
    settings explicitly allow it."""
    if address.is_local:
        return
    if not address.scheme.has_tls and not network.allow_plaintext:
        raise ConfigError(
            f"{address}: other machines reach it, and passwords and messages could be read on the "
            "way: use mqtts:// or wss://, or say --allow-plaintext"
        )
    certificates = listener.proxies_check_certificates
    asks = network.asks or certificates or (files is not None and files.client_ca is not None)
    if not (asks or network.allow_anonymous):
        raise ConfigError(
            f"{address}: other machines can connect without authentication: "
            "use --password-file FILE, --token-keys FILE or, with TLS, --client-ca FILE, "
            "or say --allow-anonymous"
        )


def _files(listener: ListenerSettings, network: NetworkSettings) -> TlsFiles | None:
    """Return the TLS files of a listener, or None if it uses no TLS. Raises ConfigError."""
    if Address.parse(listener.address).scheme.has_tls:
        return TlsFiles.of(listener, network)
    said = [name for name in OF_TLS if getattr(listener, name)]
    if said:
        raise ConfigError(
            f"{listener.address}: it speaks no TLS, so its {', '.join(said)} would do nothing: "
            "use mqtts:// or wss://"
        )
    return None


def _websocket(listener: ListenerSettings, network: NetworkSettings) -> WebSocketMaker | None:
    """Return the maker of a listener's WebSocket layer, or None. Raises ConfigError."""
    if not Address.parse(listener.address).scheme.has_websocket:
        return None
    try:
        # Imported on demand: only WebSocket listeners need the websockets package.
        from flowguard.broker.layers.websocket import OriginRule, WebSocketStream
    except ModuleNotFoundError as error:
        raise UnreadyError(
            f"{listener.address}: WebSocket needs the extra websockets: "
            "pip install 'flowguard-mqtt[websockets]'"
        ) from error
    rule = OriginRule(frozenset(network.origins))
    return lambda sock, below, on_fault: WebSocketStream(sock, below, rule, on_fault)


def listen(host: str, port: int, *, ipv6_only: bool = False) -> socket.socket:
    """Return a listening TCP socket; port 0 selects a free one. Accepted sockets inherit
    options."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:  # The system's default varies.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ipv6_only)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _bound(address: Address, *, ipv6_only: bool) -> socket.socket:
    if address.port is not None:
        return listen(address.host, address.port, ipv6_only=ipv6_only)
    return _listen_unix(Path(address.host))


def _listen_unix(path: Path) -> socket.socket:
    """Return a listening Unix socket; the file of a dead process at its path is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_over(path):
                raise
            path.unlink()
            sock.bind(str(path))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_left_over(path: Path) -> bool:
    """True if it is the file of a Unix socket on which no process listens."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False

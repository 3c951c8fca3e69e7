"""ProxiedStream: a socket that begins with the client's address, by PROXY protocol v1 or v2.

Only addresses that are configured as proxies may send this header; the kernel knows the address.
Other connections are closed before a byte is read. No byte after the header is read before a layer
asks for it, so that the layers above find their own first byte.

https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt, section 2
"""

from collections.abc import Collection, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from socket import MSG_DONTWAIT
from typing import Any, Final, NoReturn, Self, final

from flowguard.broker.layers.layer import ByteStream, OnSocket
from flowguard.node.connect.accept_state import LayerFault, OnFault

Network = IPv4Network | IPv6Network
SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
FIRST_BYTES: Final = 12
"""Size of the signature of v2, less than that of any header, bytes."""
FIXED_BYTES: Final = 16
BODY_BYTES_MAX: Final = 2_048
"""Maximum size of a header after its fixed part, bytes. Addresses take 36 bytes; extensions of a
proxy may be much longer, and are ignored."""
LINE: Final = b"PROXY "
LINE_BYTES_MAX: Final = 107
"""Maximum size of a header of v1, bytes."""
LOCAL: Final = 0x20
PROXY: Final = 0x21
TLS: Final = 0x20
COMMON_NAME: Final = 0x22
"""Types of extensions: what the proxy knows of TLS, and within it the name in the certificate."""
HAS_CERTIFICATE: Final = 0b110
"""Bits of `TLS`: the client sent a certificate now, or earlier in a session that it resumes."""
TLS_HEAD_BYTES: Final = 5
ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""Size of an address by family, bytes: TCP over IPv4 and IPv6."""


@final
class ProxiedStream(OnSocket):
    """A layer (`flowguard.broker.layers.layer.Layer`) that knows the client's own address."""

    __slots__ = (
        "_header",
        "_is_trusted",
        "_on_fault",
        "_peer",
        "_takes_names",
        "_trusted",
        "established",
        "identity",
    )

    def __init__(
        self,
        sock: ByteStream,
        trusted: Collection[Network],
        on_fault: OnFault,
        *,
        takes_names: bool = False,
    ) -> None:
        """`trusted`: the proxies that may name the client's address, besides those of this machine
        that use a Unix socket. `takes_names`: they check the certificates of clients, too."""
        super().__init__(sock)
        self._trusted = trusted
        self._on_fault = on_fault
        self._takes_names = takes_names
        self._header = b""
        self._is_trusted = False
        self._peer: tuple[str, int] | None = None
        self.established = False
        self.identity: str | None = None
        """The name in the certificate that the proxy has checked, if it is to be taken."""

    @classmethod
    def handed_over(cls, sock: ByteStream) -> Self:
        """Return the stream of a client that another worker has accepted, or may serve."""
        stream = cls(sock, (), _no_fault)
        stream.established = True
        return stream

    def introduce(self, peer: Sequence[Any] | None, identity: str | None) -> None:
        """Take the address and identity of the client from another worker. Raises LookupError,
        TypeError or ValueError if the address is none."""
        self._peer = None if peer is None else (str(peer[0]), int(peer[1]))
        self.identity = identity

    @property
    def begun(self) -> bool:
        """True at once, because no step is costly."""
        return self.established

    def getpeername(self) -> object:
        """Return the client's address if the proxy has sent it, otherwise the proxy's."""
        return self._peer or self._sock.getpeername()

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        """Return bytes after the header. Raises BlockingIOError, OSError. It also raises OSError if
        the stream ends in the header, so that no layer above counts that again."""
        if not self.established:
            if not self._is_trusted:
                self._check_sender()
            while not self.established:
                self._read_header()
        return self._sock.recv(size_bytes, flags)

    def send(self, data: bytes, flags: int = 0) -> int:
        """Send what fits; return the number of bytes sent."""
        return self._sock.send(data, flags)

    def flush(self) -> bool:
        """Do nothing, because the layer has no output."""
        return True

    def shutdown(self, how: int) -> None:
        """Shut down the sending half."""
        self._sock.shutdown(how)

    def _check_sender(self) -> None:
        name = self._sock.getpeername()
        if isinstance(name, tuple) and not is_within(str(name[0]), self._trusted):
            self._refuse("the address is not in the listener's proxies", LayerFault.UNTRUSTED)
        self._is_trusted = True

    def _read_header(self) -> None:
        """Read the next part of the header. Raises BlockingIOError, ConnectionResetError."""
        wanted_bytes = FIRST_BYTES
        if len(self._header) >= FIXED_BYTES:
            wanted_bytes = FIXED_BYTES + int.from_bytes(self._header[14:16])
        elif len(self._header) >= FIRST_BYTES:
            wanted_bytes = FIXED_BYTES
        is_line = self._header.startswith(LINE)
        if is_line:  # The size of a line is unknown.
            wanted_bytes = max(FIRST_BYTES, len(self._header) + 1)
        data = self._sock.recv(wanted_bytes - len(self._header), MSG_DONTWAIT)
        if not data:
            self._refuse("the proxy closed before its PROXY header ended", LayerFault.LEFT)
        self._header += data
        if is_line:
            self._take_line()
            return
        first = self._header[:FIRST_BYTES]
        if not SIGNATURE.startswith(first) and not LINE.startswith(first[: len(LINE)]):
            self._refuse("the first bytes are no header of the PROXY protocol")
        if len(self._header) < FIXED_BYTES:
            return
        body_bytes = int.from_bytes(self._header[14:16])
        if self._header[12] not in (LOCAL, PROXY) or body_bytes > BODY_BYTES_MAX:
            self._refuse(
                "the PROXY header has an unknown version, an unknown command or too many bytes"
            )
        if len(self._header) == FIXED_BYTES + body_bytes:
            self._take(self._header[12], self._header[13], self._header[FIXED_BYTES:])

    def _take_line(self) -> None:
        """Use a header of v1 if it is complete; if it names no address, keep the proxy's own."""
        if not self._header.endswith(b"\r\n"):
            if len(self._header) >= LINE_BYTES_MAX:
                self._refuse("the PROXY header of v1 has too many bytes")
            return
        _, *words = self._header.decode("ascii", "replace").split()
        try:
            if words[0] != "UNKNOWN":
                _, host, _, port, _ = words
                self._peer = (str(ip_address(host)), int(port))
        except (IndexError, ValueError):
            self._refuse("the PROXY header of v1 has no address of a client")
        self._header = b""
        self.established = True

    def _take(self, command: int, family: int, body: bytes) -> None:
        """Use the complete header; for anything but TCP, keep the proxy's own address."""
        size_bytes = ADDRESS_BYTES.get(family)
        if command == PROXY and size_bytes is not None:
            if len(body) < 2 * size_bytes + 4:
                self._refuse("the PROXY header ends within the client's address")
            port = int.from_bytes(body[2 * size_bytes : 2 * size_bytes + 2])
            self._peer = (str(ip_address(body[:size_bytes])), port)
            if self._takes_names:
                self.identity = _name_in(body[2 * size_bytes + 4 :])
        self._header = b""
        self.established = True

    def _refuse(self, why: str, fault: LayerFault = LayerFault.NOT_PROXIED) -> NoReturn:
        self._on_fault(fault, self, why)
        raise ConnectionResetError(why)


def _name_in(extensions: bytes) -> str | None:
    """Return the name in the client's certificate, or None if there is none that is valid."""
    tls = _extension(extensions, TLS)
    is_valid = len(tls) >= TLS_HEAD_BYTES and not any(tls[1:TLS_HEAD_BYTES])
    if not is_valid or not tls[0] & HAS_CERTIFICATE:
        return None
    try:
        return _extension(tls[TLS_HEAD_BYTES:], COMMON_NAME).decode() or None
    except UnicodeDecodeError:
        return None


def _extension(data: bytes, wanted: int) -> bytes:
    """Return the value of the first extension of a type, or b"" if there is none."""
    while len(data) >= 3:
        end = 3 + int.from_bytes(data[1:3])
        if data[0] == wanted and len(data) >= end:
            return data[3:end]
        data = data[end:]
    return b""


def _no_fault(fault: LayerFault, stream: object, why: str) -> None:
    raise AssertionError(why)


def is_within(host: str, networks: Collection[Network]) -> bool:
    """True if an address is in one of the networks; also for IPv4 addresses mapped to IPv6."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any([address in network for network in networks])

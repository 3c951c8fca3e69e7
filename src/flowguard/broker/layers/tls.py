"""TLS: an object with the methods of a socket, over the memory buffers of the standard library.

A `recv` decrypts all data that came, so that no plaintext is left without an event. A `send`
encrypts one record at a time while the socket takes them. So at most one record, and output of TLS
itself, waits outside of the outbox. `PENDING_MAX_BYTES` bounds it, whatever the peer sends or
reads.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from socket import SHUT_WR
from typing import Any, Final, Self, final

from flowguard.broker.layers.layer import Answering, ByteStream, end_reading
from flowguard.errors import ConfigError
from flowguard.lines import read
from flowguard.network_settings import ListenerSettings, NamedCertificate, NetworkSettings
from flowguard.node.connect.accept_state import LayerFault, OnFault

RECORD_BYTES: Final = 16 * 1024
"""Maximum plaintext of a TLS record, bytes."""
HELLO_MAX_BYTES: Final = 16 * 1024
"""Maximum size of a ClientHello. OpenSSL takes 131 KB, and allocates them as soon as it knows the
length. Key shares, tickets and names of today need 2 to 4 KB."""
HELLO_RECORDS_MAX: Final = 64
"""Maximum number of records that a ClientHello is divided into."""
CHAIN_MAX_BYTES: Final = 32 * 1024
"""Maximum size of the client's part of a handshake after our answer, above all certificates."""
HANDSHAKE_BYTES: Final = 48 * 1024
"""Memory of an unfinished handshake that the finished one does not need (OpenSSL 3.0)."""
CHAIN_BYTES: Final = 192 * 1024
"""Limit if the client has to send certificates: OpenSSL allocates up to 133 KB for them as soon
as it knows their length."""
HANDSHAKE: Final = 22
CHANGE_CIPHER: Final = 20
RECORD_HEAD_BYTES: Final = 5
RETRY: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a ServerHello that asks for another ClientHello (RFC 8446, 4.1.3)."""
VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
FROM_CLIENT: Final = ", sent by the client"
NOT_TLS: Final = (
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "WRONG_VERSION_NUMBER",
    "UNEXPECTED_MESSAGE",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "BAD_RECORD_TYPE",
    "UNKNOWN_PROTOCOL",
)
NOT_AGREED: Final = (
    "UNSUPPORTED_PROTOCOL",
    "NO_SHARED_CIPHER",
    "NO_SUITABLE_KEY_SHARE",
    "NO_SUITABLE_SIGNATURE_ALGORITHM",
    "NO_SHARED_SIGNATURE_ALGORITHMS",
    "NO_SUITABLE_GROUPS",
    "INAPPROPRIATE_FALLBACK",
    "VERSION_TOO_LOW",
    "NO_CIPHERS_SPECIFIED",
)


@final
@dataclass(frozen=True, slots=True)
class TlsFiles:
    cert: Path
    key: Path
    client_ca: Path | None = None
    crl: Path | None = None
    version_min: str = "1.2"
    named: tuple[NamedCertificate, ...] = ()
    """Certificates for clients that ask for their names; all others get `cert`."""
    chain: Path | None = None

    @classmethod
    def of(cls, listener: ListenerSettings, network: NetworkSettings) -> "TlsFiles":
        """Return the listener's own files, or else the common ones; raises ConfigError without
        one."""
        cert, key = listener.cert or network.cert, listener.key or network.key
        if cert is None or key is None:
            raise ConfigError(
                f"{listener.address}: TLS needs a certificate: --cert FILE --key FILE, "
                "or network.cert and network.key"
            )
        client_ca, crl = listener.client_ca or network.client_ca, listener.crl or network.crl
        if crl is not None and client_ca is None:
            raise ConfigError(
                f"{listener.address}: network.crl has no effect, because the listener asks for no "
                "client certificate: set network.client_ca, too"
            )
        if listener.chain is not None and client_ca is not None:
            raise ConfigError(
                f"{listener.address}: authorities in chain would sign clients, too, besides those "
                "in client_ca: append them to cert instead"
            )
        version_min = network.tls_version_min
        return cls(cert, key, client_ca, crl, version_min, listener.certs, listener.chain)

    def load(self) -> ssl.SSLContext:
        """Load the files for new connections; raises ConfigError that names an invalid file."""
        context = self._load(self.cert, self.key)
        named = {each.server_name: self._load(each.cert, each.key) for each in self.named}
        if named:

            def choose(tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
                chosen = by_name(named, name)
                if chosen is not None:
                    tls.context = chosen

            context.sni_callback = choose
        return context

    def load_for_connecting(self) -> ssl.SSLContext:
        """Load the files for connections that this end opens; raises ConfigError."""
        return self._load(self.cert, self.key, ssl.PROTOCOL_TLS_CLIENT)

    def _load(
        self, cert: Path, key: Path, protocol: int = ssl.PROTOCOL_TLS_SERVER
    ) -> ssl.SSLContext:
        for path in (cert, key, self.chain, self.client_ca, self.crl):
            if path is not None:
                read(path)
        context = ssl.SSLContext(protocol)
        context.minimum_version = VERSIONS[self.version_min]
        context.options |= ssl.OP_NO_RENEGOTIATION
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 1
        try:
            # OpenSSL would ask for the password of an encrypted key at the terminal.
            context.load_cert_chain(cert, key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{cert} and {key} are no certificate and its key, unencrypted, PEM: "
                f"{_reason(error)}"
            ) from error
        if self.chain is not None:
            _trust(context, self.chain)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _trust(context, self.client_ca)
        if self.crl is not None:
            _trust(context, self.crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context


def by_name(named: Mapping[str, ssl.SSLContext], name: str | None) -> ssl.SSLContext | None:
    """Return the context for a server name or its wildcard (`*.`), or None."""
    if name is None:
        return None
    name = name.lower().removesuffix(".")
    return named.get(name) or named.get("*." + name.partition(".")[2])


@final
class TlsKeeper:
    """The certificates of a listener, which may be reloaded while it serves."""

    __slots__ = ("_context", "_files", "_on_fault")

    def __init__(self, files: TlsFiles, on_fault: OnFault) -> None:
        """Raises ConfigError; `on_fault` is called with the cause of each failed connection."""
        self._files = files
        self._context = files.load()
        self._on_fault = on_fault

    def read(self) -> ssl.SSLContext:
        """Read the files as they are now; raises ConfigError."""
        return self._files.load()

    def use(self, context: ssl.SSLContext) -> None:
        """Use this context for new connections; others keep theirs."""
        self._context = context

    @property
    def requires_certificate(self) -> bool:
        return self._files.client_ca is not None

    @property
    def handshake_bytes(self) -> int:
        """Maximum memory of an unfinished handshake besides that of its connection."""
        return CHAIN_BYTES if self.requires_certificate else HANDSHAKE_BYTES

    def accept(self, sock: ByteStream) -> "TlsStream":
        """Return the server's end of TLS on an accepted socket."""
        return TlsStream(sock, self._context, self._on_fault)


@final
class TlsStream(Answering):
    """TLS on a stream (`broker.layers.layer`)."""

    __slots__ = (
        "_chain_bytes",
        "_context",
        "_hello",
        "_incoming",
        "_outgoing",
        "_server",
        "_tls",
        "begun",
        "established",
        "identity",
    )

    def __init__(
        self,
        sock: ByteStream,
        context: ssl.SSLContext,
        on_fault: OnFault,
        server: str | None = None,
    ) -> None:
        """`server`: the name that the other end must prove, or None at the server's end."""
        super().__init__(sock, on_fault)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._context = context
        self._server = server
        self._tls: ssl.SSLObject | None = None
        """TLS state, or None until data came, so that an unread link takes no memory for it."""
        self._hello: bytes | None = b"" if server is None else None
        """The start of a ClientHello that is not complete, or None if none is expected."""
        self._chain_bytes = 0
        self.begun = False
        self.established = False
        self.identity: str | None = None

    @classmethod
    def connect(
        cls,
        sock: ByteStream,
        context: ssl.SSLContext,
        server: str,
        on_fault: OnFault,
    ) -> Self:
        """Return the client's end on a connected socket; start the handshake."""
        stream = cls(sock, context, on_fault, server)
        try:
            stream._begin().do_handshake()
        except ssl.SSLWantReadError:
            stream.flush()
        return stream

    def _begin(self) -> ssl.SSLObject:
        """Return the TLS state; create it on first use."""
        if self._tls is None:
            self._tls = self._context.wrap_bio(
                self._incoming,
                self._outgoing,
                server_side=self._server is None,
                server_hostname=self._server,
            )
        return self._tls

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        """Return plaintext of the data that came, at most a record more than `size_bytes`.

        Output of TLS itself is sent. If plaintext follows the end of the handshake, the output is
        left for the next `send` or `flush`.
        """
        data = self._sock.recv(size_bytes, flags)
        if not data:
            if not self.established and not self._said_last:
                self._fail(LayerFault.LEFT, self._why_left())
            return b""
        if self._said_last:
            raise BlockingIOError  # Data after our close are ignored.
        is_hello = self._hello is not None
        data = self._greeted(data)
        self._incoming.write(data)
        tls = self._begin()
        was_established, plain = self.established, b""
        try:
            if not was_established:
                tls.do_handshake()
                self.identity = _identity(tls)
                self.established = True
            plain = self._decrypted(tls)
        except ssl.SSLWantReadError as error:
            self._goes_on(len(data), is_hello=is_hello)
            raise BlockingIOError from error
        except ssl.SSLError as error:
            fault = _fault(error)
            self._fail(fault, f"TLS: {_text(error)}" + FROM_CLIENT * (fault is LayerFault.ALERT))
            raise
        except UnicodeDecodeError as error:
            why = "TLS: a name in the client's certificate is no text"
            self._fail(LayerFault.CERTIFICATE, why)
            raise ConnectionResetError(why) from error
        finally:
            self.begun = self.begun or self._outgoing.pending > 0
            if was_established or not plain:
                self._leave()  # Any step may have produced an answer or an alert.
            # Else the last handshake output is sent with the answer to the plaintext.
        return plain

    def _why_left(self) -> str:
        """Return what the log says of a client that closed; "" if it had sent nothing."""
        if self._tls is None and not self._hello:
            return ""  # A load balancer's health check does so every few seconds.
        if not self.begun:
            return "TLS: the client closed within its ClientHello"
        return "TLS: the client closed after the broker's answer; does it trust the certificate?"

    def _greeted(self, data: bytes) -> bytes:
        """Return the data that came, a ClientHello only once it is complete.

        Raises BlockingIOError before that, and ConnectionResetError if it is too long.
        """
        if self._hello is None:
            return data
        hello = self._hello = self._hello + data
        is_complete, is_long = _hello_of(hello)
        if is_long:
            self._fail(LayerFault.NOT_TLS, "TLS: the ClientHello is too long")
            raise ConnectionResetError("the ClientHello is too long")
        if not is_complete:
            raise BlockingIOError
        self._hello = None
        return hello

    def _goes_on(self, size_bytes: int, *, is_hello: bool) -> None:
        """Continue the handshake; raises ConnectionResetError if it may not have more bytes."""
        if not is_hello:
            self._chain_bytes += size_bytes
            if self._chain_bytes > CHAIN_MAX_BYTES and self._server is None:
                self._fail(LayerFault.CERTIFICATE, "TLS: the client's certificates are too long")
                raise ConnectionResetError("the client's certificates are too long")
            return
        answer = self._outgoing.read()
        if not answer:  # OpenSSL has taken a record for something else, and would wait for more.
            self._fail(LayerFault.NOT_TLS, "TLS: the first bytes are no ClientHello")
            raise ConnectionResetError("the first bytes are no ClientHello")
        self.begun = True
        self._pending += answer
        start = RECORD_HEAD_BYTES + 6
        if answer[start : start + len(RETRY)] == RETRY:
            self._hello = b""

    def _decrypted(self, tls: ssl.SSLObject) -> bytes:
        pieces: list[bytes] = []
        try:
            # A record is read whole: without ciphertext there is no plaintext. Asking OpenSSL would
            # cost as
            # much as a record.
            while self._incoming.pending:
                piece = tls.read(RECORD_BYTES)
                if not piece:  # close_notify
                    end_reading(self._sock)
                    return b"".join(pieces)
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        if not pieces:
            raise BlockingIOError
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes, flags: int = 0) -> int:
        """Encrypt and send what the socket takes, in records; encrypted data count as sent."""
        if self._pending and not self.flush():
            raise BlockingIOError
        tls = self._tls
        if tls is None or not self.established:
            raise BlockingIOError
        view = memoryview(data)
        sent_bytes = 0
        while sent_bytes < len(view):
            sent_bytes += tls.write(view[sent_bytes : sent_bytes + RECORD_BYTES])
            if not self.flush():
                break
        return sent_bytes

    def flush(self) -> bool:
        """Send ciphertext; return False if some is left."""
        if self._outgoing.pending:
            self._pending += self._outgoing.read()
        return super().flush()

    def shutdown(self, how: int) -> None:
        """Send close_notify and end the stream; ignore later data."""
        if how == SHUT_WR and not self._said_last:
            self._said_last = True
            if not self.established:
                self._on_fault(LayerFault.LATE, self, "TLS: the handshake did not end in time")
            if self._tls is not None:
                try:
                    self._tls.unwrap()
                except ssl.SSLError:
                    pass  # OpenSSL waits for the peer's close_notify, or there was no handshake.
                self.flush()
        self._sock.shutdown(how)


def _hello_of(data: bytes) -> tuple[bool, bool]:
    """Return whether a ClientHello is complete, and whether it is too long.

    Other bytes are complete: OpenSSL rejects them.
    """
    start, size_bytes, head = 0, 0, b""
    for _ in range(HELLO_RECORDS_MAX):
        body = start + RECORD_HEAD_BYTES
        if len(data) < body:
            return False, False
        end = body + int.from_bytes(data[body - 2 : body])
        if data[start] == HANDSHAKE:
            head = (head + data[body : min(end, body + 4)])[:4]
            size_bytes += min(end, len(data)) - body
            if len(head) == 4:
                wanted_bytes = 4 + int.from_bytes(head[1:])
                if size_bytes >= wanted_bytes or wanted_bytes > HELLO_MAX_BYTES:
                    return True, wanted_bytes > HELLO_MAX_BYTES
        elif data[start] != CHANGE_CIPHER or end != body + 1:
            return True, False
        start = end
    return False, True


def _fault(error: ssl.SSLError) -> LayerFault:
    """Return the kind of an OpenSSL error."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE" in reason:
        return LayerFault.CERTIFICATE
    if "ALERT" in reason:
        return LayerFault.ALERT
    if reason in NOT_AGREED:
        return LayerFault.NOT_AGREED
    return LayerFault.NOT_TLS if reason in NOT_TLS else LayerFault.BROKEN


def _identity(tls: ssl.SSLObject) -> str | None:
    """Return the common name of the peer's certificate, or its first alternative name."""
    found: Mapping[str, Any] = tls.getpeercert() or {}
    for part in found.get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    for _, value in found.get("subjectAltName", ()):
        return str(value)
    return None


def _trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"{path} holds no certificates, PEM: {_reason(error)}") from error


def _text(error: ssl.SSLError) -> str:
    return getattr(error, "verify_message", None) or _reason(error)


def _reason(error: ValueError | ssl.SSLError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")

"""SCRAM-SHA-256 ([RFC 7677]): a password is proved without being sent, at little cost.

Stored is a verifier of the password, `SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY`, as in
PostgreSQL. The client computes the iterations, the broker three hashes. The package scramp handles
the messages; channel bindings are not offered.
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b, pbkdf2_hmac, sha256
from typing import Final, Self, final
from unicodedata import normalize

from scramp import ScramException, ScramMechanism
from scramp.utils import saslprep

from flowguard.errors import UnprovedError

METHOD: Final = "SCRAM-SHA-256"
PREFIX: Final = f"{METHOD}$"
ITERATIONS: Final = 100_000
"""Iterations of a new verifier: 30 ms of a Xeon core, for each login and each guess."""
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 10_000_000
SALT_BYTES: Final = 16
SALT_BYTES_MIN: Final = 12
CHARACTERS_MAX: Final = 512
"""Maximum size of a message or password, which costs 5 us before anything is proved."""


@final
@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """The stored part of a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a verifier; raises ValueError."""
        count, _, rest = text.removeprefix(PREFIX).partition(":")
        salt, _, keys = rest.partition("$")
        stored, _, server = keys.partition(":")
        found = cls(
            int(count), *[b64decode(part, validate=True) for part in (salt, stored, server)]
        )
        sizes = (len(found.stored_key), len(found.server_key))
        if not ITERATIONS_MIN <= found.iterations <= ITERATIONS_MAX or sizes != (32, 32):
            raise ValueError("iterations or keys are out of bounds")
        if len(found.salt) < SALT_BYTES_MIN:
            raise ValueError("the salt is short")
        return found

    @classmethod
    def of(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> Self:
        """Make the verifier of a password; raises UnprovedError for forbidden characters."""
        salted = pbkdf2_hmac("sha256", _prepared(password), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        return cls(iterations, salt, sha256(client_key).digest(), server_key)

    @classmethod
    def of_nobody(
        cls, user: str, key: bytes, iterations: int, salt_bytes: int = SALT_BYTES
    ) -> Self:
        """Make a verifier for an unknown name, always the same, which no password matches."""
        drawn = [blake2b(user.encode(), key=key, salt=part).digest() for part in (b"s", b"c", b"k")]
        return cls(iterations, drawn[0][:salt_bytes], drawn[1][:32], drawn[2][:32])

    def verify(self, password: bytes) -> bool:
        """Return True if this is the password, sent in plain text; takes as long as for a
        client."""
        try:
            made = ScramVerifier.of(password.decode(), self.salt, self.iterations)
        except (UnprovedError, UnicodeDecodeError):
            return False
        return hmac.compare_digest(made.stored_key, self.stored_key)

    def __str__(self) -> str:
        salt, stored, server = [
            b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        ]
        return f"{PREFIX}{self.iterations}:{salt}${stored}:{server}"


@final
class ScramServer:
    """The server's end of one authentication: `first`, then `final`."""

    def __init__(self, verifier_of: Callable[[str], ScramVerifier]) -> None:
        """`verifier_of` returns the verifier of the user that the client names."""
        self.user = ""
        """User name of the client; proved once `final` has returned."""
        self._verifier_of = verifier_of
        self._server = ScramMechanism(METHOD).make_server(self._known)

    def _known(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = str(user)
        found = self._verifier_of(self.user)
        return found.salt, found.stored_key, found.server_key, found.iterations

    def first(self, data: bytes | None) -> bytes:
        """Answer the client's first message; raises UnprovedError."""
        try:
            self._server.set_client_first(_text(data))
            return str(self._server.get_server_first()).encode()
        except (ScramException, ValueError) as error:
            raise UnprovedError("SCRAM: the first message is malformed") from error

    def final(self, data: bytes | None) -> bytes:
        """Answer the client's proof with the server's; raises UnprovedError if it is wrong."""
        try:
            self._server.set_client_final(_text(data))
            return str(self._server.get_server_final()).encode()
        except (ScramException, ValueError) as error:
            raise UnprovedError("SCRAM: the proof is wrong") from error


def _text(data: bytes | None) -> str:
    if data is None:
        raise ValueError("there is no message")
    return _bounded(data.decode())


def _bounded(text: str) -> str:
    """Return the text unless it is too long; raises ValueError."""
    # The preparation starts with this form, in which one character may become eighteen.
    if max(len(text), len(normalize("NFKC", text[: CHARACTERS_MAX + 1]))) > CHARACTERS_MAX:
        raise ValueError("the text is too long")
    return text


def _prepared(password: str) -> bytes:
    try:
        return str(saslprep(_bounded(password))).encode()
    except ValueError as error:
        raise UnprovedError("a password that is too long") from error
    except ScramException as error:
        raise UnprovedError("a password with characters that are not allowed") from error

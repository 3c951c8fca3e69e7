"""Passwords: a file of users and hashes, one `user:hash` per line.

New hashes are argon2id (`$argon2id$...`). Hashes of Mosquitto are also read: `$7$` is PBKDF2 with
SHA-512, `$6$` a single salted SHA-512. SCRAM verifiers are read and written; their users may prove
the password without sending it, or send it. No hash appears in any error.

A file with SCRAM verifiers has a key, in a comment. The challenge for an unknown user is derived
from it, so it is the same after a restart and on every broker that reads the file.
"""

import hmac
import secrets
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, pbkdf2_hmac, sha512
from pathlib import Path
from typing import Final, Self, final

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from flowguard.errors import ConfigError, UnprovedError
from flowguard.identity.scram import ITERATIONS, PREFIX, ScramVerifier
from flowguard.lines import BLANKS, lines_of, read, text_of

ARGON2: Final = "$argon2id$"
PBKDF2: Final = "$7$"
SHA512: Final = "$6$"
KINDS: Final = (ARGON2, PBKDF2, SHA512, PREFIX)
MEMORY_KIB: Final = 19 * 1024
"""Memory and passes of a new hash, which takes 35 ms of a Xeon core."""
PASSES: Final = 2
KEY: Final = "#flowguard-key "
"""Prefix of the line with the key."""
HASHER: Final = PasswordHasher(PASSES, MEMORY_KIB, parallelism=1, type=Type.ID)


@final
@dataclass(frozen=True)
class PasswordFile:
    hashes: Mapping[str, str]
    key: bytes = b""
    """Secret of the file that gives unknown users a fixed hash, so that they look like known
    ones."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; raises ConfigError."""
        return cls.parse(text_of(read(path), str(path)), str(path))

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Read the lines of a file called `name`; raises ConfigError with the number of a line."""
        hashes: dict[str, str] = {}
        key = b""
        for number, line in enumerate(lines_of(text), start=1):
            if line.startswith(KEY):
                key = line.removeprefix(KEY).encode()[: blake2b.MAX_KEY_SIZE]
            if not line or line.startswith("#"):
                continue
            user, colon, hashed = [part.strip(BLANKS) for part in line.partition(":")]
            if not colon or not user or not hashed.startswith(KINDS):
                raise ConfigError(
                    f"{name}, line {number}: expected USER:HASH, a hash of argon2id ($argon2id$), "
                    f"of SCRAM ({PREFIX}) or of Mosquitto ($7$, $6$); "
                    "flowguard passwd add USER --file FILE writes one"
                )
            if user in hashes:
                raise ConfigError(f"{name}, line {number}: there is another {user!r} above it")
            if hashed.startswith(PREFIX):
                _check(hashed, f"{name}, line {number}")
            hashes[user] = hashed
        if hashes and not key:  # The next `with_user` writes it to the file.
            key = blake2b("".join(hashes.values()).encode(), digest_size=32).hexdigest().encode()
        return cls(hashes, key)

    def verify(self, user: str, password: bytes) -> bool:
        """Return True for the user's password. It takes as long for an unknown user.

        An unknown name is checked against the hash of a known user, always the same for that name.
        """
        hashed = self.hashes.get(user)
        if hashed is not None:
            return _is_right(hashed, password)
        if self.hashes:
            _is_right(self._drawn(user, self._all), password)
        return False

    @cached_property
    def _all(self) -> list[str]:
        return list(self.hashes.values())

    @cached_property
    def _verifiers(self) -> list[str]:
        return [hashed for hashed in self._all if hashed.startswith(PREFIX)]

    def _drawn(self, user: str, hashes: list[str]) -> str:
        """Choose a known user's entry for an unknown name, always the same."""
        drawn = int.from_bytes(blake2b(user.encode(), key=self.key, digest_size=8).digest())
        return hashes[drawn % len(hashes)]

    @property
    def has_scram(self) -> bool:
        """True if a user can prove a password without sending it."""
        return bool(self._verifiers)

    def scram(self, user: str) -> ScramVerifier:
        """Return the verifier of a user; an unknown user gets one that no password matches."""
        hashed = self.hashes.get(user, "")
        if hashed.startswith(PREFIX):
            return ScramVerifier.parse(hashed)
        if not self._verifiers:
            return ScramVerifier.of_nobody(user, self.key, ITERATIONS)
        alike = ScramVerifier.parse(self._drawn(user, self._verifiers))
        return ScramVerifier.of_nobody(user, self.key, alike.iterations, len(alike.salt))

    def with_user(self, user: str, password: bytes, *, scram: bool = False) -> "PasswordFile":
        """Return the file with this user or its new password; raises ConfigError."""
        is_unfit = not user or user != user.strip() or ":" in user or user.startswith("#")
        if is_unfit or not user.isprintable():
            raise ConfigError(
                f"{user!r}: a user has a name without : and control characters, which does not "
                "begin with # or a blank, nor end with a blank"
            )
        key = self.key or secrets.token_hex().encode()
        # The salt that was sent for the unknown name before, so that the new user is not visible.
        salt = PasswordFile(self.hashes, key).scram(user).salt
        hashed = _verifier(password, salt) if scram else HASHER.hash(password)
        return PasswordFile({**self.hashes, user: hashed}, key)

    def without_user(self, user: str) -> "PasswordFile":
        """Return the file without this user; raises ConfigError if it is unknown."""
        if user not in self.hashes:
            raise ConfigError(f"there is no user {user!r}")
        rest = {name: hashed for name, hashed in self.hashes.items() if name != user}
        return PasswordFile(rest, self.key)

    def text(self) -> str:
        """Return the text of the file, for `parse`."""
        key = f"{KEY}{self.key.decode()}\n" if self.key and self.has_scram else ""
        return key + "".join(f"{user}:{hashed}\n" for user, hashed in self.hashes.items())


def _check(hashed: str, where: str) -> None:
    try:
        ScramVerifier.parse(hashed)
    except ValueError as error:
        raise ConfigError(f"{where}: this is no verifier of SCRAM-SHA-256") from error


def _verifier(password: bytes, salt: bytes) -> str:
    try:
        return str(ScramVerifier.of(password.decode(), salt))
    except (UnprovedError, UnicodeDecodeError) as error:
        raise ConfigError(
            "SCRAM does not allow this password: it is too long, or has control characters"
        ) from error


def _is_right(hashed: str, password: bytes) -> bool:
    try:
        if hashed.startswith(PREFIX):
            return ScramVerifier.parse(hashed).verify(password)
        if hashed.startswith(ARGON2):
            return bool(HASHER.verify(hashed, password))
        return _is_mosquittos(hashed, password)
    except (VerificationError, InvalidHashError, ValueError, OverflowError):
        return False


def _is_mosquittos(hashed: str, password: bytes) -> bool:
    _, kind, *fields = hashed.split("$")
    if kind == "7":
        iterations, salt, expected = fields
        made = pbkdf2_hmac("sha512", password, b64decode(salt), int(iterations))
    else:
        salt, expected = fields
        made = sha512(password + b64decode(salt)).digest()
    return hmac.compare_digest(made, b64decode(expected))

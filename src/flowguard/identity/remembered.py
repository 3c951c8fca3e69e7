"""Remembered: correct passwords and tokens are recognised without checking them again.

A reconnecting crowd costs its hashes once per start of the broker. Stored is a keyed BLAKE2 of
user, password and the hash in the file of users, or of the token. The key is known only to this
process and never written. Failed proofs are not stored.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, final

from flowguard.access.rights import Principal

ENTRIES_MAX: Final = 100_000
DIGEST_BYTES: Final = 16
TOKENS_BYTES_MAX: Final = 16 * 1024 * 1024
TOKEN_BYTES: Final = 400
"""Memory of a remembered token besides its names, rounded up."""


@final
class RememberedPasswords:
    """The last `ENTRIES_MAX` users with a correct password.

    `hashed` is the user's entry in the file of users. With another entry the password is not known,
    so a reload costs new hashes only for users whose entry changed.
    """

    __slots__ = ("_entries_max", "_key", "_marks")

    def __init__(self, key: bytes, entries_max: int = ENTRIES_MAX) -> None:
        self._key = key
        self._entries_max = entries_max
        self._marks: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def knows(self, user: str, password: bytes, hashed: str) -> bool:
        if self._marks.get(user) != self._mark(user, password, hashed):
            return False
        self._marks.move_to_end(user)
        return True

    def add(self, user: str, password: bytes, hashed: str) -> None:
        self._marks[user] = self._mark(user, password, hashed)
        self._marks.move_to_end(user)
        if len(self._marks) > self._entries_max:
            self._marks.popitem(last=False)

    def _mark(self, user: str, password: bytes, hashed: str) -> bytes:
        names = [name.encode() for name in (user, hashed)]
        told = b"".join([len(name).to_bytes(4) + name for name in names]) + password
        return blake2b(told, key=self._key, digest_size=DIGEST_BYTES).digest()


@final
class RememberedTokens:
    """The last accepted tokens, until they expire; bounded in number and memory."""

    __slots__ = ("_bytes_max", "_entries_max", "_key", "_principals", "size_bytes")

    def __init__(
        self, key: bytes, entries_max: int = ENTRIES_MAX, bytes_max: int = TOKENS_BYTES_MAX
    ) -> None:
        self._key = key
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._principals: OrderedDict[bytes, Principal] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._principals)

    def whose(self, token: bytes, user: str | None, now_s: float) -> Principal | None:
        """Return the principal of a known and valid token; `user`: the name that its client
        states."""
        mark = self._mark(token)
        principal = self._principals.get(mark)
        if principal is None or (user and user != principal.user):
            return None
        if principal.expires_at_s is None or principal.expires_at_s <= now_s:
            self._drop(mark)
            return None
        self._principals.move_to_end(mark)
        return principal

    def add(self, token: bytes, principal: Principal) -> None:
        mark = self._mark(token)
        self._drop(mark)
        self._principals[mark] = principal
        self.size_bytes += _principal_bytes(principal)
        while len(self._principals) > self._entries_max or self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._principals)))

    def forget(self) -> None:
        """Forget all, because the file of keys has changed."""
        self._principals.clear()
        self.size_bytes = 0

    def _drop(self, mark: bytes) -> None:
        principal = self._principals.pop(mark, None)
        if principal is not None:
            self.size_bytes -= _principal_bytes(principal)

    def _mark(self, token: bytes) -> bytes:
        return blake2b(token, key=self._key, digest_size=DIGEST_BYTES).digest()


def _principal_bytes(principal: Principal) -> int:
    names = (principal.user, *principal.roles)
    return TOKEN_BYTES + sum([name.__sizeof__() for name in names])

"""RememberedPasswords: right passwords are recognised without hashing them again.

A crowd that reconnects pays for its hashes once per start of the broker. Kept is a keyed BLAKE2 of
user and password, under a key that only this process knows and that is never written; wrong ones
are not kept.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, final

ENTRIES_MAX: Final = 100_000
DIGEST_BYTES: Final = 16


@final
class RememberedPasswords:
    """The last `ENTRIES_MAX` users whose password was right."""

    __slots__ = ("_entries_max", "_key", "_marks")

    def __init__(self, key: bytes, entries_max: int = ENTRIES_MAX) -> None:
        self._key = key
        self._entries_max = entries_max
        self._marks: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def knows(self, user: str, password: bytes) -> bool:
        """Whether this password of that user was right."""
        if self._marks.get(user) != self._mark(user, password):
            return False
        self._marks.move_to_end(user)
        return True

    def add(self, user: str, password: bytes) -> None:
        """It was right."""
        self._marks[user] = self._mark(user, password)
        self._marks.move_to_end(user)
        if len(self._marks) > self._entries_max:
            self._marks.popitem(last=False)

    def forget(self) -> None:
        """The file of users has changed."""
        self._marks.clear()

    def _mark(self, user: str, password: bytes) -> bytes:
        name = user.encode()
        told = len(name).to_bytes(4) + name + password
        return blake2b(told, key=self._key, digest_size=DIGEST_BYTES).digest()

"""A record of a commit over several buckets of a Redis Cluster, which is written before it.

Buckets may have different primaries, so a broker may die when only some have their part. The next
broker completes such a commit before it takes over the store. So a packet identifier is never
stored without the message that it came with, nor the other way round.

    list of words, each after its u32 length, big endian: token, function, number of the commit;
    then for each call the number of its keys, keys, the number of its words, words
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.stores.redis.connection.link import Call

_LENGTH: Final = Struct(">I")


@dataclass(frozen=True, slots=True)
class Intent:
    """All arguments of a commit, so that any broker can complete it."""

    token: bytes
    """The token of the owner that began the commit."""
    function: bytes
    number: int
    calls: Sequence[Call]
    """Keys, and arguments after the commit's number."""

    def encode(self) -> bytes:
        words: list[bytes | str | int | float] = [self.token, self.function, self.number]
        for keys, arguments in self.calls:
            words += (len(keys), *keys, len(arguments), *arguments)
        found: list[bytes] = []
        for word in words:
            text = word if isinstance(word, bytes) else str(word).encode()
            found += (_LENGTH.pack(len(text)), text)
        return b"".join(found)


def decode_intent(value: bytes) -> Intent:
    """Return the commit. Raises `CorruptionError`."""
    words = _words(value)
    try:
        token, function, number = next(words), next(words), int(next(words))
        calls: list[Call] = []
        for count in words:
            keys = [next(words) for _ in range(int(count))]
            calls.append((keys, [next(words) for _ in range(int(next(words)))]))
    except (StopIteration, RuntimeError, ValueError, error) as problem:
        raise CorruptionError(f"the commit that was begun last is damaged: {problem}") from problem
    return Intent(token, function, number, calls)


def _words(value: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(value):
        (length,) = _LENGTH.unpack_from(value, at)
        at += _LENGTH.size + length
        if at > len(value):
            raise ValueError("it is cut short")
        yield value[at - length : at]

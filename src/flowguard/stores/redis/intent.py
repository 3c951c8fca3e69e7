"""A commit over several buckets as it is written down in a Redis Cluster, before it is done.

Each bucket has a primary of its own, so that a broker may die when some have their part and others
have not. Whoever begins next does such a commit to its end before it takes anything over: a packet
identifier is never there without the message that it came with, nor the other way round.

    list of words, each after its u32 length, big endian: token, function, number of the commit;
    then for each call the count of its keys, keys, the count of its words, words
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
    """All that it takes to do a commit, by whoever it is."""

    token: bytes
    """The owner that meant to do it."""
    function: bytes
    number: int
    calls: Sequence[Call]
    """Arguments begin after the commit's number."""

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
    """The commit. Raises `CorruptionError`."""
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

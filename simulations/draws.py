"""Draws: random numbers by address instead of in sequence, so that no draw depends on another.

The draw of client 7 for its third retry is a function of the seed, the purpose and (7, 3),
whatever was drawn before. So two policies meet the same clients to the last jitter, although
under one of them a client retries ten times and under the other never; and a stream costs no
memory.

The function is SplitMix64 over a key: fast, even enough for jitter and arrival times, and not
cryptographic. (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.)
"""

from hashlib import blake2b
from math import log
from random import Random
from typing import Final, final

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_ODD: Final = 0xD1B54A32D192ED03
_UNIT: Final = 1.0 / (1 << 53)


def _key_of(seed: int, purpose: str) -> int:
    """A key of 64 bits; not `hash`, which differs from process to process."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@final
class Draws:
    """Draws for one purpose, addressed by client and by a count of its draws."""

    __slots__ = ("_key",)

    def __init__(self, seed: int, purpose: str) -> None:
        self._key = _key_of(seed, purpose)

    def uniform(self, whose: int, count: int = 0) -> float:
        z = (self._key + whose * _GOLDEN + count * _ODD) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) * _UNIT

    def exponential(self, whose: int, count: int = 0) -> float:
        return -log(1.0 - self.uniform(whose, count))


def random_for(seed: int, purpose: str) -> Random:
    """A sequence of its own for a user that draws in order: a node, for its tick and its hints."""
    return Random(_key_of(seed, purpose))

"""Bytes that many holders share, so that a million small queues are as harmless as one large one.

`Budget` is first come, first served; its caller decides which holder gives way. `FairBudget` is for
bytes that cannot be taken away again, because they were promised, or sent.

Theory of operation of `FairBudget`: three quarters of the limit are first come, first served. Above
them, a holder may not hold more than it leaves to each of the others: with R bytes left after that
and N holders, R / N. So large holders are rejected first, and small ones still get bytes. Bytes
beyond a share may be taken for a moment, if the holder is certain to give them back soon: up to
seven eighths of the limit (`has_spare`).

Any number of holders, one after the other and each as greedy as allowed, always leave at least 1 /
(8 (N + 1)) of the limit. (Number the holders by the time at which each took last. When the j-th did
there were at least j, so it has at most 1 / (j + 1) of what those before it leave; of the last
eighth 1/2, then 2/3 of that, ... then N / (N + 1) remain.)

Bytes that were promised before are held even above the limit (`hold`). The limit may also shrink.
"""

from typing import final


@final
class Budget:
    """`used_bytes` of at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve bytes. Return False, and reserve nothing, if they do not fit."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return bytes that were taken."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0


@final
class FairBudget:
    """`used_bytes` of at most `limit_bytes`, held by `holders_count` holders.

    It counts the holders, but the caller knows them and passes the bytes that each holds.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = 0
        self._spare_bytes = 0
        self.common_bytes = 0
        """Up to this number of bytes, the shares of holders do not count."""
        self.used_bytes = 0
        self.holders_count = 0
        self.limit_bytes = limit_bytes

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.common_bytes = limit_bytes - limit_bytes // 4
        self._spare_bytes = limit_bytes - limit_bytes // 8

    def share_bytes(self, held_bytes: int) -> int:
        """Return the bytes that a holder of `held_bytes` may add beyond `common_bytes`; none if <=
        0.

        It may have as much as it leaves to each holder, itself one of them.
        """
        holders_count = self.holders_count if held_bytes else self.holders_count + 1
        left_bytes = self._limit_bytes - self.used_bytes
        return (left_bytes + held_bytes) // (holders_count + 1)

    def fits(self, size_bytes: int, held_bytes: int) -> bool:
        """Return True if a holder of `held_bytes` may take `size_bytes` more."""
        if self.used_bytes + size_bytes <= self.common_bytes:
            return True
        return held_bytes + size_bytes <= self.share_bytes(held_bytes)

    def has_spare(self, size_bytes: int) -> bool:
        """Return True if `size_bytes` are free, independently of the holder's share.

        For small amounts, and a holder that has given back nearly all that it ever had.
        """
        return self.used_bytes + size_bytes <= self._spare_bytes

    def take(self, size_bytes: int, held_bytes: int) -> bool:
        """Reserve for a holder of `held_bytes`. Return False, and reserve nothing, if they do not
        fit."""
        if not self.fits(size_bytes, held_bytes):
            return False
        self.hold(size_bytes, held_bytes)
        return True

    def hold(self, size_bytes: int, held_bytes: int) -> None:
        """Count bytes that are held already, even above the limit. `held_bytes` is the amount
        before."""
        if not held_bytes and size_bytes:
            self.holders_count += 1
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int, held_bytes: int) -> None:
        """Return bytes that were taken, or held. `held_bytes` is the amount after."""
        if not held_bytes and size_bytes:
            self.holders_count -= 1
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
        assert self.holders_count >= 0

"""Bytes that many holders share, so that a million small queues are as harmless as one large one.

`Budget` is first come, first served; whoever has one decides who gives way. `FairBudget` is for
what cannot be taken away again, because it was promised, or sent.

Theory of operation of that one. Three quarters belong to whoever comes first. From there on nobody
may come to hold more than it leaves to each: with R bytes left after that and N holders, R / N. So
who holds much is refused first, and who holds little still finds room. What is larger than a share
may have a place for a moment, where its holder is known to give it back soon: up to seven eighths
(`has_spare`).

However many come, one after the other and each as greedy as it may be, some of it is always left:
at least 1 / (8 (N + 1)) of the limit. (Number the holders by when each took last. When the j-th did
there were at least j, so it has at most 1 / (j + 1) of what those before it leave; of the last
eighth 1/2, then 2/3 of that, ... then N / (N + 1) remain.)

What was promised before is held whatever the limit is (`hold`); then there may be less, or nothing.
"""

from typing import final


@final
class Budget:
    """`used_bytes` of at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve; False (and nothing reserved) when it would not fit."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0


@final
class FairBudget:
    """`used_bytes` of at most `limit_bytes`, in the hands of `holders_count`.

    It knows how many hold something, not who and how much: whoever asks says what it holds.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = 0
        self._spare_bytes = 0
        self.common_bytes = 0
        """Up to here nobody looks at who holds what."""
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
        """Bytes that a holder of `held_bytes` may add, beyond `common_bytes`; 0 or less: none.

        It may have as much as it leaves to each holder, itself one of them.
        """
        holders_count = self.holders_count if held_bytes else self.holders_count + 1
        left_bytes = self._limit_bytes - self.used_bytes
        return (left_bytes + held_bytes) // (holders_count + 1)

    def fits(self, size_bytes: int, held_bytes: int) -> bool:
        """Whether one who holds `held_bytes` may have so many more."""
        if self.used_bytes + size_bytes <= self.common_bytes:
            return True
        return held_bytes + size_bytes <= self.share_bytes(held_bytes)

    def has_spare(self, size_bytes: int) -> bool:
        """Whether there is room for so many, whatever the share of who gets them is.

        For a little at a time, of one who has given back nearly all that it ever had.
        """
        return self.used_bytes + size_bytes <= self._spare_bytes

    def take(self, size_bytes: int, held_bytes: int) -> bool:
        """Reserve for one who holds `held_bytes`; False (and nothing reserved) where it may not."""
        if not self.fits(size_bytes, held_bytes):
            return False
        self.hold(size_bytes, held_bytes)
        return True

    def hold(self, size_bytes: int, held_bytes: int) -> None:
        """Count in what has its place already, whatever the limit is; `held_bytes`: before it."""
        if not held_bytes and size_bytes:
            self.holders_count += 1
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int, held_bytes: int) -> None:
        """Return what was taken, or held; `held_bytes`: after it."""
        if not held_bytes and size_bytes:
            self.holders_count -= 1
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
        assert self.holders_count >= 0

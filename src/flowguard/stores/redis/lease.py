"""Lease: one broker at a time owns a prefix. The owner renews the lease, or loses it.

The lease only decides which broker may start. A paused owner cannot write afterwards, because
every commit checks its token.
"""

from collections.abc import Callable
from typing import Any, Final, final

import structlog

from flowguard.errors import DataLostError, LeasedError, StallError
from flowguard.stores.redis.connection.cluster import RedisCluster
from flowguard.stores.redis.connection.link import RedisLink
from flowguard.stores.redis.keys import KeyNames
from flowguard.stores.redis.lua.functions import CLAIM, HOLD, LEAVE

RENEWALS: Final = 4
"""Number of renewals within the time of a lease."""
DOUBT_SHARE: Final = 0.5
"""Share of the lease without a renewal after which another broker may be the owner soon. A pause of
this broker that takes the other half is found (`flowguard.broker.commits.presence`)."""
LOOK_S: Final = 0.1
"""Interval of checks of another broker's lease."""

log = structlog.get_logger()


@final
class Lease:
    """The lease of a prefix, for the broker called `name`, with a unique `token`."""

    def __init__(
        self,
        link: RedisLink | RedisCluster,
        names: KeyNames,
        token: str,
        name: str,
        lease_s: float,
    ) -> None:
        self._link = link
        self._meta = names.meta
        self._intent = names.intent
        self._token = token
        self._name = name
        self._lease_s = lease_s
        self._due_s = 0.0
        self._asked_s = 0.0
        """Time when the last renewal was sent."""
        self._renewed_s = 0.0
        """Time when the last renewal was sent that has succeeded."""
        self._is_awaited = False
        self.server_ahead_s = 0.0
        """How far Redis's clock was ahead of this broker's at the last renewal, seconds."""
        self.epoch = 0
        """Number of owners that the prefix has had, including this one."""

    def claim(
        self,
        sleep: Callable[[float], None],
        prepare: Callable[[], str],
        *,
        takeover: bool,
        on_wait: Callable[[str, bool], None] | None = None,
    ) -> None:
        """Take the lease; while another broker has it, wait for its end.

        `prepare` is called when the lease is free, before any write; its result is stored with the
        lease. `on_wait` is called at each check with the broker that this one waits for and True,
        or with an error and False. Without `takeover` this waits only for the lease of a dead
        broker: it raises `LeasedError` as soon as the other broker renews the lease. If Redis is
        unavailable, it raises `StallError` before it has seen another broker, and waits afterwards.
        """
        self._is_awaited = takeover
        runs: tuple[str, ...] = ()
        lease_ms = round(self._lease_s * 1_000)
        shortest_ms = lease_ms
        grace_s = 0.0
        watch = _Watch(self._meta.decode(), self._link, on_wait)
        while True:
            words: list[str | int] = [self._token, self._name, lease_ms, *runs]
            try:
                ((is_free, other, left_ms, *epoch),) = self._link.call(CLAIM, [self._meta], words)
                if is_free and not runs and grace_s <= 0.0:
                    runs = (prepare(),)
                    continue
            except StallError as error:
                watch.sees_nothing(error)
                grace_s = self._lease_s  # The other broker could not renew it meanwhile.
            else:
                if is_free and runs:
                    (self.epoch,) = epoch
                    watch.ends()
                    return
                if not is_free:
                    self._check_patience(other, left_ms, shortest_ms, takeover=takeover)
                    shortest_ms = min(shortest_ms, left_ms)
                watch.sees("" if is_free or not takeover else other.decode())
                grace_s -= LOOK_S
            runs = ()  # Prepare again: the other broker may have died in the middle of a commit.
            sleep(LOOK_S)

    def _check_patience(
        self, other: bytes, left_ms: int, shortest_ms: int, *, takeover: bool
    ) -> None:
        if not takeover and left_ms > shortest_ms:
            raise LeasedError(
                f"{other.decode()} has {self._meta.decode()} in {self._link.where}",
                ": stop it, choose another redis.prefix, or start with --takeover to wait for "
                "its end",
            )

    def renewal(self, now_s: float) -> tuple[bytes | str | int, ...]:
        """Return the command that renews the lease; `check` takes its answer."""
        self._asked_s = now_s
        self._due_s = now_s + self._lease_s / RENEWALS
        return (b"FCALL", HOLD, 1, self._meta, self._token)

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def is_doubtful(self, now_s: float) -> bool:
        """Return True if another broker may have the lease by now, and promise what this one does
        not know. Without `takeover` none waits for it."""
        return self._is_awaited and now_s - self._renewed_s > DOUBT_SHARE * self._lease_s

    def check(self, answer: Any) -> None:
        """Raises `LeasedError` if another broker has the lease, `DataLostError` if none has."""
        is_mine, other, *server_ms = answer
        if not (is_mine or other):
            raise DataLostError(
                f"{self._link.where} has {self._meta.decode()} no more: what was stored with it "
                "was deleted, or lost"
            )
        if not is_mine:
            raise LeasedError(
                f"{other.decode()} has taken over {self._meta.decode()} in "
                f"{self._link.where} while this broker was silent"
            )
        self._renewed_s = self._asked_s
        self.server_ahead_s = int(server_ms[0]) / 1_000 - self._asked_s

    def leave(self, *, is_done: bool = True) -> None:
        """Release the lease, so that the next broker need not wait. `is_done` is True if the last
        commit is complete."""
        words = (self._token, 1) if is_done else (self._token,)
        self._link.call(LEAVE, [self._meta, self._intent], words)


@final
class _Watch:
    """Reports of a wait for another broker's lease, to the log and to `on_wait`."""

    def __init__(
        self,
        prefix: str,
        link: RedisLink | RedisCluster,
        on_wait: Callable[[str, bool], None] | None,
    ) -> None:
        self._prefix = prefix
        self._link = link
        self._on_wait = on_wait
        self._holder = ""
        """The broker whose lease this one waits for, or "" if none was seen."""
        self._is_blind = False
        """True if Redis did not answer the last check."""

    def sees(self, holder: str) -> None:
        """Report that `holder` has the lease; "" if it is free."""
        self._sees_again()
        if holder not in ("", self._holder):
            self._holder = holder
            log.info(
                "standby: starts when the other broker ends",
                other=holder,
                prefix=self._prefix,
                server=self._link.where,
            )
        if self._holder and self._on_wait is not None:
            self._on_wait(f"{self._holder} has {self._prefix} in {self._link.where}", True)

    def sees_nothing(self, why: StallError) -> None:
        """Report that Redis is unavailable, which concerns the other broker as well. Raises `why`
        if no other broker was seen."""
        if not self._holder:
            raise why
        if not self._is_blind:
            self._is_blind = True
            log.warning("standby: cannot read the lease from redis", why=str(why))
        if self._on_wait is not None:
            self._on_wait(str(why), False)

    def ends(self) -> None:
        self._sees_again()
        if self._holder:
            log.info("standby: takes over the store", prefix=self._prefix, of=self._holder)

    def _sees_again(self) -> None:
        if self._is_blind:
            self._is_blind = False
            log.info("standby: redis available again", server=self._link.where)

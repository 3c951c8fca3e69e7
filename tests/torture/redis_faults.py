"""Faults of Redis under brokers that are killed: what it may do to them, by name.

kill       SIGKILL of the server, while it serves a broker or together with it
fail-over  SIGKILL of a primary of which a replica takes the place, at once
partition  the two are cut off from each other before that, for a while
pause      the server stands still (SIGSTOP) for ten seconds, twice as long as an answer may take
flush      it forgets all functions
full       it has no memory left, for two seconds
second     another broker wants the prefix, and has to be refused
split      in a Redis Cluster, a primary stands still just when a broker is killed: of a commit over
           several buckets that one has its part later, or never
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from flowguard.config import Settings
from flowguard.errors import LockedError
from tests.support.redis_cluster import PRIMARIES, RedisCluster, redis_cluster
from tests.support.redis_pair import RedisPair
from tests.support.redis_server import ALWAYS, EVERY_SECOND, RedisServer, needs_redis, redis_server
from tests.torture.run import Torture
from tests.torture.stores import REDIS_FILE
from tests.torture.verdict import Moment

PAUSE_S: Final = 10.0
FULL_S: Final = 2.0
"""Twice the time that a broker needs to notice it, and to notice its end."""
FULL_BYTES: Final = 64 * 1024
CUT_S: Final = 0.5
SPLIT_S: Final = 0.03
LEVELS: Final = {
    "memory": {},
    "os": EVERY_SECOND,
    "fsync": ALWAYS,
    "replicated": {},
    "fsync+replicated": ALWAYS,
}
"""Settings of the servers, by what the broker promises."""
PAIRS: Final = ("fail-over", "partition")
WITH_BROKER: Final = ("kill", "fail-over")
"""Half of those befall a broker that lives on, half come together with its death."""


class Place(Protocol):
    """The place of the servers."""

    @property
    def unix_url(self) -> str: ...


@contextmanager
def place_for(fault: str, level: str, folder: Path) -> Iterator[Any]:
    """Yield the servers of a fault: one, a pair, or a cluster."""
    needs_redis()
    settings = LEVELS[level]
    if fault == "split":
        with redis_cluster(folder, settings) as cluster:
            yield cluster
    elif fault in PAIRS:
        pair = RedisPair(folder, settings)
        try:
            pair.start()
            until_whole(pair, time.sleep)
            yield pair
        finally:
            pair.remove()
    else:
        with redis_server(folder, settings) as server:
            yield server


def until_whole(pair: RedisPair, wait: Callable[[float], object]) -> None:
    while not pair.is_whole():
        wait(0.02)


class RedisTorture(Torture):
    """A run on servers that have a fault in half of the brokers' lives, or in every one."""

    def __init__(
        self,
        folder: Path,
        place: Place,
        *,
        fault: str = "kill",
        level: str = "fsync",
        layout: str = "stream",
        pause_s: float = PAUSE_S,
        on_kill: Callable[[Any], None] = lambda verdict: None,
        **how: Any,
    ) -> None:
        (folder / REDIS_FILE).write_text(f"{place.unix_url} {level} {layout}")
        is_full = fault == "full"
        super().__init__(folder, store="redis", refuses=is_full, on_kill=self._with_it, **how)
        self._place = place
        self._pause_s = pause_s
        self._tell = on_kill
        self._name = fault
        self._fault = FAULTS[fault]
        self._is_cut = False
        self.fault_count = 0

    @property
    def refused_count(self) -> int:
        """Number of messages that did not fit."""
        return self._ledger.refused_count

    @property
    def _server(self) -> RedisServer:
        assert isinstance(self._place, RedisServer)
        return self._place

    @property
    def _pair(self) -> RedisPair:
        assert isinstance(self._place, RedisPair)
        return self._place

    def _with_it(self, verdict: Any) -> None:
        """A broker has been killed; without it and its server nothing is written again."""
        self._tell(verdict)
        if self._is_cut:
            self.fail_over()
        elif self._name in WITH_BROKER and self._random.random() < 0.5:
            self._go_wrong()

    def _load(self, seconds: float) -> None:
        super()._load(seconds / 2)
        if self._name not in WITH_BROKER or self._random.random() < 0.5:
            self._go_wrong()
        super()._load(seconds / 2)

    def _end(self) -> None:
        if self._is_cut:
            self.fail_over()
        super()._end()

    def _kill(self, moment: Moment) -> None:
        if self._name != "split" or moment is not Moment.LOAD:
            super()._kill(moment)
            return
        assert isinstance(self._place, RedisCluster)
        node = self._random.choice(self._place.nodes[:PRIMARIES])
        node.pause()
        try:
            self._turns_until(time.monotonic() + SPLIT_S)
            super()._kill(moment)
        finally:
            node.resume()
        self.fault_count += 1

    def _go_wrong(self) -> None:
        if self._name != "split":
            self._fault(self)
            self.fault_count += 1

    def kill_server(self) -> None:
        self._server.kill()
        self._server.start()

    def fail_over(self) -> None:
        self._pair.fail_over()
        self._is_cut = False
        until_whole(self._pair, self._wait)

    def _wait(self, seconds: float) -> None:
        self._turns_until(time.monotonic() + seconds)

    def cut(self) -> None:
        """In half of the cases the broker sees the end of it."""
        self._pair.cut()
        self._is_cut = True
        self._wait(CUT_S)
        if self._random.random() < 0.5:
            self.fail_over()

    def pause_server(self) -> None:
        self._server.pause()
        try:
            self._wait(self._pause_s)
        finally:
            self._server.resume()

    def flush_functions(self) -> None:
        with self._server.client() as client:
            client.function_flush()

    def fill_server(self) -> None:
        with self._server.client() as client:
            used_bytes = client.info("memory")["used_memory"]
            client.config_set("maxmemory", used_bytes + FULL_BYTES)
            try:
                self._wait(FULL_S)
            finally:
                client.config_set("maxmemory", 0)
        self._wait(FULL_S / 2)

    def begin_second(self) -> None:
        from flowguard.stores.redis import RedisStore

        redis = {"url": self._server.unix_url}
        store = {"kind": "redis", "durability": "memory"}
        settings = Settings.model_validate({"store": store, "redis": redis})
        token = secrets.token_hex(8)
        try:
            RedisStore(settings, token=token, name=token, clock=time.monotonic, sleep=time.sleep)
        except LockedError:
            return
        self._ledger.find("a second broker has begun")

    def split(self) -> None:
        """Comes with the kill."""


FAULTS: Final[dict[str, Callable[[RedisTorture], None]]] = {
    "kill": RedisTorture.kill_server,
    "fail-over": RedisTorture.fail_over,
    "partition": RedisTorture.cut,
    "pause": RedisTorture.pause_server,
    "flush": RedisTorture.flush_functions,
    "full": RedisTorture.fill_server,
    "second": RedisTorture.begin_second,
    "split": RedisTorture.split,
}

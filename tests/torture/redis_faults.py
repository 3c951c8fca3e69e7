"""Faults of a Redis server under brokers that are killed: what it may do to them, by name.

kill     SIGKILL of the server, while it serves a broker or together with it
pause    it stands still (SIGSTOP) for ten seconds, twice as long as an answer is waited for
flush    it forgets all functions
second   another broker wants the prefix, and has to be refused
"""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flowguard.config import Settings
from flowguard.errors import LockedError
from tests.support.redis_server import RedisServer
from tests.torture.run import Torture
from tests.torture.stores import REDIS_FILE

PAUSE_S: Final = 10.0


class RedisTorture(Torture):
    """A run on a server that has a fault in half of the brokers' lives, or in every one."""

    def __init__(
        self,
        folder: Path,
        server: RedisServer,
        *,
        fault: str = "kill",
        level: str = "fsync",
        layout: str = "stream",
        pause_s: float = PAUSE_S,
        on_kill: Callable[[Any], None] = lambda verdict: None,
        **how: Any,
    ) -> None:
        (folder / REDIS_FILE).write_text(f"{server.unix_url} {level} {layout}")
        super().__init__(folder, store="redis", on_kill=self._with_it, **how)
        self._server = server
        self._pause_s = pause_s
        self._tell = on_kill
        self._fault = FAULTS[fault]
        self._kills_server = fault == "kill"
        self.fault_count = 0

    def _with_it(self, verdict: Any) -> None:
        """A broker has been killed; with its server there is nobody who could write again."""
        self._tell(verdict)
        if self._kills_server and self._random.random() < 0.5:
            self._go_wrong()

    def _load(self, seconds: float) -> None:
        super()._load(seconds / 2)
        if not self._kills_server or self._random.random() < 0.5:
            self._go_wrong()
        super()._load(seconds / 2)

    def _go_wrong(self) -> None:
        self._fault(self)
        self.fault_count += 1

    def kill_server(self) -> None:
        self._server.kill()
        self._server.start()

    def pause_server(self) -> None:
        self._server.pause()
        try:
            self._turns_until(time.monotonic() + self._pause_s)
        finally:
            self._server.resume()

    def flush_functions(self) -> None:
        with self._server.client() as client:
            client.function_flush()

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


FAULTS: Final[dict[str, Callable[[RedisTorture], None]]] = {
    "kill": RedisTorture.kill_server,
    "pause": RedisTorture.pause_server,
    "flush": RedisTorture.flush_functions,
    "second": RedisTorture.begin_second,
}

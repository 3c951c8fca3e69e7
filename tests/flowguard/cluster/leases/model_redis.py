"""A real redis-server with the real functions, whose clock is that of the schedule.

- The functions read the time from a key. A mutant changes more of their text; their names stay.
- Each exchange of a store or of a table is a point at which its process may be paused, killed, cut
  off, or lose the answer. An exchange that gave up while Redis was paused is executed later.
- A snapshot in database 1 is the replica that lags. A fail-over swaps the two.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from flowguard.stores.redis.connection.link import RedisLink

CLOCK = "clock"
START_MS = 1_700_000_000_000
TIME = """  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)"""
MODEL_TIME = f"  return tonumber(redis.call('GET', '{CLOCK}'))"
BUCKETS = 4
TextChanges = Sequence[tuple[str, str]]
Exchange = Callable[["RedisLink", Sequence[Any]], list[Any]]


class ModelRedis:
    """The server. It outlives schedules: `begin` empties it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fg-model-"))
        self._server = RedisServer(self._folder).start()
        self.url = self._server.unix_url
        self.client = self._server.client()
        self.now_s = 0.0
        self._text = ""

    def begin(self, changes: TextChanges) -> None:
        """Empty it, and let it have the functions with these changes of their text."""
        from flowguard.stores.redis.lua.functions import LIBRARY

        text = LIBRARY
        for old, new in ((TIME, MODEL_TIME), *changes):
            assert old in text, old
            text = text.replace(old, new)
        if text != self._text:
            self.client.execute_command("FUNCTION", "LOAD", "REPLACE", text)
            self._text = text
        self.client.flushall()
        self.advance(0.0 - self.now_s)

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.client.set(CLOCK, START_MS + round(self.now_s * 1_000))

    def snapshot(self) -> None:
        """The replica has everything up to now, and nothing later."""
        keys = self.client.keys("*")
        with self.client.pipeline(transaction=False) as pipe:
            pipe.execute_command("SELECT", 1)
            pipe.execute_command("FLUSHDB")
            pipe.execute_command("SELECT", 0)
            for key in keys:
                pipe.execute_command("COPY", key, key, "DB", 1)
            pipe.execute()

    def fail_over(self) -> None:
        self.client.execute_command("SWAPDB", 0, 1)
        self.advance(0.0)

    def execute(self, commands: Sequence[Any]) -> list[Any]:
        """Execute commands whose sender waits no longer."""
        with self.client.pipeline(transaction=False) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            found: list[Any] = pipe.execute(raise_on_error=False)
        return found

    def owner(self, prefix: str) -> str:
        token = self.client.hget(f"{prefix}:meta", "token")
        return "" if token is None else str(token.decode())

    def close(self) -> None:
        self.client.close()
        self._server.remove()
        shutil.rmtree(self._folder, ignore_errors=True)


def patched(patch: pytest.MonkeyPatch, through: Callable[[Exchange], Exchange]) -> None:
    """Let all links exchange by `through`, and stores have few buckets, each read on its own."""
    from flowguard.stores.redis import keys, store
    from flowguard.stores.redis.connection import link, server

    patch.setattr(link.RedisLink, "_exchange", through(link.RedisLink._exchange))
    for module in (keys, store, server):
        patch.setattr(module, "BUCKETS", BUCKETS)
    patch.setattr(store, "PAGE", 1)


def calls_of(commands: Sequence[Any], answers: Sequence[Any]) -> list[tuple[bytes, Any, Any]]:
    """Return the functions that were called, with their words and answers."""
    found = []
    for words, answer in zip(commands, answers, strict=True):
        if words[0] == b"FCALL" and not isinstance(answer, Exception):
            found.append((words[1], words, answer))
    return found

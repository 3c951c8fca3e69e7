"""The machine of `tests/flowguard/stores/test_machine.py` on Redis: random batches and faults.

The broker drains or dies; Redis is killed and started again; the answer to a commit is lost, so
that it is sent again; a copy of an old commit arrives late. After each of them the store equals the
one in memory: nothing may be missing, not even Sent and Settle.
"""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from flowguard.errors import StallError
from flowguard.records import PutSession, StoreOp
from flowguard.stores import MemoryStore
from tests.flowguard.stores.redis.benches import new_prefix, open_store
from tests.flowguard.stores.test_machine import CLIENT_IDS, AgainstMemory
from tests.support.redis_server import ALWAYS, RedisServer, redis_server


class RedisAgainstMemory(AgainstMemory):
    """The machine of the module; subclasses set `server`."""

    server: RedisServer

    @initialize()
    def start(self) -> None:
        self.root = self.folder = Path(tempfile.gettempdir())
        self.prefix = new_prefix()
        self.memory = MemoryStore()
        self.appended = {}
        self.clients = set()
        self.synced_bytes = {}
        self.late: list[list[Any]] = []
        """Commits that were done, as they were sent."""
        self.store = self._open()
        self.batch: list[StoreOp] = [PutSession(client_id, 9, None) for client_id in CLIENT_IDS]
        self.commit()

    def _open(self) -> Any:
        return open_store(self.server, self.prefix, durability="fsync", layout=self.layout)

    @rule()
    def maintain_all(self) -> None:
        assert not self.store.maintain()

    @rule(how=st.sampled_from(["closed", "broker", "redis"]))
    def restart(self, how: str) -> None:
        if how == "closed":
            self.store.close()
        elif how == "broker":
            self.store._link.close()
            self.forget_lease()
        else:
            self.server.kill()
            self.server.start()
            return  # The store makes a new connection by itself, with the next thing it is asked.
        self.store = self._open()
        self.late.clear()  # An old token's: see the tests of fencing.

    def forget_lease(self) -> None:
        """Time passes: a lease ends by itself."""
        with self.server.client() as client:
            client.hset(f"{self.prefix}:meta", "beat", 0)

    @rule(lost=st.sampled_from(["question", "answer"]))
    def lose_one(self, lost: str) -> None:
        """The connection breaks before or after Redis has a commit; the same is sent again."""
        link, batch = self.store._link, self.batch
        ask = link.call

        def broken(*words: Any) -> list[Any]:
            if lost == "answer":
                ask(*words)
            link.close()
            raise StallError("cut")

        link.call = broken
        try:
            with suppress(StallError):  # A batch that changes nothing asks nothing.
                self.store.commit(batch)
        finally:
            link.call = ask
        self.commit()  # Commits the same batch.

    def commit(self) -> None:
        link = self.store._link
        ask = link.call

        def seen(*words: Any) -> list[Any]:
            self.late.append(list(words))
            return ask(*words)

        link.call = seen
        try:
            super().commit()
        finally:
            link.call = ask

    @rule(which=st.integers(0, 30))
    def come_late(self, which: int) -> None:
        """A copy of an old commit arrives, from a connection that was given up.

        No caller reads its answer, which may be that a session does not exist any more; it changes
        nothing, as every step proves (`says_what_the_memory_says`).
        """
        if which < len(self.late):
            self.store._link.call(*self.late[which])

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), ALWAYS) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("redis_layout", ["stream", "zset"])
def test_a_store_on_redis_is_the_memory_made_durable(
    server: RedisServer, redis_layout: str
) -> None:
    class Machine(RedisAgainstMemory):
        layout = redis_layout

    Machine.server = server
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=settings.default.max_examples // 3,
            stateful_step_count=40,
            phases=[Phase.generate],
        ),
    )

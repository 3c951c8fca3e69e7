"""Ends of connections: the store learns them late, and not at all if the client is back."""

from collections.abc import Sequence

import pytest

from flowguard.codec.packets import Connect, Disconnect
from flowguard.node.connect.ends import ENDS_AFTER_S, ENDS_PER_TICK
from flowguard.records import PutSession, StoreOp
from flowguard.stores import Fenced
from flowguard.stores.memory import MemoryStore
from flowguard.types import SESSION_NEVER_EXPIRES, Properties
from tests.support.stage import Client, Stage

EXPIRY_S = 3_600


class RememberingStore(MemoryStore):
    """Remembers the sessions that it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.put: list[PutSession] = []

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self.put += [op for op in ops if isinstance(op, PutSession)]
        return super().commit(ops)

    def take(self) -> list[tuple[str, bool]]:
        """Return each client id that was put since the last call, and whether its session ends."""
        put, self.put = self.put, []
        return [(op.client_id, op.ends_at_s is not None) for op in put]


@pytest.fixture
def store() -> RememberingStore:
    return RememberingStore()


@pytest.fixture
def stage(store: RememberingStore) -> Stage:
    return Stage(store=store)


def come(stage: Stage, client_id: str) -> Client:
    return stage.connect_durable(client_id, session_expiry_interval=EXPIRY_S)


def ends_at_s(store: RememberingStore, client_id: str = "c") -> float | None:
    return next(record.ends_at_s for record in store.sessions() if record.client_id == client_id)


def test_a_client_that_is_back_soon_costs_no_end(stage: Stage, store: RememberingStore) -> None:
    come(stage, "c").close()
    stage.advance(ENDS_AFTER_S - 1)
    come(stage, "c")
    stage.advance(2 * ENDS_AFTER_S)
    assert store.take() == [("c", False), ("c", False)]
    assert ends_at_s(store) is None


def test_the_end_of_a_lost_connection_is_stored_later(
    stage: Stage, store: RememberingStore
) -> None:
    come(stage, "c").close()
    lost_s = stage.now_s
    stage.advance(ENDS_AFTER_S - 1)
    assert ends_at_s(store) is None
    stage.advance(2)
    assert ends_at_s(store) == pytest.approx(lost_s + EXPIRY_S)


def test_a_crowd_that_stays_away_is_stored_in_small_parts(
    stage: Stage, store: RememberingStore
) -> None:
    for client in [come(stage, f"c{number}") for number in range(3 * ENDS_PER_TICK)]:
        client.close()
    stage.advance(ENDS_AFTER_S - 1)
    store.take()
    counts = []
    for _ in range(20):
        stage.advance(0.1)
        counts.append(len(store.take()))
    assert [count for count in counts if count] == 3 * [ENDS_PER_TICK]


def test_sessions_that_were_connected_at_a_crash_are_stored_in_small_parts(
    stage: Stage, store: RememberingStore
) -> None:
    for number in range(3 * ENDS_PER_TICK):
        come(stage, f"c{number}")
    store.take()
    stage.restart()
    stage.advance(1)
    assert store.take() == []
    stage.advance(ENDS_AFTER_S)
    assert len(store.take()) == 3 * ENDS_PER_TICK


def test_no_end_is_stored_while_connects_wait(store: RememberingStore) -> None:
    stage = Stage({"flow": {"connects_in_process_max": 1}}, store=store)
    come(stage, "lost").close()
    stage.advance(ENDS_AFTER_S - 0.1)
    stage.hold_commits = True
    for client_id in ("a", "b"):
        stage.attempt(Connect(client_id))
    stage.advance(0.2)
    assert stage.node.guard.gate.buffered == 1
    assert len(stage.node.registry.ends) == 1
    stage.release_commits()
    stage.advance(0.1)
    assert len(stage.node.registry.ends) == 0


def test_a_session_that_expires_first_has_no_end(stage: Stage, store: RememberingStore) -> None:
    stage.connect_durable("c", session_expiry_interval=1).close()
    stage.advance(2 * ENDS_AFTER_S)
    assert store.take() == [("c", False)]
    assert list(store.sessions()) == []


def test_a_session_that_never_expires_has_no_end(stage: Stage, store: RememberingStore) -> None:
    stage.connect_durable("c", session_expiry_interval=SESSION_NEVER_EXPIRES).close()
    stage.advance(2 * ENDS_AFTER_S)
    assert store.take() == [("c", False)]


def test_an_orderly_stop_stores_all_ends(stage: Stage, store: RememberingStore) -> None:
    lost, stays = come(stage, "lost"), come(stage, "stays")
    lost.close()
    stage.node.drain(stage.now_s)
    stays.close()
    assert None not in (ends_at_s(store, "lost"), ends_at_s(store, "stays"))


def test_disconnect_with_another_expiry_is_stored_at_once(
    stage: Stage, store: RememberingStore
) -> None:
    come(stage, "c").send(Disconnect(properties=Properties(session_expiry_interval=7)))
    assert ends_at_s(store) == pytest.approx(stage.now_s + 7)

"""`Node.paused_count`: the number of clients with packets that wait for their window."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowguard.types import Publish
from tests.support.stage import Client, Stage

CLIENTS = 3


def slow(**flow: int) -> tuple[Stage, Client]:
    stage = Stage({"flow": flow})
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p")
    stage.hold_commits = True
    return stage, publisher


def test_a_client_that_has_room_again_does_not_count_while_it_waits_for_its_turn() -> None:
    stage, publisher = slow(window_max=2)
    node = stage.node
    durable = [Publish("t", b"x", qos=1, packet_id=number) for number in (1, 2)]
    publisher.send(*durable, *(Publish("u", b"x") for _ in range(9)))
    assert node.state.paused_count == 1
    batch, stage.held = stage.held, None
    assert batch is not None
    stage.make_durable(batch)
    stage.answer()
    (connection,), node.state.runnable = node.state.runnable, []
    connection.queued = False
    connection.run(stage.now_s)
    assert connection.queued, "its window holds two packets, and nine were left"
    assert node.state.paused_count == 0


class Pauses(RuleBasedStateMachine):
    """Clients publish, leave and come back, with a store that sometimes does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage({"flow": {"window_max": 2, "unfinished_max": 3, "journal_ops_max": 8}})
        self.stage.connect_durable("s").subscribe("t", qos=1)
        self.clients: list[Client | None] = [None] * CLIENTS

    @rule(index=st.integers(0, CLIENTS - 1), count=st.integers(1, 4))
    def publish(self, index: int, count: int) -> None:
        client = self.clients[index]
        if client is None:
            self.stage.release_commits()
            client = self.clients[index] = self.stage.connect(f"c{index}")
        for _ in range(count):
            client.publish("t", b"x", qos=1)

    @rule(index=st.integers(0, CLIENTS - 1))
    def leave(self, index: int) -> None:
        client = self.clients[index]
        if client is not None:
            client.connection.end(None, self.stage.now_s)
            self.stage.settle()
            self.clients[index] = None

    @rule()
    def hold(self) -> None:
        self.stage.hold_commits = True

    @rule()
    def release(self) -> None:
        self.stage.release_commits()

    @rule()
    def pass_time(self) -> None:
        self.stage.advance(0.3)

    @invariant()
    def as_many_as_wait(self) -> None:
        waiting = 0
        for client in self.clients:
            if client is not None and client.connection.inbound is not None:
                waiting += client.connection.inbound.waiting_bytes > 0
        assert self.stage.node.state.paused_count == waiting


Pauses.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestPauses = Pauses.TestCase

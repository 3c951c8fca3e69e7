"""Connections with a node behind them, under any bytes; others use the same node.

Bytes in; an AssertionError, or an exception of any kind, where something is wrong. No time is
measured: a node that would not come to rest runs out of steps.
"""

from typing import Final

from flowguard.codec.packets import Connect, Subscribe
from flowguard.config import Settings
from flowguard.types import MQTT_5, SubscriptionOptions
from tests.fuzz.streams import ANOTHER, HEAD_BYTES, VERSIONS, pieces
from tests.support.stage import Client, Stage

STEPS_MAX: Final = 64
"""Passes of a node beyond one per byte and per answer of its peer."""
SESSIONS_S: Final = 60
SETTINGS: Final = Settings.model_validate(
    {
        "flow": {"window_max": 4, "cost_deliveries": 1, "cost_bytes": 32, "journal_ops_max": 8},
        "session": {
            "packet_size_max": 4_096,
            "receive_maximum": 4,
            "topic_alias_maximum": 2,
            "inflight_max": 2,
            "queue_messages_max": 4,
            "subscriptions_max": 8,
            "topic_levels_max": 8,
            "session_expiry_max_s": SESSIONS_S,
        },
    }
)
STRANGERS_MAX: Final = 3
"""Connections one after another; whether they overlap is an option."""
FILTERS: Final = (("#", SubscriptionOptions(1)), ("$share/g/#", SubscriptionOptions(2)))


class CountingStage(Stage):
    """A stage whose node has to come to rest."""

    steps_left = 0

    def settle(self) -> None:
        take_a_step(self)
        super().settle()

    def _commit(self) -> bool:
        take_a_step(self)
        return super()._commit()


class Stranger(Client):
    """Reads whatever version the server answers in: what it said is up to the fuzzer."""

    def carry(self) -> None:
        self._decoder.version = self.connection.outbound.version
        super().carry()


def take_a_step(stage: CountingStage) -> None:
    """Counts down; a node that does not come to rest runs out of steps."""
    stage.steps_left -= 1
    assert stage.steps_left >= 0, "the node does not come to rest"


def once(data: bytes) -> None:
    """Strangers say these bytes to a node that two others use; it holds nothing afterwards."""
    if len(data) <= HEAD_BYTES:
        return
    options, seed, stream = data[0], data[1], data[HEAD_BYTES:]
    stage = CountingStage(SETTINGS)
    stage.steps_left = STEPS_MAX * (4 + STRANGERS_MAX) + 8 * len(stream)
    others = [stage.connect("a"), stage.connect_durable("b")] if options & 1 else []
    for other in others:
        other.send(Subscribe(1, FILTERS))
    strangers: list[Stranger] = []
    for words in stream.split(ANOTHER)[:STRANGERS_MAX]:
        if strangers and not options & 16:
            strangers[-1].close()
        strangers.append(Stranger(stage, VERSIONS[options & 3] or MQTT_5))
        say(words, strangers[-1], options, seed)
    for stranger in strangers:
        stranger.close()
    stage.advance(0.1)
    assert all([stranger.is_closed for stranger in strangers])
    assert_at_rest(stage, others)


def say(words: bytes, stranger: Stranger, options: int, seed: int) -> None:
    """One conversation, as long as the node listens; perhaps time passes."""
    if options & 4:
        stranger.send(Connect("c", stranger.version, False))
    for piece in pieces(words, seed):
        if not stranger.is_closed and stranger.connection.wants_read:
            stranger.send_bytes(piece)
        if options & 8:
            stranger.stage.advance(0.1)


def assert_at_rest(stage: Stage, others: list[Client]) -> None:
    """Check that no work of the strangers is left in process, and the others are served.

    When these have disconnected, too, and all sessions have ended, nothing is held.
    """
    node = stage.node
    assert node.guard.window.in_process == 0
    assert node.guard.window.in_process_bytes == 0
    assert node.guard.window.active == node.guard.window.permits == 0
    assert not node.guard.starved
    assert node.guard.gate.in_process == node.guard.gate.buffered == 0
    assert node.state.input_holders.budget.used_bytes == 0
    assert node.state.outbox_budget.used_bytes == 0
    assert node.journal.is_empty
    assert node.state.paused_count == 0
    there = sum(not other.is_closed for other in others)
    assert node.connections_count == node.counters.clients_connected == there
    for other in others:
        # A stranger may have used their names.
        if not other.is_closed:
            other.take()
            other.subscribe("x")
            other.close()
    stage.pause(SESSIONS_S)
    stage.advance(0.2)
    assert not node.registry.sessions
    assert node.registry.kept_count == 0
    assert node.state.state_budget.used_bytes == node.state.queue_budget.used_bytes == 0
    assert node.state.inflight.budget.used_bytes == 0

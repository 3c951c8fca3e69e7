"""Recovery from a store that was slow, or stood still, for a while.

The store serves a batch in COMMIT_S + OP_S * work, one at a time, at a rate that a trigger lowers
for some seconds; a small window is costly because few packets share a commit. Publishers are closed
loops with OUTSTANDING messages each, and impatient: a publisher without an answer for PATIENCE_S
resets its connection and sends the unacknowledged messages again, so those already admitted are
wasted work.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowguard.codec.packets import Connack, Connect, Puback
from flowguard.config import PolicyName
from flowguard.node.journal import Batch
from flowguard.types import MQTT_311, Publish
from tests.support.stage import TICK_S, Client, Stage

COMMIT_S: Final = 0.004
OP_S: Final = 0.000_5
PUBLISHERS: Final = 20
OUTSTANDING: Final = 10
PATIENCE_S: Final = 1.0
BEFORE_S: Final = 8.0
RECOVERY_S: Final = 10.0
"""R of the invariant, for this scenario."""
AFTER_S: Final = 4.0
SHARE: Final = 0.95


@dataclass(frozen=True)
class Trigger:
    """The store's rate is `rate` of its own for `seconds`, beginning at BEFORE_S."""

    rate: float
    seconds: float

    def done_s(self, start_s: float, work_s: float) -> float:
        """When work that begins now is done."""
        end_s = BEFORE_S + self.seconds
        now_s = start_s
        if now_s < BEFORE_S:
            if now_s + work_s <= BEFORE_S:
                return now_s + work_s
            work_s -= BEFORE_S - now_s
            now_s = BEFORE_S
        if now_s < end_s:
            possible_s = (end_s - now_s) * self.rate
            if work_s <= possible_s:
                return now_s + work_s / self.rate
            work_s -= possible_s
            now_s = end_s
        return now_s + work_s


@dataclass(eq=False)
class Publisher:
    """One closed loop."""

    name: str
    wire: Client | None = None
    connected: bool = False
    unacknowledged: dict[int, None] = field(default_factory=dict)
    heard_s: float = 0.0
    patience_s: float = PATIENCE_S
    packet_id: int = 0

    def next_packet_id(self) -> int:
        self.packet_id = self.packet_id % 65_535 + 1
        return self.packet_id


class Run:
    """A node, its store and its publishers, event by event."""

    def __init__(self, policy: PolicyName, trigger: Trigger, seed: int) -> None:
        self.stage = Stage({"flow": {"policy": policy}}, now_s=0.0)
        self.stage.hold_commits = True
        self.trigger = trigger
        self.random = Random(seed)
        self.publishers = [Publisher(f"p{number}") for number in range(PUBLISHERS)]
        self.acknowledged: list[float] = []
        """When, for each message in time."""
        self._started: Batch | None = None
        self._started_s = self._done_s = 0.0

    def goodput(self) -> tuple[float, float]:
        """Messages acknowledged per second before the trigger, and from RECOVERY_S after it."""
        after_s = BEFORE_S + self.trigger.seconds + RECOVERY_S
        tick = 0
        while self.stage.now_s < after_s + AFTER_S:
            tick += 1
            self._commit_until(tick * TICK_S)
            self.stage.now_s = tick * TICK_S
            self.stage.node.tick(self.stage.now_s)
            self._settle()
            for publisher in self.publishers:
                self._act(publisher)
            self._settle()
        first_s = BEFORE_S - AFTER_S
        before = sum(first_s <= at_s < BEFORE_S for at_s in self.acknowledged)
        after = sum(after_s <= at_s for at_s in self.acknowledged)
        return before / AFTER_S, after / AFTER_S

    def _settle(self) -> None:
        """The store starts when it has something to do."""
        self.stage.settle()
        batch = self.stage.held
        if batch is not None and batch is not self._started:
            self._started, self._started_s = batch, self.stage.now_s
            work_s = COMMIT_S + OP_S * len(batch.continuations)
            self._done_s = self.trigger.done_s(self._started_s, work_s)

    def _commit_until(self, end_s: float) -> None:
        stage = self.stage
        while stage.held is not None and self._done_s <= end_s:
            stage.now_s = self._done_s
            stage.finish_commit(stage.now_s - self._started_s)
            for publisher in self.publishers:
                self._listen(publisher)
            self._settle()

    def _listen(self, publisher: Publisher) -> None:
        wire = publisher.wire
        if wire is None or not wire.inbox:
            return
        now_s = publisher.heard_s = self.stage.now_s
        for packet in wire.take():
            if isinstance(packet, Connack):
                publisher.connected = packet.reason_code == 0
                if publisher.connected:
                    self._send(publisher, list(publisher.unacknowledged))
            elif isinstance(packet, Puback) and packet.packet_id in publisher.unacknowledged:
                del publisher.unacknowledged[packet.packet_id]
                self.acknowledged.append(now_s)
        self._send_more(publisher)

    def _act(self, publisher: Publisher) -> None:
        """Once per tick: connect, or give up."""
        now_s = self.stage.now_s
        self._listen(publisher)
        wire = publisher.wire
        if wire is not None and now_s - publisher.heard_s > publisher.patience_s:
            wire.connection.end(None, now_s)
        if wire is None or wire.is_closed:
            publisher.heard_s = now_s
            publisher.patience_s = PATIENCE_S * self.random.uniform(0.5, 1.5)
            publisher.connected = False
            publisher.wire = self.stage.attempt(Connect(publisher.name, MQTT_311))

    def _send_more(self, publisher: Publisher) -> None:
        """As many new messages as are missing to OUTSTANDING."""
        if publisher.connected:
            missing = range(OUTSTANDING - len(publisher.unacknowledged))
            self._send(publisher, [publisher.next_packet_id() for _ in missing])

    def _send(self, publisher: Publisher, packet_ids: list[int]) -> None:
        assert publisher.wire is not None
        publisher.unacknowledged |= dict.fromkeys(packet_ids)
        publisher.wire.send(
            *[Publish(publisher.name, b"x", 1, True, packet_id=each) for each in packet_ids]
        )


TRIGGERS = st.builds(Trigger, st.sampled_from([0.0, 0.25]), st.floats(1.0, 10.0))


@pytest.mark.slow
@settings(max_examples=max(2, settings.default.max_examples // 40))
@given(TRIGGERS, st.integers(0, 2**32))
@example(Trigger(0.0, 5.0), 1)
def test_goodput_is_back_ten_seconds_after_a_store_was_slow(trigger: Trigger, seed: int) -> None:
    before, after = Run("flowguard", trigger, seed).goodput()
    assert before > 0
    assert after >= SHARE * before

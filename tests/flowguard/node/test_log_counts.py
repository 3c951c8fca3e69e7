"""The number of messages in the durable log that a session has not read yet."""

import pytest

from flowguard.codec.packets import Suback, Subscribe
from flowguard.node.applications import log_counts
from flowguard.node.applications.log_counts import LogCount
from flowguard.types import Properties, SubscriptionOptions
from tests.support.stage import Stage, StoreWithLog

LOGGED = {"session": {"log_threshold": 1}}


def missed(stage: Stage, topics: list[str]) -> None:
    """Messages that the client "s", which subscribes to t/# and has left, did not get."""
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t/#", qos=1)
    subscriber.close()
    stage.connect_durable("other").subscribe("#", qos=1)
    publisher = stage.connect("p")
    for topic in topics:
        publisher.publish(topic, b"x", qos=1)


def counted(stage: Stage) -> tuple[int, bool, int]:
    """Messages, whether these are all, and the number of calls at the end."""
    ends: list[None] = []
    count = LogCount(stage.node.registry.sessions["s"], stage.node.state, lambda: ends.append(None))
    count.begin()
    stage.settle()
    return count.messages, count.is_complete, len(ends)


@pytest.mark.parametrize("page", [1, 2, 500])
def test_messages_of_its_filters_are_counted_page_by_page(
    monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(log_counts, "PAGE_MAX", page)
    stage = Stage(LOGGED, store=StoreWithLog())
    missed(stage, ["t/1", "u", "t/2", "u", "t/3"])
    assert counted(stage) == (3, True, 1)
    assert counted(stage) == (3, True, 1), "nothing was read"
    subscriber = stage.connect_durable("s")
    assert len(subscriber.publishes()) == 3
    assert counted(stage) == (0, True, 1)


def test_count_ends_after_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_counts, "PAGE_MAX", 1)
    monkeypatch.setattr(log_counts, "PAGES_MAX", 2)
    stage = Stage(LOGGED, store=StoreWithLog())
    missed(stage, ["t/1", "t/2", "t/3"])
    assert counted(stage) == (2, False, 1)


def test_expired_messages_are_not_counted() -> None:
    stage = Stage(LOGGED, store=StoreWithLog())
    missed(stage, ["t/1"])
    stage.connect("q").publish("t/2", b"x", qos=1, message_expiry_interval=5)
    assert counted(stage) == (2, True, 1)
    stage.advance(6.0)
    assert counted(stage) == (1, True, 1)


def test_count_of_a_subscription_into_the_past_is_unknown() -> None:
    stage = Stage(LOGGED, store=StoreWithLog())
    missed(stage, ["t/1"])
    subscriber = stage.connect_durable("s")
    subscriber.publishes()
    stage.hold_fetches = True
    start = Properties(user_properties=(("start-time", "0"),))
    subscriber.send(Subscribe(7, (("u/#", SubscriptionOptions(1)),), start))
    assert subscriber.expect(Suback).reason_codes == (1,)
    subscriber.close()
    stage.hold_fetches = False
    assert counted(stage) == (0, False, 1)

import pytest
import trio

from flowguard.types import MQTT_5, MQTT_311, Publish
from loadgen.kit.messaging import not_begun
from loadgen.storm import CrowdPlan, RetryMode, RetryPolicy, Traffic, TrafficPlan
from loadgen.storm.subscriber import STAMP
from tests.loadgen.storm.servers import broker, end_by_the_books, target, until
from tests.support.real import TEST_S

PAIRS, FANOUT, FANIN = (5, 1, 1), (1, 1, 5), (1, 5, 1)


def traffic(where: tuple[str, int], plan: TrafficPlan, version: int = MQTT_5) -> Traffic:
    crowd = CrowdPlan(plan.clients, timeout_s=TEST_S, seconds=TEST_S)
    return Traffic(target(where, version), plan, crowd, trio.current_time)


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("shape", [PAIRS, FANOUT, FANIN], ids=["pairs", "fanout", "fanin"])
async def test_every_message_is_accounted_for(
    shape: tuple[int, int, int], qos: int, version: int
) -> None:
    async with broker() as running:
        storm = traffic(
            running.address, TrafficPlan(*shape, qos=qos, seconds=0.1, late_s=TEST_S), version
        )
        with trio.fail_after(TEST_S):
            await storm.run()
    tally = storm.tally
    assert tally.sent > 0
    assert tally.received == tally.expected == tally.sent * shape[2]
    assert tally.missing == tally.acknowledged_lost == tally.duplicates == 0
    assert tally.acknowledged == (tally.sent if qos else 0)
    assert tally.delivery.count == tally.received
    assert running.node.counters.publish_received == tally.sent
    assert storm.crowd.tally.lost == 0


async def test_a_publisher_stays_within_what_is_outstanding() -> None:
    """The server acknowledges nothing, so the sent messages are the outstanding ones."""
    async with broker() as running:
        plan = TrafficPlan(3, 1, 1, qos=1, outstanding=7, seconds=0.1)
        storm = traffic(running.address, plan)
        storm.publishing = True
        with trio.fail_after(TEST_S):
            assert await storm.crowd.connect()
            for publisher in storm.publishers:
                publisher.pump(0.0)
                publisher.pump(0.0)
            assert [publisher.sent for publisher in storm.publishers] == [7, 7, 7]
            await storm.crowd.leave()
        storm.crowd.loop.close_all()


async def test_the_receive_maximum_of_the_broker_comes_first() -> None:
    async with broker({"session": {"receive_maximum": 3}}) as running:
        plan = TrafficPlan(2, 1, 1, qos=2, outstanding=100, seconds=0.1, late_s=TEST_S)
        storm = traffic(running.address, plan)
        with trio.fail_after(TEST_S):
            await storm.run()
    assert storm.tally.acknowledged == storm.tally.sent > 0
    assert storm.crowd.tally.lost == 0


async def test_a_paced_publisher_sends_no_more_than_its_rate() -> None:
    async with broker() as running:
        plan = TrafficPlan(4, 1, 1, rate_per_s=50.0, seconds=0.2, late_s=TEST_S)
        storm = traffic(running.address, plan)
        with trio.fail_after(TEST_S):
            await storm.run()
    for publisher in storm.publishers:
        assert 1 <= publisher.sent <= storm.tally.seconds * 50.0 + 1


async def test_messages_that_a_full_queue_drops_are_lost_though_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """flowguard's queue of one message against a backlog of a hundred: the books must show it."""
    limits = {"session": {"queue_messages_max": 1, "inflight_max": 1}}
    async with broker(limits) as running:
        end_by_the_books(monkeypatch, running, slow=0)
        plan = TrafficPlan(1, 1, 1, qos=1, outstanding=50, seconds=0.2, late_s=TEST_S)
        storm = traffic(running.address, plan)
        with trio.fail_after(TEST_S):
            await storm.run()
    dropped = running.node.counters.publish_dropped
    assert storm.tally.acknowledged_lost == storm.tally.missing == dropped > 0


async def test_nothing_is_published_unless_all_are_in() -> None:
    async with broker({"node": {"connections_max": 3}}) as running:
        plan = TrafficPlan(2, 1, 1)
        once = RetryPolicy(RetryMode.NONE)
        crowd = CrowdPlan(plan.clients, once, timeout_s=TEST_S, seconds=TEST_S)
        storm = Traffic(target(running.address), plan, crowd, trio.current_time)
        with trio.fail_after(TEST_S):
            await storm.run()
    assert storm.tally.sent == 0
    assert storm.crowd.tally.refused[0x97] > 0
    assert storm.crowd.tally.connected < plan.clients


async def test_refused_subscriptions_are_counted_and_nobody_waits_for_them() -> None:
    """The time for an answer would be `TEST_S`, after which this test fails."""
    async with broker({"session": {"topic_levels_max": 1}}) as running:
        storm = traffic(running.address, TrafficPlan(3, 1, 1))
        with trio.fail_after(TEST_S):
            await storm.run()
    assert storm.tally.subscribe_refusals == {0x8F: 3}
    assert storm.tally.sent == 0
    outcome = not_begun(storm)
    assert outcome is not None
    assert outcome.sentence == "Nothing was published: subscriptions were refused, 3 x 0x8f."


async def test_a_message_that_nobody_sent_to_its_subscriber_is_a_stray() -> None:
    """A message of another group, one with a future number, and one without a number."""
    async with broker() as running:
        storm = traffic(running.address, TrafficPlan(2, 1, 1, seconds=0.1, late_s=TEST_S))
        with trio.fail_after(TEST_S):
            await storm.run()
    before = (storm.tally.received, storm.tally.duplicates)
    for stamp in (STAMP.pack(1, 0, 0.0), STAMP.pack(0, 4_000_000_000, 0.0), b"foreign"):
        storm.subscribers[0].receive(Publish("t", stamp), 0.0)
    assert storm.tally.strays == storm.result()["strays"] == 3
    assert (storm.tally.received, storm.tally.duplicates) == before


async def test_stop_ends_in_order_and_closes_the_books() -> None:
    async with broker() as running:
        storm = traffic(running.address, TrafficPlan(2, 1, 1, qos=1, seconds=TEST_S, late_s=TEST_S))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storm.run)
            await until(lambda: storm.tally.received >= 10)
            storm.stop()
    assert storm.tally.received == storm.tally.expected == storm.tally.sent

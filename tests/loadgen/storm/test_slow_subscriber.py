import io

import pytest
import trio
from rich.console import Console

from flowguard.types import MQTT_5, MQTT_311
from loadgen.command.storm_view import show_result
from loadgen.storm import CrowdPlan, Traffic, TrafficPlan
from tests.loadgen.storm.servers import broker, end_by_the_books, target
from tests.support.real import TEST_S

PLAN = TrafficPlan(
    1, 1, 4, payload_bytes=8_192, seconds=0.3, backlog=None, late_s=TEST_S, slow=1, outstanding=50
)
SMALL = {"session": {"queue_messages_max": 5, "inflight_max": 5}}
"""A slow subscriber's queue overflows at once, whatever the kernel's buffers take."""


async def storm(
    plan: TrafficPlan, limits: dict[str, dict[str, object]] | None = None, version: int = MQTT_5
) -> Traffic:
    crowd = CrowdPlan(plan.clients, timeout_s=TEST_S, seconds=TEST_S)
    with pytest.MonkeyPatch.context() as patch:
        async with broker(limits) as running:
            end_by_the_books(patch, running)
            traffic = Traffic(target(running.address, version), plan, crowd, trio.current_time)
            with trio.fail_after(TEST_S):
                await traffic.run()
    return traffic


@pytest.mark.slow
@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_who_did_not_read_gets_the_rest_afterwards(version: int) -> None:
    traffic = await storm(PLAN, version=version)
    tally = traffic.tally
    assert tally.acknowledged == tally.sent > 0
    slow = traffic.subscribers[0]
    flow = slow.flows[0]
    assert (slow.slow, traffic.subscribers[1].slow) == (True, False)
    assert tally.slow_received == tally.sent - len(flow.missing(tally.sent)) > 0
    assert tally.catch_up_s > 0


@pytest.mark.slow
async def test_what_a_full_queue_dropped_is_booked_to_the_slow_one() -> None:
    traffic = await storm(PLAN, SMALL)
    tally = traffic.tally
    assert tally.slow_lost > 0
    assert tally.slow_lost <= tally.acknowledged_lost == tally.missing
    assert tally.slow_received + tally.slow_lost == tally.sent
    shown = io.StringIO()
    show_result(traffic, "storm", Console(file=shown, width=120))
    lines = [line for line in shown.getvalue().splitlines() if "undelivered" in line]
    assert len(lines) == 2
    assert all("acknowledged, undelivered" in line for line in lines)
    assert all("dropped at full queues, or lost" in line for line in lines)
    assert "acknowledged and lost" not in shown.getvalue()


@pytest.mark.slow
async def test_a_slow_one_reads_its_share_while_messages_come() -> None:
    """The sum of what it reads is far below what is sent, and above nothing."""
    for seconds in (0.5, 5.0, 50.0):  # A busy machine may have no time for it in the first.
        plan = TrafficPlan(
            1,
            1,
            1,
            payload_bytes=1_000,
            seconds=seconds,
            backlog=None,
            late_s=0.01,
            slow=1,
            slow_bytes_per_s=20_000,
            outstanding=10,
        )
        traffic = await storm(plan)
        if traffic.tally.slow_received:
            break
    assert 0 < traffic.tally.slow_received < traffic.tally.sent


async def test_without_slow_ones_nothing_is_held() -> None:
    traffic = await storm(TrafficPlan(1, 1, 2, seconds=0.1, late_s=TEST_S))
    assert traffic.tally.slow_received == traffic.tally.slow_lost == 0
    assert traffic.tally.received == traffic.tally.expected

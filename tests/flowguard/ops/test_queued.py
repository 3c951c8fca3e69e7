"""The number of queued messages, counted for a scrape."""

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from flowguard.ops import queued
from flowguard.ops.queued import QueuedMessages
from tests.support.http import request, watched
from tests.support.real import connect, offline_subscriber, publishes
from tests.support.stage import Stage


async def test_scrape_has_the_messages_of_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "SLICE", 2)
    async with watched() as (running, address):
        for number in range(3):
            await offline_subscriber(running, "t", f"c{number}")
        await offline_subscriber(running, "$share/g/t", "member")
        publisher = await connect(running, "p")
        await publisher.send(*publishes("t", 5))
        for _ in range(5):
            await publisher.receive()
        code, body = await request(address, "GET /metrics")
        await publisher.close()
    assert code == 200
    values = {family.name: family.samples[0].value for family in parse(body) if family.samples}
    assert values["flowguard_queued_messages"] == 4 * 5


def test_step_counts_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "SLICE", 2)
    stage = Stage()
    for number in range(5):
        stage.connect(f"c{number}")
    counted = QueuedMessages(stage.node)
    step = counted.begin()
    assert [step(), step(), counted.count, step()] == [True, True, None, False]
    assert counted.count == 0

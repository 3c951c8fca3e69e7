"""What flowguard takes of aiokafka that is not public: is it there, and who says if it is not?"""

import asyncio

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState

from flowguard.errors import ConfigError, StoreError
from flowguard.stores.kafka.connection import driver
from flowguard.stores.kafka.connection.link import KafkaLink


class Consumer:
    """As the driver's own, but for its coordinator."""

    def __init__(self, coordinator: object) -> None:
        self._coordinator = coordinator


def test_the_installed_driver_has_all_that_is_taken_of_it() -> None:
    driver.check_driver()

    async def generation() -> tuple[int, str]:
        coordinator = GroupCoordinator(AIOKafkaClient(), SubscriptionState())
        try:
            return driver.generation_of(Consumer(coordinator))
        finally:
            await coordinator.close()

    assert asyncio.run(generation()) == driver.NO_MEMBER
    consumer = AIOKafkaConsumer.__init__.__code__.co_names
    parts = {"_coordinator": GroupCoordinator, "_fetcher": Fetcher, "_client": AIOKafkaClient}
    for part, name in driver._ENDS:
        assert part in consumer
        assert callable(getattr(parts[part], name))


def test_a_driver_without_it_is_named_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(AIOKafkaAdminClient, "_send_request")
    with pytest.raises(ConfigError, match=r"has no AIOKafkaAdminClient\._send_request, which"):
        KafkaLink("127.0.0.1:1", wait_s=1.0)


@pytest.mark.parametrize("consumer", [object(), Consumer(None), Consumer(object())])
def test_who_needs_what_is_not_there_says_what_it_is(consumer: object) -> None:
    with pytest.raises(StoreError, match=r"has no AIOKafkaConsumer\._coordinator with generation"):
        driver.generation_of(consumer)
    with pytest.raises(StoreError, match=r"has no AIOKafkaAdminClient\._send_request"):
        asyncio.run(driver.send(object(), None))

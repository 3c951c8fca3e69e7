"""The contract of every store, on a real Kafka; what is not in topics is in memory."""

from collections.abc import Iterator

import pytest

from flowguard.stores import MemoryStore
from tests.flowguard.stores.test_contract import *  # noqa: F403
from tests.flowguard.stores.test_contract import Bench
from tests.support.kafka import Kafka, needs_kafka, shared_kafka

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Kafka:
    needs_kafka()
    return shared_kafka()


@pytest.fixture
def bench(server: Kafka) -> Iterator[Bench]:
    from tests.flowguard.stores.kafka import benches

    base, place = MemoryStore(), benches.place_on(server, benches.new_prefix())
    said: dict[str, bool] = {}
    made = Bench(lambda: benches.ForApplications(benches.open_store(base, place), said))
    yield made
    made.store.close()

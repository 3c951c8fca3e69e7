"""The same on three nodes, of which two must have what is committed."""

from collections.abc import Iterator

import pytest

from tests.flowguard.stores.kafka.test_contract import *  # noqa: F403
from tests.support.kafka import Kafka, kafka

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka(tmp_path_factory.mktemp("kafka"), nodes=3) as server:
        yield server

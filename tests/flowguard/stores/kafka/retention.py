"""Retention at once: what it will have taken is taken."""

from typing import Any

from benchmarks.kafka.servers import until
from tests.support.kafka import Kafka


def delete_before(server: Kafka, topic: str, offset: int) -> None:
    """Ask for it until it is done: the topic may have no leader yet that the others know."""
    from aiokafka import TopicPartition
    from aiokafka.admin import RecordsToDelete

    wanted = {TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)}

    async def is_done(admin: Any) -> bool:
        await admin.delete_records(wanted)
        return True

    until(server, is_done)

"""Retention at once: what it will have taken is taken."""

from tests.support.kafka import Kafka


def delete_before(server: Kafka, topic: str, offset: int) -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin import RecordsToDelete

    wanted = {TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)}
    server.call(lambda admin: admin.delete_records(wanted))

"""Deletes a topic so that no server takes messages for it any more."""

import asyncio
from typing import Any

from benchmarks.kafka.servers import UNDECIDED, until
from tests.support.kafka import Kafka

_GONE = {0, 3}
"""Answers to a deletion after which the topic does not exist."""


def delete_topic(server: Kafka, topic: str) -> None:
    """Delete a topic. A node that has not heard of it still takes messages, which are lost with
    it."""
    from flowguard.stores.kafka.connection.driver import topic_seen
    from flowguard.stores.kafka.connection.link import patiently

    async def seen(admin: Any, node: int | None = None) -> Any:
        return await patiently(lambda: topic_seen(admin, topic, node))

    async def found(admin: Any) -> Any:
        while (now := await seen(admin)) is None:
            pass  # It was made a moment ago.
        return now

    before = server.call(found)

    async def is_deleted(admin: Any) -> bool:
        # On a repeated request the topic may be deleted, and may have been made again.
        if (now := await seen(admin)) is None or now.id != before.id:
            return True
        ((_, code, *_),) = (await admin.delete_topics([topic])).topic_error_codes
        assert code in _GONE | UNDECIDED, code
        return code in _GONE

    async def wait_until_known(admin: Any) -> None:
        for node in (await patiently(admin.describe_cluster))["brokers"]:
            while (now := await seen(admin, node["node_id"])) is not None:
                if now.id != before.id:
                    break  # Another client was faster.
                await asyncio.sleep(0.02)

    until(server, is_deleted)
    server.call(wait_until_known)

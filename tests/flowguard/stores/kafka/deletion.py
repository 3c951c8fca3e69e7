"""Somebody deletes a topic, and no server takes messages for it any more."""

import asyncio
from typing import Any

from benchmarks.kafka.servers import UNDECIDED, until
from tests.support.kafka import Kafka

_GONE = {0, 3}
"""Answers to who deletes a topic: it is gone now, or was already."""


def delete_topic(server: Kafka, topic: str) -> None:
    """Until a node knows it, it takes messages for the topic, and they are gone with it."""
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
        # Asked again, it may be gone, and somebody may have made it again.
        if (now := await seen(admin)) is None or now.id != before.id:
            return True
        ((_, code, *_),) = (await admin.delete_topics([topic])).topic_error_codes
        assert code in _GONE | UNDECIDED, code
        return code in _GONE

    async def wait_until_known(admin: Any) -> None:
        for node in (await patiently(admin.describe_cluster))["brokers"]:
            while (now := await seen(admin, node["node_id"])) is not None:
                if now.id != before.id:
                    break  # Somebody was fast.
                await asyncio.sleep(0)

    until(server, is_deleted)
    server.call(wait_until_known)

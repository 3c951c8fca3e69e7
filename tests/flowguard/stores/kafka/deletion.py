"""Somebody deletes a topic, and no server takes messages for it any more."""

import asyncio
from typing import Any

from tests.support.kafka import Kafka


def delete_topic(server: Kafka, topic: str) -> None:
    """Until a node knows it, it takes messages for the topic, and they are gone with it."""
    from flowguard.stores.kafka.driver import topic_seen

    async def delete(admin: Any) -> None:
        while (before := await topic_seen(admin, topic)) is None:
            pass  # It was made a moment ago.
        await admin.delete_topics([topic])
        for node in (await admin.describe_cluster())["brokers"]:
            while (seen := await topic_seen(admin, topic, node["node_id"])) is not None:
                if seen.id != before.id:
                    break  # Somebody was fast.
                await asyncio.sleep(0)

    server.call(delete)

"""Renewal of a group's commits, before servers delete them.

Servers keep them while the group has members, and for `offsets.retention.minutes` (by default a
week) after that. A group may be idle for longer, and would get its whole topic again.
"""

from collections import defaultdict
from typing import Any

from flowguard.stores.kafka.connection.driver import FENCED, NO_MEMBER, commit_offsets


async def renew(admin: Any, group: str) -> None:
    """Repeat a group's commits; does nothing if the group has members. Raises KafkaError."""
    offsets = await admin.list_consumer_group_offsets(group)
    topics: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for place, each in offsets.items():
        if each.offset >= 0:
            topics[place.topic].append((place.partition, each.offset, each.metadata or ""))
    if not topics:
        return
    coordinator = await admin.find_coordinator(group)
    try:
        await commit_offsets(admin, group, NO_MEMBER, list(topics.items()), coordinator)
    except FENCED:
        return

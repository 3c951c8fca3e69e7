"""Renewal of what is committed for a group, lest servers forget it.

They keep it while the group has members, and for `offsets.retention.minutes` after that, a week: a
group may sleep for longer, and would get all again that its topic still has.
"""

from collections import defaultdict
from typing import Any

from flowguard.stores.kafka.connection.driver import FENCED, NO_MEMBER, commit_offsets


async def renew(admin: Any, group: str) -> None:
    """Commit what is committed; does nothing where the group has members. Raises KafkaError."""
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

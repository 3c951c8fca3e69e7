"""GroupRoster: the shared subscriptions that several brokers have, and their topics.

It follows the records of one compacted topic, in order. A key is the name of a broker and the
filter, with `$share/`; a value is JSON; a tombstone means that this broker has no member left. The
first broker's record decides the group's topic; a broker that named another one corrects its
record. So all brokers that have read the same records agree. An abandoned topic is never used
again. Other programs may be able to write records, so a topic that does not belong to the filter
is ignored. Independent of the driver.
"""

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, final

from flowguard.stores.kafka.groups.window import STRIDE

ENDED_MAX: Final = 10_000
"""Maximum number of abandoned topics in memory."""
HEARD_MAX: Final = 100_000
"""Maximum number of filters in memory that ever had a record."""


class GroupTopic(NamedTuple):
    topic: str
    partitions: int


@final
@dataclass(frozen=True, slots=True)
class GroupChange:
    """The new topic of a group, or None if it has ended."""

    filter: str
    before: GroupTopic | None
    after: GroupTopic | None


def group_prefix(prefix: str) -> str:
    return f"{prefix}.group."


def roster_topic(prefix: str) -> str:
    return f"{prefix}.groups"


def group_topic(prefix: str, filter: str, number: int) -> str:
    return f"{topic_stem(prefix, filter)}{number}"


def topic_stem(prefix: str, filter: str) -> str:
    """Return the prefix of a filter's topics. A hash, because a filter may be any text."""
    digest = blake2b(filter.encode(), digest_size=16).digest()
    name = base64.b32encode(digest).decode().rstrip("=").lower()
    return f"{group_prefix(prefix)}{name}."


def is_group_topic(prefix: str, topic: str) -> bool:
    """Return True if `group_topic` can return this name."""
    rest = topic.removeprefix(group_prefix(prefix))
    return rest != topic and re.fullmatch(r"[a-z2-7]{26}\.[0-9]{1,19}", rest) is not None


def encode_claim(broker: str, filter: str, topic: GroupTopic) -> tuple[bytes, bytes]:
    """Return key and value of a broker's record."""
    value = {"topic": topic.topic, "partitions": topic.partitions}
    return claim_key(broker, filter), json.dumps(value).encode()


def claim_key(broker: str, filter: str) -> bytes:
    return f"{broker} {filter}".encode()


@final
class GroupRoster:
    """The groups by filter. `get`, `has_claim`, `is_right` and `proposal` may be called from any
    thread, the others only from the thread that calls `apply`."""

    def __init__(self, prefix: str) -> None:
        """`prefix` is that of the groups' topics."""
        self._prefix = prefix
        self._claims: dict[str, dict[str, GroupTopic]] = {}
        """Topics by filter and broker, in the order of their records."""
        self._groups: dict[str, GroupTopic] = {}
        self._ended: dict[str, None] = {}
        self._heard: dict[str, None] = {}
        """Filters that had a record, be it a tombstone."""

    def get(self, filter: str) -> GroupTopic | None:
        """Return the topic of a group, or None if the group does not exist."""
        return self._groups.get(filter)

    def claims(self) -> list[tuple[str, str, GroupTopic]]:
        """Return broker, filter and topic of all valid claims."""
        return [
            (broker, filter, topic)
            for filter, claims in self._claims.items()
            for broker, topic in claims.items()
        ]

    def has_heard(self, filter: str) -> bool:
        """Return True if the filter had a record; if not, the records of its topic are lost."""
        return filter in self._heard

    def given_up(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that belong to no group although their filters had a record. (For a
        filter without a record, the record may be lost.)"""
        heard = {topic_stem(self._prefix, filter) for filter in self._heard}
        known = {each.topic for each in self._groups.values()}
        return [each for each in topics if each not in known and _stem_of(each) in heard]

    def claims_of(self, broker: str) -> set[str]:
        """Return the filters of which this broker has members."""
        return {filter for filter, claims in self._claims.items() if broker in claims}

    def has_claim(self, broker: str, filter: str) -> bool:
        return broker in self._claims.get(filter, {})

    def is_right(self, broker: str, filter: str) -> bool:
        """Return True if the broker's record names the group's topic, which is not abandoned."""
        claim = self._claims.get(filter, {}).get(broker)
        if claim is None or claim.topic in self._ended:
            return False
        return claim == self._groups.get(filter)

    def proposal(self, filter: str, new: GroupTopic) -> GroupTopic:
        """Return the topic that a broker with members should name; `new` if there is none."""
        known = self._groups.get(filter)
        return new if known is None or known.topic in self._ended else known

    def apply(self, key: bytes | None, value: bytes | None) -> GroupChange | None:
        """Follow one record. A record that cannot be decoded is ignored."""
        broker, filter = _decode_key(key)
        claim = None
        if value is not None:
            claim = _decode(value)
            if claim is None or not self._is_of(filter, claim.topic):
                return None
        if not filter.startswith("$share/"):
            return None
        _remember(self._heard, filter, HEARD_MAX)
        claims = self._claims.setdefault(filter, {})
        if claim is None:
            claims.pop(broker, None)
        else:
            claims[broker] = claim
        before, after = self._groups.get(filter), _first(claims.values())
        if not claims:
            del self._claims[filter]
        if before == after:
            return None
        if before is not None and (after is None or after.topic != before.topic):
            _remember(self._ended, before.topic, ENDED_MAX)
        if after is None:
            self._groups.pop(filter, None)
        else:
            self._groups[filter] = after
        return GroupChange(filter, before, after)

    def _is_of(self, filter: str, topic: str) -> bool:
        """Return True if a topic belongs to a filter; only such topics may be deleted later."""
        is_ours = is_group_topic(self._prefix, topic)
        return is_ours and _stem_of(topic) == topic_stem(self._prefix, filter)


def number_of(topic: str) -> int:
    """Return the number of a topic among those of its filter; the newest has the highest."""
    return int(topic.rpartition(".")[2])


def _stem_of(topic: str) -> str:
    return topic[: topic.rfind(".") + 1]


def _remember(known: dict[str, None], name: str, most: int) -> None:
    known[name] = None
    if len(known) > most:
        del known[next(iter(known))]


def _first(claims: Iterable[GroupTopic]) -> GroupTopic | None:
    return next(iter(claims), None)


def _decode_key(key: bytes | None) -> tuple[str, str]:
    """Return broker and filter; both "" if the key is not one of flowguard."""
    try:
        broker, _, filter = (key or b"").decode().partition(" ")
    except UnicodeDecodeError:
        return "", ""
    return broker, filter


def _decode(value: bytes) -> GroupTopic | None:
    try:
        found = json.loads(value)
        topic, partitions = found["topic"], found["partitions"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_sound = isinstance(topic, str) and isinstance(partitions, int)
    return GroupTopic(topic, partitions) if is_sound and 0 < partitions < STRIDE else None

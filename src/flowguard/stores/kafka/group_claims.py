"""GroupClaims: of which groups this broker says that it has members, and their topics.

What it says is a record of the topic `PREFIX.groups` (`group_roster`), and counts when it has come
back (`group_tail`). Calls come from the thread of the store's commits.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar, final

from flowguard.errors import ConfigError, FormatError, NotNowError, StallError, StoreError
from flowguard.stores.group_feed import GroupNews, GroupTrouble, Trouble
from flowguard.stores.kafka.group_roster import (
    GroupChange,
    GroupRoster,
    GroupTopic,
    claim_key,
    encode_claim,
    group_prefix,
    group_topic,
    is_group_topic,
    roster_topic,
)
from flowguard.stores.kafka.group_tail import GroupTail
from flowguard.stores.kafka.link import KafkaLink, KafkaMessage
from flowguard.stores.kafka.topics import KafkaPlace

R = TypeVar("R")
PARTITION: Final = 0
"""Of the topic that says which groups there are."""


@final
class GroupClaims:
    """One per broker."""

    def __init__(
        self,
        link: KafkaLink,
        place: KafkaPlace,
        broker: str,
        wall_s: Callable[[], float],
        tell: Callable[[GroupNews], None],
        on_change: Callable[[GroupChange], None],
    ) -> None:
        """`broker`: the name that its records have; `on_change` is called on the link's loop."""
        self._link = link
        self._place = place
        self._broker = broker
        self._wall_s = wall_s
        self._tell = tell
        self.roster = GroupRoster(place.groups_prefix)
        topic = roster_topic(place.groups_prefix)
        self._tail = GroupTail(link, topic, self.roster, on_change)
        self._there: set[str] = set()
        """Topics that are known to have been made."""
        self._ours: set[str] = set()
        """Filters of which this broker has members."""
        self._denied: set[str] = set()
        """Those of which Kafka refuses something."""

    def open(self, filters: Iterable[str]) -> list[str]:
        """Learn which groups there are; `filters`: those of which this broker has members. Topics
        of nobody are returned. Raises ConfigError, StoreError."""
        place, prefix = self._place, self._place.groups_prefix
        topic = roster_topic(prefix)
        kept = place.topic_configs["min.insync.replicas"]
        configs = {"cleanup.policy": "compact", "min.insync.replicas": kept}
        self._link.create_topic(topic, 1, place.replicas, configs)
        try:
            self._link.topic_seen(topic)  # Groups need ids of topics.
        except FormatError as error:
            raise ConfigError(
                f"Kafka at {place.servers} is too old for kafka.groups_prefix: 2.8 or newer is "
                "needed, where topics have ids"
            ) from error
        # First those: a topic is made when its record is there.
        topics = self._link.topics(group_prefix(prefix))
        self._link.call(self._tail.start)
        self._ours = set(filters)
        said = self._on_loop(lambda: self.roster.claims_of(self._broker))
        for filter in sorted(said - self._ours):
            self._leave(filter)
        for filter in sorted(self._ours):
            self._claim(filter)
        known = self._on_loop(self.roster.topics)
        return [each for each in topics if is_group_topic(prefix, each) and each not in known]

    def _on_loop(self, ask: Callable[[], R]) -> R:
        """What the loop changes may be looked through there only."""

        async def answer() -> R:
            return ask()

        return self._link.call(answer)

    async def stop(self) -> None:
        """End; on the loop."""
        await self._tail.stop()

    @property
    def trouble(self) -> str:
        """Why it cannot be followed which groups there are; empty: it can."""
        return self._tail.trouble

    def is_made(self, topic: str) -> bool:
        """Whether a topic is known to be there."""
        return topic in self._there

    def doubt(self, topic: str) -> None:
        """It may not be there any more, or may be another one."""
        self._there.discard(topic)

    # --- who has members ---------------------------------------------------------------------

    def joined(self, filter: str) -> None:
        """This broker has a member; returns when that is kept. Raises StoreError."""
        self._ours.add(filter)
        self._claim(filter)

    def left(self, filter: str) -> None:
        """It has none any more. Raises StoreError."""
        self._ours.discard(filter)
        self._leave(filter)

    def upkeep(self) -> None:
        """Say it again where that is needed: an operator may have taken us for dead."""
        for filter in sorted(self._ours):
            try:
                self._claim(filter)
            except NotNowError:
                break  # Kafka is away.
            except StoreError as error:
                self._denied.add(filter)
                self._say_of(filter, str(error))
            else:
                if filter in self._denied:
                    self._denied.discard(filter)
                    self._say_of(filter, "")

    def _claim(self, filter: str) -> None:
        """Say that this broker has members; returns when it is kept, and the topic is there."""
        place = self._place
        while True:
            found = self.roster.get(filter)
            if found is not None and self.roster.is_right(self._broker, filter):
                self.make(filter, found)
                return
            number = int(self._wall_s() * 1_000)
            name = group_topic(place.groups_prefix, filter, number)
            new = GroupTopic(name, place.groups_partitions)
            self._say(*encode_claim(self._broker, filter, self.roster.proposal(filter, new)))

    def _leave(self, filter: str) -> None:
        """Say that it has none; returns when that is so. What is appended may be the end of what
        was appended before (`KafkaLink.append`): then it is said again."""
        while True:
            self._say(claim_key(self._broker, filter), None)
            if not self.roster.has_claim(self._broker, filter):
                return

    def _say(self, key: bytes, value: bytes | None) -> None:
        """Write a record, and wait until it has come back."""
        topic = roster_topic(self._place.groups_prefix)
        found = self._link.append({(topic, PARTITION): [KafkaMessage(key, value)]})
        offset = found[topic, PARTITION][0]
        self._link.call(lambda: self._tail.passed(offset))

    def make(self, filter: str, found: GroupTopic) -> None:
        """Make a topic, or see that it is there as it is to be: where servers make topics by
        themselves, it has one partition."""
        if found.topic in self._there:
            return
        link, place = self._link, self._place
        wanted = found.partitions, place.replicas, place.topic_configs
        if not link.create_topic(found.topic, *wanted):
            self._check(filter, found)
        self._there.add(found.topic)

    def _check(self, filter: str, found: GroupTopic) -> None:
        """Give a topic that is there what it lacks, and say so. Raises StoreError."""
        link, place, topic = self._link, self._place, found.topic
        seen = link.topic_seen(topic)
        wrong = []
        if seen.partitions < found.partitions:
            wrong.append(f"{seen.partitions} partitions, and is given {found.partitions}")
            try:
                link.complete_topic(topic, found.partitions, place.topic_configs)
            except StoreError as error:
                why = f"{topic} has {seen.partitions} partitions, not {found.partitions}: {error}"
                self._say_of(filter, why)
                raise StallError(why) from error
        if seen.replicas < place.replicas:
            wrong.append(
                f"{seen.replicas} replicas, not {place.replicas}: an operator adds them "
                "(kafka-reassign-partitions)"
            )
        why = f"{topic} was made by somebody else, with {', and '.join(wrong)}" if wrong else ""
        self._say_of(filter, why)

    def _say_of(self, filter: str, why: str) -> None:
        self._tell(GroupTrouble(filter, Trouble.TOPIC, why))

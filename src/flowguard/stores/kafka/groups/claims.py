"""GroupClaims: the groups in which this broker announces members, and their topics.

An announcement (claim) is a record of the topic `PREFIX.groups` (`roster`), and counts when the
broker has read it back (`tail`). Calls come from the thread of the store's commits.

If that topic is deleted by a command or by retention, messages must not be lost. So running brokers
repeat the claims that they have read. A broker that starts uses the existing topic of a filter if
the filter has no record. A group's topic is deleted only if its filter has a record.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar, final

from flowguard.errors import ConfigError, FormatError, NotNowError, StallError, StoreError
from flowguard.stores.group_feed import GroupNews, GroupTrouble, Trouble
from flowguard.stores.kafka.connection.errors import NoTopicError
from flowguard.stores.kafka.connection.link import KafkaLink, KafkaMessage
from flowguard.stores.kafka.groups.roster import (
    GroupChange,
    GroupRoster,
    GroupTopic,
    claim_key,
    encode_claim,
    group_prefix,
    group_topic,
    is_group_topic,
    number_of,
    roster_topic,
    topic_stem,
)
from flowguard.stores.kafka.groups.tail import GroupTail
from flowguard.stores.kafka.topics import KafkaPlace

R = TypeVar("R")
PARTITION: Final = 0
"""The only partition of the topic of claims."""


@final
class GroupClaims:
    def __init__(
        self,
        link: KafkaLink,
        place: KafkaPlace,
        broker: str,
        wall_s: Callable[[], float],
        tell: Callable[[GroupNews], None],
        on_change: Callable[[GroupChange], None],
    ) -> None:
        """`broker` is the name in its records; `on_change` is called on the link's loop."""
        self._link = link
        self._place = place
        self._broker = broker
        self._wall_s = wall_s
        self._tell = tell
        self.roster = GroupRoster(place.groups_prefix)
        self._topic = roster_topic(place.groups_prefix)
        self._tail = GroupTail(link, self._topic, self.roster, on_change)
        self._there: set[str] = set()
        """Topics that are known to exist."""
        self._ours: set[str] = set()
        """Filters of which this broker has members."""
        self._denied: set[str] = set()
        """Filters whose claim Kafka has rejected."""
        self._lacking: dict[str, int] = {}
        """Number of partitions of topics that have fewer than they should."""

    def open(self, filters: Iterable[str]) -> list[str]:
        """Read which groups exist, and claim `filters`, of which this broker has members. Return
        the topics without a group. Raises ConfigError, StoreError."""
        place, prefix = self._place, self._place.groups_prefix
        if not self._make_roster():
            self._see_that_it_is_kept()
        try:
            self._tail.topic_id = self._link.topic_seen(self._topic).id
        except FormatError as error:
            raise ConfigError(
                f"Kafka at {place.servers} is too old for kafka.groups_prefix: 2.8 or newer is "
                "needed, where topics have ids"
            ) from error
        # List topics first: each topic is created after its record.
        topics = self._link.topics(group_prefix(prefix))
        self._link.call(self._tail.start)
        self._ours = set(filters)
        said = self._on_loop(lambda: self.roster.claims_of(self._broker))
        for filter in sorted(said - self._ours):
            self._leave(filter)
        for filter in sorted(self._ours):
            self._claim_or_say(filter)
        own = [each for each in topics if is_group_topic(prefix, each)]
        return self._on_loop(lambda: self.roster.given_up(own))

    def _make_roster(self) -> bool:
        """Create the topic of claims. Return True if it was missing."""
        place = self._place
        kept = place.topic_configs["min.insync.replicas"]
        configs = {"cleanup.policy": "compact", "min.insync.replicas": kept}
        return self._link.create_topic(self._topic, 1, place.replicas, configs)

    def _see_that_it_is_kept(self) -> None:
        """Protect the topic of claims from retention, if a server or another program created it."""
        try:
            self._link.compact_topic(self._topic)
        except NotNowError:
            raise
        except StoreError as error:
            raise ConfigError(
                f"{self._topic} must have cleanup.policy=compact, or groups are forgotten: set it, "
                f"and let the user see it (DescribeConfigs), or change it (AlterConfigs); {error}"
            ) from error

    def _on_loop(self, ask: Callable[[], R]) -> R:
        """Call `ask` on the loop, since only the loop may iterate over data that it changes."""

        async def answer() -> R:
            return ask()

        return self._link.call(answer)

    async def stop(self) -> None:
        """Stop following the claims. On the loop."""
        await self._tail.stop()

    @property
    def trouble(self) -> str:
        """The reason why the claims cannot be followed, or ""."""
        return self._tail.trouble

    def filters(self) -> set[str]:
        """Return the filters of which this broker has members."""
        return set(self._ours)

    def go_on_following(self) -> None:
        """Follow the claims again if a bug has ended that task. On the loop."""
        self._tail.go_on()

    def is_made(self, topic: str) -> bool:
        return topic in self._there

    def partitions_of(self, found: GroupTopic) -> int:
        """Return the number of partitions of a group that may be written."""
        return self._lacking.get(found.topic, found.partitions)

    def doubt(self, topic: str) -> None:
        """Check the topic again: it may have been deleted or recreated."""
        self._there.discard(topic)

    # --- members -----------------------------------------------------------------------------

    def joined(self, filter: str) -> None:
        """Claim a filter of which this broker has a member now, and wait. Raises StoreError."""
        self._ours.add(filter)
        self._claim(filter)

    def left(self, filter: str) -> None:
        self._ours.discard(filter)
        self._leave(filter)

    def upkeep(self) -> None:
        """Repeat lost claims; an operator may have deleted them."""
        with suppress(StoreError):
            self._say_all_again()
        self._there -= self._lacking.keys()
        for filter in sorted(self._ours):
            try:
                self._claim_or_say(filter)
            except NotNowError:
                break  # Kafka is unavailable.

    def _claim_or_say(self, filter: str) -> None:
        """Claim a filter; report an error of Kafka, which concerns only this group. Raises
        NotNowError."""
        try:
            self._claim(filter)
        except NotNowError:
            raise
        except StoreError as error:
            self._denied.add(filter)
            self._say_of(filter, str(error))
        else:
            if filter in self._denied:
                self._denied.discard(filter)
                self._say_of(filter, "")

    def _say_all_again(self) -> None:
        """If the topic of claims is missing, create it and repeat its claims, including those of
        other brokers, which may be offline. Raises StoreError."""
        if self._tail.is_missing:
            self._make_roster()
        if not self._tail.is_anew:
            return
        self._tail.is_anew = False
        try:
            for broker, filter, topic in self._on_loop(self.roster.claims):
                if broker != self._broker or filter in self._ours:
                    self._say(*encode_claim(broker, filter, topic))
        except StoreError:
            self._tail.is_anew = True
            raise

    def _claim(self, filter: str) -> None:
        """Claim a filter, and wait until the claim counts and the topic exists."""
        while True:
            found = self.roster.get(filter)
            if found is not None and self.roster.is_right(self._broker, filter):
                self.make(filter, found)
                return
            new = self._new_topic(filter)
            self._say(*encode_claim(self._broker, filter, self.roster.proposal(filter, new)))

    def _new_topic(self, filter: str) -> GroupTopic:
        """Return a new topic for a filter, or the existing one if its records are lost."""
        place, prefix = self._place, self._place.groups_prefix
        if not self.roster.has_heard(filter):
            stem = topic_stem(prefix, filter)
            found = [each for each in self._link.topics(stem) if is_group_topic(prefix, each)]
            if found:
                newest = max(found, key=number_of)
                return GroupTopic(newest, self._link.topic_seen(newest).partitions)
        number = int(self._wall_s() * 1_000)
        return GroupTopic(group_topic(prefix, filter, number), place.groups_partitions)

    def _leave(self, filter: str) -> None:
        """Withdraw the claim, and wait until that counts. `KafkaLink.append` may return the result
        of an earlier append of the same record; then the record is written again."""
        while True:
            self._say(claim_key(self._broker, filter), None)
            if not self.roster.has_claim(self._broker, filter):
                return

    def _say(self, key: bytes, value: bytes | None) -> None:
        """Write a record, and wait until the tail has read it. Also raises StallError if the topic
        was deleted and the tail has not noticed it."""
        place, next_offset = (self._topic, PARTITION), self._tail.next_offset
        try:
            offset = self._link.append({place: [KafkaMessage(key, value)]})[place][0]
        except NoTopicError as error:
            self._make_roster()
            raise StallError(str(error)) from error
        if offset < next_offset:
            raise StallError(f"{self._topic} was deleted and starts again")
        self._link.call(lambda: self._tail.passed(offset))

    def make(self, filter: str, found: GroupTopic) -> None:
        """Create a topic, or check an existing one: if servers create topics automatically, it has
        one partition."""
        if found.topic in self._there:
            return
        link, place = self._link, self._place
        wanted = found.partitions, place.replicas, place.topic_configs
        if link.create_topic(found.topic, *wanted):
            self._lacking.pop(found.topic, None)
        else:
            self._check(filter, found)
        self._there.add(found.topic)

    def _check(self, filter: str, found: GroupTopic) -> None:
        """Give an existing topic its missing partitions, and report what cannot be corrected.
        Raises StoreError."""
        link, place, topic = self._link, self._place, found.topic
        seen = link.topic_seen(topic)
        wrong = []
        if seen.partitions < found.partitions:
            try:
                link.complete_topic(topic, found.partitions, place.topic_configs)
            except NotNowError:
                raise
            except NoTopicError as error:  # It was deleted meanwhile; the retry recreates it.
                raise StallError(str(error)) from error
            except StoreError as error:
                self._lacking[topic] = seen.partitions
                why = f"{topic} has {seen.partitions} partitions, not {found.partitions}: {error}"
                self._say_of(filter, why)
                return
            wrong.append(f"{seen.partitions} partitions, and is given {found.partitions}")
        self._lacking.pop(topic, None)
        if seen.replicas < place.replicas:
            wrong.append(
                f"{seen.replicas} replicas, not {place.replicas}: an operator adds them "
                "(kafka-reassign-partitions)"
            )
        why = f"{topic} was made by another program, with {', and '.join(wrong)}" if wrong else ""
        self._say_of(filter, why)

    def _say_of(self, filter: str, why: str) -> None:
        self._tell(GroupTrouble(filter, Trouble.TOPIC, why))

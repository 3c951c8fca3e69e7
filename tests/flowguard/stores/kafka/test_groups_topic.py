"""The topic that lists the groups, deleted or made by another client, on a real Kafka."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from flowguard.records import PutSession, SinkKind, key_of
from flowguard.stores import MemoryStore
from flowguard.stores.group_feed import GroupBegan, GroupEnded
from flowguard.stores.kafka.groups.roster import roster_topic
from tests.flowguard.stores.kafka.benches import new_prefix, open_link
from tests.flowguard.stores.kafka.deletion import delete_topic
from tests.flowguard.stores.kafka.test_groups import FILTER, JOIN, Side, again, sides, until
from tests.support.kafka import Kafka, shared_kafka
from tests.support.patience import HANG_S


@pytest.mark.slow
def test_what_is_said_of_groups_is_said_again_where_somebody_has_deleted_it() -> None:
    groups = new_prefix()
    with sides(groups, 2) as (one, two):
        one.store.commit([JOIN])
        one.publish(b"0")
        topic = one.topic()
        until(lambda: GroupBegan(FILTER) in two.news, two)
        delete_topic(shared_kafka(), roster_topic(groups))
        until(lambda: is_known_to_others(groups, topic), one)
        other = PutSession(key_of(SinkKind.MEMBERS, "$share/g/other"), 0xFFFFFFFF, None, True)
        two.publish_at_last(other)
        one.groups.want(FILTER, True)
        until(lambda: one.has, one)
        assert GroupEnded(FILTER) not in [*one.news, *two.news]


def is_known_to_others(groups: str, topic: str) -> bool:
    """Return True if a broker that starts finds the topic of the group."""
    with sides(groups) as (late,):
        found = late.groups._roster.get(FILTER)
        return found is not None and found.topic == topic


@pytest.mark.slow
def test_a_group_keeps_its_messages_where_all_that_was_said_of_it_is_lost() -> None:
    base, groups = MemoryStore(), new_prefix()
    one = Side(groups, base)
    one.store.commit([JOIN])
    one.publish(b"0", b"1")
    topic = one.topic()
    one.store.close()
    delete_topic(shared_kafka(), roster_topic(groups))
    for _ in range(2):
        with again(groups, base) as two:
            assert two.topic() == topic
            two.groups.want(FILTER, True)
            until(lambda two=two: len(two.has) == 2, two)  # type: ignore[misc]


def compacted_settings(server: Kafka, topic: str) -> dict[str, str]:
    """Return the settings of a topic that is compacted now, or soon.

    A node of Kafka may answer by older settings for a moment after it has accepted new ones.
    """
    asked = ConfigResource(ConfigResourceType.TOPIC, topic)
    deadline_s = time.monotonic() + HANG_S
    while True:
        (answer,) = server.call(lambda admin: admin.describe_configs([asked]))
        found = {name: value for name, value, *_ in answer.resources[0][4]}
        if found["cleanup.policy"] == "compact":
            return found
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)


@pytest.mark.slow
def test_a_topic_of_groups_that_somebody_else_has_made_forgets_nothing_from_now_on() -> None:
    groups, server = new_prefix(), shared_kafka()
    topic = roster_topic(groups)
    link = open_link(server)
    link.create_topic(topic, 1, 1, {"cleanup.policy": "delete", "segment.ms": "777777"})
    with sides(groups):
        found = compacted_settings(server, topic)
    assert found["segment.ms"] == "777777"
    link.close()


@pytest.mark.slow
def test_a_node_that_does_not_know_the_topic_of_groups_yet_is_asked_again() -> None:
    topic, server = roster_topic(new_prefix()), shared_kafka()
    one, other = open_link(server), open_link(server)
    with ThreadPoolExecutor(1) as threads:
        compacted = threads.submit(one.compact_topic, topic)
        # Asked before that, if nothing pauses.
        with pytest.raises(TimeoutError):
            compacted.result(0.5)
        other.create_topic(topic, 1, 1, {"cleanup.policy": "delete"})
        compacted.result()
    compacted_settings(server, topic)
    one.close()
    other.close()

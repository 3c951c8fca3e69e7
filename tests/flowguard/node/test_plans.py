"""Plans are a cache: bounded by what they hold, whatever topics and subscribers there are.

And they are right, though a SUBSCRIBE forgets none but those of topics that it matches.
"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.node.publish.plans import Plan
from flowguard.routing import matches
from flowguard.routing.changed_filters import CHANGES_MAX
from tests.flowguard.node.ledger import check_plans
from tests.flowguard.routing.strategies import filters, topics
from tests.support.stage import Client, Stage

MIB = 1024 * 1024


def small_stage() -> Stage:
    """A stage whose plans have a budget of a megabyte."""
    return Stage({"node": {"plans_bytes_max": MIB}})


def used_bytes(stage: Stage) -> int:
    """Return the counted bytes, after checking that they equal the sum, and are within the
    bound."""
    check_plans(stage.node)
    return stage.node.router.plans.budget.used_bytes


def test_many_topics_are_not_all_remembered() -> None:
    stage = small_stage()
    plans = stage.node.router.plans
    kept = plans.find("0")
    count = 1
    while len(plans.by_topic) == count:
        assert plans.find("0") is kept
        plans.find(str(count))
        count += 1
    # The oldest has gone, and one goes for each that comes.
    assert 1_000 < count < 4_000
    for number in range(count, count + 10):
        plans.find(str(number))
    assert set(plans.by_topic) == {str(number) for number in range(11, count + 10)}
    assert used_bytes(stage) > 0.99 * MIB


def test_long_topics_count_more() -> None:
    stage = small_stage()
    plans = stage.node.router.plans
    for number in range(300):
        plans.find(f"{number}".ljust(65_000, "x"))
        used_bytes(stage)
    assert 10 < len(plans.by_topic) < 17


def test_topics_of_many_subscribers_count_more() -> None:
    stage = small_stage()
    for number in range(500):
        stage.connect(str(number), version=4).subscribe("#")
    plans = stage.node.router.plans
    for number in range(1_000):
        plans.find(str(number))
    used_bytes(stage)
    assert 100 < len(plans.by_topic) < 220


@pytest.mark.slow
def test_a_plan_that_is_larger_than_its_share_of_the_bound_is_made_each_time() -> None:
    stage = small_stage()
    for number in range(3_000):
        stage.connect(str(number)).subscribe("#", identifier=1 + number)
    plans = stage.node.router.plans
    assert plans.find("t").deliveries == 6_000
    assert plans.find("t") is not plans.find("t")
    assert used_bytes(stage) < MIB / 8
    plans.find("$t")
    assert "$t" in plans.by_topic


# --- counted bytes equal the bytes in memory --------------------------------------------------


@contextmanager
def tracing() -> Iterator[Callable[[], int]]:
    """Says how many bytes have been taken since, and not given back."""
    gc.collect()
    tracemalloc.start()

    def taken_bytes() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    try:
        yield taken_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 4)
@given(
    widths=st.lists(st.integers(1, 8), max_size=12),
    shared=st.integers(0, 30),
    identified=st.booleans(),
    padding=st.sampled_from(["", "x" * 200, "ä", "\U0001f600" * 9]),
)
def test_bytes_that_are_counted_are_those_that_are_taken(
    widths: list[int], shared: int, identified: bool, padding: str
) -> None:
    stage = Stage()
    for number, width in enumerate(widths):
        client = stage.connect(f"{number}")
        for level in range(width):
            identifier = 1_000 + 10 * number + level if identified else 0
            client.subscribe("/".join("+" * (level + 1)) + "/#", qos=1, identifier=identifier)
    member = stage.connect("member")
    for number in range(shared):
        member.subscribe(f"$share/{number}/#", qos=1)
    plans = stage.node.router.plans
    plans.find("warm")
    before_bytes = used_bytes(stage)
    with tracing() as taken_bytes:
        for number in range(300):
            plans.find(f"1/2/3/4/{padding}{number}")
        counted_bytes = used_bytes(stage) - before_bytes
        assert taken_bytes() / 1.1 < counted_bytes < 1.6 * taken_bytes()


def test_a_topic_that_is_forgotten_again_and_again_is_counted_each_time() -> None:
    """A part of the memory for a topic stays until it is the oldest one."""
    stage = small_stage()
    plans = stage.node.router.plans
    client = stage.connect("c")
    with tracing() as taken_bytes:
        for number in range(60):
            topic = f"{number}".ljust(60_000, "x")
            plans.find(topic)
            client.subscribe(topic)
            client.unsubscribe(topic)
            used_bytes(stage)
        assert taken_bytes() < 1.2 * MIB


@pytest.mark.slow
def test_filters_that_have_changed_are_counted() -> None:
    stage = small_stage()
    client = stage.connect("c")
    stage.node.router.plans.find("t")
    with tracing() as taken_bytes:
        for number in range(100):
            for filter in (f"{number}/#".rjust(60_000, "x"), f"{number}/" * 190 + "#"):
                client.subscribe(filter)
                client.unsubscribe(filter)
                used_bytes(stage)
        assert taken_bytes() < MIB / 4


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True], ids=["few filters", "many filters"])
def test_what_is_over_is_counted_until_no_plan_keeps_it(many: bool) -> None:
    """A stale plan keeps sessions and groups that have no other references."""
    stage = small_stage()
    plans = stage.node.router.plans
    name = "g" * 60_000
    filters = [f"f/{number}" for number in range(300 * many)]
    with tracing() as taken_bytes:
        for number in range(60):
            client = stage.connect("c" * 60_000)
            client.subscribe("+", *filters)
            client.subscribe(f"$share/{name}/+")
            plans.find(f"{number}")
            client.disconnect()
            used_bytes(stage)
        assert taken_bytes() < 1.2 * MIB
        assert used_bytes(stage) > MIB / 2
        stage.advance(1.0)
        assert used_bytes(stage) < MIB / 8
        assert taken_bytes() < MIB / 8


def test_what_is_looked_at_and_is_right_stays(version: int) -> None:
    stage = small_stage()
    reader = stage.connect("reader", version=version)
    reader.subscribe("kept/#")
    plans = stage.node.router.plans
    kept = [plans.find(f"kept/{number}") for number in range(50)]
    other = stage.connect("other", version=version)
    other.subscribe("other/#")
    plans.find("other/1")
    other.disconnect()
    stage.advance(1.0)
    assert [plans.by_topic[f"kept/{number}"] for number in range(50)] == kept
    assert "other/1" not in plans.by_topic
    assert used_bytes(stage) < 60 * 1_000


def test_a_plan_is_found_again_until_subscriptions_change() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.subscribe("#")
    plans = stage.node.router.plans
    plan = plans.find("t")
    assert plans.find("t") is plan
    client.subscribe("t")
    assert plans.find("t") is not plan


def test_a_plan_knows_its_only_subscriber_unless_the_message_would_not_stay_what_it_is() -> None:
    stage = Stage()
    plans = stage.node.router.plans
    assert plans.find("t").solo is None
    one = stage.connect("one")
    for options in ({"no_local": True}, {"identifier": 7}, {}):
        one.subscribe("t", qos=1, **options)  # type: ignore[arg-type]
        assert (plans.find("t").solo is one.connection.session) == (not options)
    for qos in (0, 2):
        one.subscribe("t", qos=qos)
        assert plans.find("t").solo is one.connection.session
        assert plans.find("t").burst_qos == min(qos, 1)
    stage.connect("two").subscribe("+", qos=1)
    assert plans.find("t").solo is None


def test_a_shared_subscriber_is_no_solo_and_a_durable_one_only_at_qos_0() -> None:
    stage = Stage()
    plans = stage.node.router.plans
    durable = stage.connect_durable("durable")
    durable.subscribe("d", qos=1)
    assert plans.find("d").solo is durable.connection.session
    assert plans.find("d").burst_qos == 0
    stage.connect("one").subscribe("t", qos=1)
    stage.connect("two").subscribe("$share/g/t", qos=1)
    assert plans.find("t").solo is None


def test_identifiers_of_overlapping_filters_come_in_their_order_and_weigh() -> None:
    stage = Stage()
    client = stage.connect("c")
    levels = ["a"] * 10
    identifiers = list(range(1, 300))
    for identifier in identifiers:
        choice = [level if identifier >> bit & 1 else "+" for bit, level in enumerate(levels)]
        client.subscribe("/".join(choice), identifier=identifier)
    client.subscribe("#")
    plan = stage.node.router.plans.find("/".join(levels))
    (group,) = plan.groups
    assert sorted(group.identifiers) == identifiers
    assert group.sessions == [client.connection.session]
    assert plan.deliveries == 1 + len(identifiers)


# --- forgotten by topic --------------------------------------------------------------------------

Reached = tuple[object, ...]


def reached(plan: Plan) -> Reached:
    groups = [
        (group.qos, group.identifiers, sorted(session.client_id for session in group.sessions))
        for group in plan.groups
    ]
    shared = sorted((group.name, group.filter) for group in plan.shared)
    return sorted(groups), shared, plan.deliveries, plan.ops


def change(client: Client, filter: str, qos: int | None) -> None:
    if qos is None:
        client.unsubscribe(filter)
    else:
        client.subscribe(filter, qos=qos)


@given(
    published=st.lists(topics, min_size=1, max_size=5),
    changes=st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from(["", "", "$share/a/", "$share/b/"]),
            filters,
            st.sampled_from([0, 1, 2, None]),
        ),
        max_size=30,
    ),
)
def test_a_plan_is_right_whatever_has_changed_and_stays_where_nothing_has(
    published: list[str], changes: list[tuple[bool, str, str, int | None]]
) -> None:
    stage = Stage()
    plans = stage.node.router.plans
    clients = (stage.connect_durable("durable"), stage.connect("clean"))
    kept = {topic: plans.find(topic) for topic in published}
    for first, share, filter, qos in changes:
        change(clients[first], share + filter, qos)
        for topic in published:
            plan = plans.find(topic)
            assert reached(plan) == reached(plans.make(topic))
            assert plan is kept[topic] or matches(filter, topic)
            kept[topic] = plan
        check_plans(stage.node)


def test_more_changes_than_are_remembered_are_met_all_the_same() -> None:
    stage = Stage()
    plans = stage.node.router.plans
    client = stage.connect("c")
    client.subscribe("a/+")
    assert plans.find("a/b").deliveries == 1
    client.unsubscribe("a/+")
    for number in range(CHANGES_MAX + 1):
        client.subscribe(f"{number}/+")
    assert plans.find("a/b").is_empty


def test_what_one_client_subscribes_to_leaves_the_plans_of_others_alone() -> None:
    stage = Stage()
    for number in range(3):
        stage.connect(str(number)).subscribe("crowd/+/news")
    plans = stage.node.router.plans
    plan = plans.find("crowd/x/news")
    other = stage.connect("other")
    for filter in ("other/#", "+", "crowd/+", "crowd/x/+/old", "$share/g/other/+"):
        other.subscribe(filter)
        assert plans.find("crowd/x/news") is plan
    other.subscribe("crowd/#")
    assert plans.find("crowd/x/news").deliveries == 4

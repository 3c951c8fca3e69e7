"""Plans are a cache: bounded by what they hold, whatever topics and subscribers there are.

And they are right, though a SUBSCRIBE forgets none but those of topics that it matches.
"""

from hypothesis import given
from hypothesis import strategies as st

from flowguard.node.plans import PLANS_MAX, PLANS_WEIGHT_MAX, Plan, Plans
from flowguard.routing import matches
from flowguard.routing.changes import CHANGES_MAX
from tests.flowguard.routing.strategies import filters, topics
from tests.support.stage import Client, Stage


def weight(plans: Plans) -> int:
    return sum(
        len(topic) + sum(len(group.sessions) for group in plan.groups)
        for topic, plan in plans.by_topic.items()
    )


def test_many_topics_are_not_all_remembered() -> None:
    plans = Stage().node.router.plans
    kept = plans.find("0")
    for number in range(PLANS_MAX):
        plans.find(str(number))
    assert plans.find("0") is kept
    for number in range(PLANS_MAX, PLANS_MAX + 10):
        plans.find(str(number))
    # The oldest ones have gone, one for each that came.
    assert len(plans.by_topic) == PLANS_MAX
    assert set(plans.by_topic) == {str(number) for number in range(10, PLANS_MAX + 10)}


def test_long_topics_count_more() -> None:
    plans = Stage().node.router.plans
    for number in range(300):
        plans.find(f"{number}".ljust(65_000, "x"))
        assert weight(plans) <= PLANS_WEIGHT_MAX
    assert plans.by_topic


def test_topics_of_many_subscribers_count_more() -> None:
    stage = Stage()
    for number in range(500):
        stage.connect(str(number), version=4).subscribe("#")
    plans = stage.node.router.plans
    for number in range(20_000):
        plans.find(str(number))
    assert 0 < weight(plans) <= PLANS_WEIGHT_MAX


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
    one.subscribe("t", qos=0)
    assert plans.find("t").solo is None
    one.subscribe("t", qos=2)
    assert plans.find("t").solo is one.connection.session
    stage.connect("two").subscribe("+", qos=1)
    assert plans.find("t").solo is None


def test_a_shared_or_a_durable_subscriber_is_no_solo() -> None:
    stage = Stage()
    plans = stage.node.router.plans
    stage.connect_durable("durable").subscribe("d", qos=1)
    assert plans.find("d").solo is None
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

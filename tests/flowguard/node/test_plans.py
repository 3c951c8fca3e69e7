"""Plans are a cache: bounded by what they hold, whatever topics and subscribers there are."""

from flowguard.node.plans import PLANS_MAX, PLANS_WEIGHT_MAX, Plans
from tests.support.stage import Stage


def weight(plans: Plans) -> int:
    return sum(
        len(topic) + sum(len(group.sessions) for group in plan.groups)
        for topic, plan in plans.by_topic.items()
    )


def test_many_topics_are_not_all_remembered() -> None:
    plans = Stage().node.router.plans
    for number in range(PLANS_MAX + 1):
        plans.find(str(number))
    assert len(plans.by_topic) == 1


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

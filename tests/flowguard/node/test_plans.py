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

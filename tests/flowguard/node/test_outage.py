"""When a store counts as unavailable, and since when."""

import pytest

from flowguard.flow.load.signals import StoreState
from flowguard.stores import StoreLoad
from tests.support.stage import Stage


def test_a_store_that_rejects_commits_is_unavailable_since_the_first_of_them() -> None:
    stage = Stage()
    node, began_s = stage.node, stage.now_s
    node.store_away(began_s, "h: connection refused")
    node.tick(began_s)
    assert node.outage.lasted_s(began_s + 1.0) == 0.0
    assert node.outage.lasted_s(began_s + 1.5) == pytest.approx(1.5)
    node.store_away(began_s + 12.0, "h: timeout")
    node.tick(began_s + 12.0)
    assert node.outage.lasted_s(began_s + 12.0) == pytest.approx(12.0)
    assert node.outage.why == "h: timeout"
    node.fence(frozenset(), began_s + 13.0)
    node.tick(began_s + 13.0)
    assert (node.outage.lasted_s(began_s + 20.0), node.outage.why) == (0.0, "")


def test_an_idle_store_that_loses_its_server_is_unavailable() -> None:
    stage = Stage()
    node, began_s = stage.node, stage.now_s
    node.observe_store(StoreLoad(state=StoreState.STOPPED))
    node.tick(began_s)
    assert node.outage.lasted_s(began_s + 5.0) == pytest.approx(5.0)


def test_a_commit_that_does_not_end_counts_from_its_beginning() -> None:
    stage = Stage()
    node, began_s = stage.node, stage.now_s
    node.journal.append([], lambda _: None, began_s)
    assert node.journal.take(began_s) is not None
    node.tick(began_s + 2.9)
    assert node.outage.lasted_s(began_s + 2.9) == 0.0
    node.tick(began_s + 3.1)
    assert node.outage.lasted_s(began_s + 3.1) == pytest.approx(3.1)


def test_a_full_disk_is_no_outage() -> None:
    stage = Stage()
    node, began_s = stage.node, stage.now_s
    node.journal.append([], lambda _: None, began_s)
    assert node.journal.take(began_s) is not None
    node.no_space(began_s)
    node.tick(began_s + 60.0)
    assert node.outage.lasted_s(began_s + 60.0) == 0.0

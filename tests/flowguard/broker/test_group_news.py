"""The store's news of groups of several brokers reaches the node, at any time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio

from flowguard.broker.commits.application_committer import ApplicationCommitter
from flowguard.stores.group_feed import GroupBegan
from tests.flowguard.node.test_spread_queues import FILTER, spread_stage
from tests.support.patience import HANG_S


async def test_what_was_said_before_anybody_listened_is_heard() -> None:
    """A group that another broker has begun between recovery and the first commit."""
    stage, store = spread_stage()
    wakes: list[Callable[[], None]] = []
    store.feed.on_news = wakes.append  # type: ignore[method-assign]
    store.feed.news.append(GroupBegan(FILTER))
    heard = trio.Event()
    turns = SimpleNamespace(end_slice=lambda _: None)
    reactor: Any = SimpleNamespace(turns=turns, wake=heard.set)
    committer = ApplicationCommitter(stage.node, store, lambda: stage.now_s)
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.listen, reactor)
            await heard.wait()
            nursery.cancel_scope.cancel()
    assert wakes
    assert stage.node.router.queues.spread.count == 1

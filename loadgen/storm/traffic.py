"""Traffic: publishers and subscribers, and the books on every message.

A message carries its publisher's number, its own (from 0) and the instant it was due. So a
subscriber can list its missing messages. "Lost" is a sum of the books, not a guess: the missing
messages, less those that were not acknowledged to their publisher.
"""

from collections.abc import Callable
from typing import Final, final

from loadgen.storm.client import Stage
from loadgen.storm.crowd import Crowd
from loadgen.storm.plan import CrowdPlan, Target, TrafficPlan
from loadgen.storm.publisher import Publisher
from loadgen.storm.subscriber import Flow, Subscriber
from loadgen.storm.tally import Result, TrafficTally

QUIET_S: Final = 3.0
"""A subscriber that reads again and gets nothing for this long has received everything."""


@final
class Traffic:
    """Publishers and subscribers; run it once, `tally` and `crowd.tally` are live."""

    def __init__(
        self,
        target: Target,
        plan: TrafficPlan,
        crowd_plan: CrowdPlan,
        clock: Callable[[], float],
        *,
        began: Callable[[], None] = lambda: None,
    ) -> None:
        """`began` is called when all clients are connected and subscribed, before the first
        PUBLISH."""
        assert crowd_plan.clients == plan.clients
        self.plan = plan
        self.crowd = Crowd(target, crowd_plan, clock)
        self.loop = self.crowd.loop
        self.version = target.version
        self.tally = TrafficTally()
        self.publishing = False
        self._began = began
        self._finished = False
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        clients = iter(self.crowd.clients)
        for group in range(plan.groups):
            topic = f"{self.crowd.name}/{group}"
            subscribers = [Subscriber(self, next(clients), topic) for _ in range(plan.subscribers)]
            for subscriber in subscribers[: plan.slow]:
                subscriber.slow = True
            for _ in range(plan.publishers):
                number = len(self.publishers)
                publisher = Publisher(self, next(clients), topic, number)
                publisher.subscribers = subscribers
                publisher.client.part = publisher
                self.publishers.append(publisher)
                for subscriber in subscribers:
                    subscriber.flows[number] = Flow()
            for subscriber in subscribers:
                subscriber.client.part = subscriber
            self.subscribers += subscribers

    def stop(self) -> None:
        """End early, in order; the tally stays valid."""
        self.crowd.stop()

    def finish(self) -> None:
        """Stop publishing; messages in flight may still arrive."""
        self._finished = True

    async def run(self) -> None:
        """Connect, subscribe, publish, wait for messages in flight, disconnect."""
        crowd = self.crowd
        try:
            if await crowd.connect() and await self._subscribed():
                await self._publish()
                self._close_books()
            await crowd.leave()
        finally:
            crowd.loop.close_all()

    async def _subscribed(self) -> bool:
        """Return True if all clients are connected, and all subscriptions made."""
        if self.crowd.tally.connected < self.plan.clients:
            return False
        until_s = self.loop.clock() + self.crowd.plan.timeout_s

        def ready(now_s: float) -> bool:
            return now_s >= until_s or all(each.answered for each in self.subscribers)

        await self.loop.run(ready)
        return all(subscriber.ready for subscriber in self.subscribers)

    async def _publish(self) -> None:
        loop = self.loop
        started_s = loop.clock()
        slow = [subscriber for subscriber in self.subscribers if subscriber.slow]
        for subscriber in slow:
            subscriber.hold(started_s)
        self.tally.heard_at_s = started_s
        self.publishing = True
        self._began()
        for number, publisher in enumerate(self.publishers):
            # Paced publishers start spread over their period, because a crowd of pulses is not a
            # steady load.
            period_s = 1 / self.plan.rate_per_s if self.plan.rate_per_s else 0.0
            loop.call_at(started_s + period_s * number / len(self.publishers), publisher.start)
        until_s = started_s + self.plan.seconds
        await loop.run(lambda now_s: self._finished or self.crowd.over or now_s >= until_s)
        self.publishing = False
        ended_s = loop.clock()
        self.tally.seconds = ended_s - started_s
        if self.plan.qos:
            self.tally.heard(ended_s)  # Silence until now counts, too.
        for subscriber in slow:
            subscriber.release()
        until_s = ended_s + self.plan.late_s
        await loop.run(lambda now_s: now_s >= until_s or self._is_over(now_s, ended_s))
        self.tally.catch_up_s = max(0.0, self.tally.received_at_s - ended_s)

    def _is_over(self, now_s: float, ended_s: float) -> bool:
        """Return True if messages that are still in flight will not arrive any more."""
        if all(publisher.settled for publisher in self.publishers):
            return True
        quiet_s = now_s - max(ended_s, self.tally.received_at_s, self.tally.heard_at_s)
        return self.plan.slow > 0 and quiet_s > QUIET_S

    def _close_books(self) -> None:
        tally = self.tally
        slow = [subscriber for subscriber in self.subscribers if subscriber.slow]
        tally.slow_cut = sum(subscriber.client.stage is not Stage.IN for subscriber in slow)
        for publisher in self.publishers:
            tally.expected += publisher.sent * len(publisher.subscribers)
            for subscriber in publisher.subscribers:
                missing = subscriber.flows[publisher.number].missing(publisher.sent)
                tally.missing += len(missing)
                acknowledged = publisher.acknowledged_of(missing)
                tally.acknowledged_lost += acknowledged
                tally.slow_lost += acknowledged if subscriber.slow else 0

    def result(self) -> Result:
        return {**self.crowd.tally.result(), **self.tally.result()}

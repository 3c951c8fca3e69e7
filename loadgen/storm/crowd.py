"""Crowd: all clients of a storm. They connect at once, hold their connections, and leave."""

from collections.abc import Callable, Sequence
from random import Random
from typing import final

from loadgen.storm.client import Client
from loadgen.storm.loop import ClientLoop
from loadgen.storm.plan import CrowdPlan, Target
from loadgen.storm.tally import ConnectTally, Result

LEAVE_AT_ONCE = 100
"""Number of clients that disconnect per turn, so that the end of a storm is not a storm as well."""
LEAVE_EVERY_S = 0.005


@final
class Crowd:
    """All clients of a storm. Run it once; `tally` is live."""

    def __init__(
        self,
        target: Target,
        plan: CrowdPlan,
        clock: Callable[[], float],
        places: Sequence[tuple[str | int | bytes, ...]] = (),
    ) -> None:
        """`places` as `ClientLoop`."""
        self.plan = plan
        self.rng = Random(plan.seed)
        self.loop = ClientLoop(target, clock, places)
        self.tally = ConnectTally(plan.clients)
        # Not seeded: two storms at one broker must not take each other's sessions over.
        name = f"{Random().getrandbits(40):010x}"
        self.name = f"storm-{name}"
        self.clients = [
            Client(self, f"{self.name}-{number}", target.access.user(number))
            for number in range(plan.clients)
        ]
        self._stopped = False

    def stop(self) -> None:
        """End early, in order; the tally stays valid."""
        self._stopped = True

    async def run(self) -> None:
        try:
            if await self.connect():
                until_s = self.loop.clock() + self.plan.hold_s
                await self.loop.run(lambda now_s: self.over or now_s >= until_s)
            await self.leave()
        finally:
            self.loop.close_all()

    @property
    def over(self) -> bool:
        """True if the storm was stopped, or no client is left: lost connections are not made
        again."""
        return self._stopped or (self.tally.settled and not self.tally.connected)

    async def connect(self) -> bool:
        """Connect until all clients are done, at most `plan.seconds`. Return False if stopped."""
        started_s = self.tally.started_s = self.loop.clock()
        self.tally.trying = len(self.clients)
        for client in self.clients:
            self.loop.call_at(started_s, client.attempt)
        until_s = started_s + self.plan.seconds
        await self.loop.run(lambda now_s: self._stopped or self.tally.settled or now_s >= until_s)
        self.tally.seconds = self.loop.clock() - started_s
        return not self._stopped

    async def leave(self) -> None:
        """Send DISCONNECT from all clients, in portions; the tally keeps the number of connected
        clients."""
        waiting = list(reversed(self.clients))

        def leave_some(now_s: float) -> None:
            for _ in range(min(LEAVE_AT_ONCE, len(waiting))):
                waiting.pop().leave()
            if waiting:
                self.loop.call_at(now_s + LEAVE_EVERY_S, leave_some)

        self.loop.call_at(self.loop.clock(), leave_some)
        await self.loop.run(lambda _: not waiting)

    def result(self) -> Result:
        return self.tally.result()

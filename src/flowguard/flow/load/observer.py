"""Observer: what a node observes of itself between two ticks, as one `Sample`.

Reports are of two kinds. *Events* count for the tick in which they happen: starts, ages of waiting
packets, finished packets. Drifts and commits count for a second, or since the window was cut.
*Levels* (the store's state, replication, memory) hold until the next report, so that memory that is
read once a second need not be read ten times.

Reports arrive per reactor turn, per commit, some per packet. Each costs a few attribute accesses,
and memory stays the same at any rate.
"""

from bisect import bisect_left
from math import inf, sqrt
from typing import Final, final

from flowguard.flow.load.signals import Sample, StoreState

SUBWINDOWS: Final = 10
"""Sub-windows of one second: a percentile covers the running one and the nine before."""
SUBWINDOWS_MIN: Final = 2
"""Minimum after a restart, including the running one, which has only begun."""
BUCKET_RATIO: Final = 1.1
BUCKET_MIN_S: Final = 0.000_1
"""Durations below it count as zero."""
BUCKET_COUNT: Final = 134
BOUNDS_S: Final[list[float]] = [BUCKET_MIN_S * BUCKET_RATIO**index for index in range(BUCKET_COUNT)]
"""Upper bounds of the buckets; above the last one, 32 seconds, all durations are alike."""
DRIFT_WEIGHT_PER_S: Final = 1_000
_NEVER: Final = -(1 << 62)


@final
class RecentPercentile:
    """The 90th percentile of durations reported in the last 0.9 to 1.0 seconds.

    Or since `restart`, if that is less, but of 0.1 to 0.2 seconds at least, and only if there was
    any: until a slow store has reported again it is as slow as it was. A histogram with
    logarithmic buckets per sub-window of 0.1 s: about 12 KB at any rate. From 0.1 ms to 32 s the
    answer is within 5 % of the exact one (nearest rank), because it is the geometric middle of a
    bucket that is 10 % wide.
    """

    def __init__(self) -> None:
        self._rows = [[0] * (BUCKET_COUNT + 1) for _ in range(SUBWINDOWS)]
        self._counts = [0] * (BUCKET_COUNT + 1)
        """Sums of the rows."""
        self._count = 0
        self._first = _NEVER
        """The sub-window from which on durations count."""
        self._subwindow = _NEVER

    def add(self, duration_s: float, now_s: float, weight: int = 1) -> None:
        """Count one duration. If time goes backwards, it counts as standing still."""
        subwindow = int(now_s * SUBWINDOWS)
        if subwindow > self._subwindow:
            self._advance(subwindow)
        bucket = bisect_left(BOUNDS_S, duration_s) if duration_s > BUCKET_MIN_S else 0
        self._rows[self._subwindow % SUBWINDOWS][bucket] += weight
        self._counts[bucket] += weight
        self._count += weight

    def restart(self, now_s: float) -> None:
        """Forget earlier reports, which predict little."""
        self._first = int(now_s * SUBWINDOWS) + 1

    def p90_s(self, now_s: float, least_per_s: int = 0) -> float:
        """Return the 90th percentile; 0 if there were no durations.

        Weights that are missing to `least_per_s` count as durations of 0.
        """
        subwindow = int(now_s * SUBWINDOWS)
        if subwindow > self._subwindow:
            self._advance(subwindow)
        counts, count, length = self._counts, self._count, SUBWINDOWS
        since = subwindow - max(self._first, subwindow - SUBWINDOWS + 1) + 1
        if since < SUBWINDOWS:
            since = max(SUBWINDOWS_MIN, since)
            rows = [self._rows[(subwindow - age) % SUBWINDOWS] for age in range(since)]
            recent = [sum(row[bucket] for row in rows) for bucket in range(BUCKET_COUNT + 1)]
            recent_count = sum(recent)
            if recent_count or least_per_s:  # Else only older reports exist.
                counts, count, length = recent, recent_count, since
        if not count:
            return 0.0
        total = max(count, least_per_s * length // SUBWINDOWS)
        missing = (9 * total + 9) // 10 - (total - count)
        if missing <= 0:
            return 0.0
        bucket = -1
        while missing > 0:
            bucket += 1
            missing -= counts[bucket]
        if bucket == 0:
            return 0.0
        if bucket == BUCKET_COUNT:
            return BOUNDS_S[-1]
        return BOUNDS_S[bucket] / sqrt(BUCKET_RATIO)

    def _advance(self, subwindow: int) -> None:
        """Forget the sub-windows that are more than a second old."""
        first = max(self._subwindow + 1, subwindow - SUBWINDOWS + 1)
        for old in range(first, subwindow + 1):
            row = self._rows[old % SUBWINDOWS]
            for bucket, count in enumerate(row):
                if count:
                    row[bucket] = 0
                    self._counts[bucket] -= count
                    self._count -= count
        self._subwindow = subwindow


@final
class Observer:
    """Collects the reports since the last tick; `take` makes the sample and starts again."""

    def __init__(self) -> None:
        self._drifts = RecentPercentile()
        self._commits = RecentPercentile()
        self._store_state = StoreState.FLOWING
        self._store_worst = StoreState.FLOWING
        self._replication_age_s = 0.0
        self._memory_share = 0.0
        self._unfinished_share = 0.0
        self._sojourn_s = inf
        self._waiting_s = 0.0
        self._commit_age_s = 0.0
        self._kept_waiting_s = 0.0
        self._finished = 0
        self._response_sum_s = 0.0
        self.running_share = 1.0
        """Share of the time with work in which the loop has a processor, 0 to 1."""
        self._worked_s = 0.0
        self._connecting_s = 0.0
        self._handshakes_s = 0.0
        self._reports_work = False

    def worked(self, took_s: float) -> None:
        """Count time for which the loop has worked, on anything."""
        self._worked_s += took_s

    @property
    def connecting_s(self) -> float:
        """Seconds that serving CONNECTs took since the last tick."""
        return self._connecting_s

    def connecting(self, took_s: float) -> None:
        """Count the part of it that was spent on admitted CONNECTs."""
        self._connecting_s += took_s

    @property
    def handshakes_s(self) -> float:
        """Seconds that handshakes took since the last tick."""
        return self._handshakes_s

    def shook_hands(self, took_s: float) -> None:
        """Count the part of it that handshakes took."""
        self._handshakes_s += took_s

    def started(self, sojourn_s: float) -> None:
        """A packet waited `sojourn_s` and starts now. For a batch it is the shortest wait.

        The minimum over the tick counts: a queue that is empty now and then does not stand.
        """
        if sojourn_s < self._sojourn_s:
            self._sojourn_s = sojourn_s

    def waiting(self, age_s: float) -> None:
        """The oldest packet that still waits is `age_s` old; counts if none is started."""
        if age_s > self._waiting_s:
            self._waiting_s = age_s

    def drift(self, drift_s: float, now_s: float) -> None:
        """The event loop drifted by `drift_s`; the 90th percentile over a second counts.

        It is weighted by time, not by number: all clients waited for one turn of 0.9 s, however
        many short ones share its second. Time without a report counts as no drift.
        """
        self._drifts.add(drift_s, now_s, 1 + int(drift_s * DRIFT_WEIGHT_PER_S))

    def kept_waiting(self, wait_s: float) -> None:
        """Connections with packets and window capacity have waited `wait_s` on average so far.

        For them it is a drift of the loop. The longest of the tick counts, and no earlier one,
        because it is reported in every turn.
        """
        if wait_s > self._kept_waiting_s:
            self._kept_waiting_s = wait_s

    def committed(self, latency_s: float, now_s: float) -> None:
        """A durable write took `latency_s`; the 90th percentile over a second counts."""
        self._commits.add(latency_s, now_s)

    def committing(self, age_s: float) -> None:
        """A durable write has been under way for `age_s`, which is its minimum latency.

        Without it, a store that hangs would never be reported.
        """
        if age_s > self._commit_age_s:
            self._commit_age_s = age_s

    def finished(self, count: int, response_sum_s: float) -> None:
        """`count` packets are done; their times from admission to done add up to the sum."""
        self._finished += count
        self._response_sum_s += response_sum_s

    def store(self, state: StoreState) -> None:
        """A level: the engine's own state; the worst since the last tick counts."""
        self._store_state = state
        if state.value > self._store_worst.value:
            self._store_worst = state

    def replication(self, age_s: float) -> None:
        """A level: age of the oldest unacknowledged replication; 0 if there is none."""
        self._replication_age_s = age_s

    def memory(self, share: float, unfinished_share: float) -> None:
        """A level: resident memory by its limit, bytes in process by their budget, 0 to 1."""
        self._memory_share = share
        self._unfinished_share = unfinished_share

    def restart(self, now_s: float) -> None:
        """The window was cut: percentiles are of the reports from now on.

        If they included earlier reports, ten cuts would answer the same second.
        """
        self._drifts.restart(now_s)
        self._commits.restart(now_s)

    def take(
        self,
        now_s: float,
        in_process: int,
        clients_active: int,
        waiting_share: float = 0.0,
        connect_room_bytes: float = inf,
        work: float = 0.0,
        movable_work: float = 0.0,
    ) -> Sample:
        """Return the sample of the tick that ends now, with the values that only the caller has."""
        if work > 0.0:
            self._reports_work = True
        sample = Sample(
            now_s=now_s,
            sojourn_s=self._waiting_s if self._sojourn_s == inf else self._sojourn_s,
            drift_s=max(self._kept_waiting_s, self._drifts.p90_s(now_s, DRIFT_WEIGHT_PER_S)),
            commit_s=max(self._commit_age_s, self._commits.p90_s(now_s)),
            store_state=self._store_worst,
            replication_age_s=self._replication_age_s,
            memory_share=self._memory_share,
            waiting_share=waiting_share,
            connect_room_bytes=connect_room_bytes,
            unfinished_share=self._unfinished_share,
            response_s=self._response_sum_s / self._finished if self._finished else 0.0,
            completed=self._finished,
            in_process=in_process,
            clients_active=clients_active,
            running_share=self.running_share,
            work=work,
            movable_work=movable_work if self._reports_work else None,
            worked_s=self._worked_s,
            connecting_s=self._connecting_s,
            handshakes_s=self._handshakes_s,
        )
        self._sojourn_s = inf
        self._waiting_s = 0.0
        self._commit_age_s = 0.0
        self._kept_waiting_s = 0.0
        self._finished = 0
        self._response_sum_s = 0.0
        self._worked_s = self._connecting_s = self._handshakes_s = 0.0
        self._store_worst = self._store_state
        return sample

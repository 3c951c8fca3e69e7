"""Costs: how long work took the loop, and a commit the disk, by a regression over seconds.

Kinds of work come together, so their costs cannot always be told apart. Then the shares of
`SHARES` decide: the fit is a least-squares line with these as a weak prior.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from flowguard.flow.load.observer import BOUNDS_S, BUCKET_RATIO
from simulations.fitting.recorded import RecordedRun
from simulations.proportions import READING, SENDING

SHARES: Final = {
    ("accepted_count",): 10.0,
    ("refused_count", "discarded_count", "closed_count"): 3.0,
    ("published_count",): 1.5,
    ("delivered_count",): 1.0,
    ("commits_count",): 2.0,
}
"""Kinds of work, and their usual costs in those of a delivery."""
WEIGHT: Final = 0.001
"""Weight of the usual shares, beside that of all seconds."""
ROUNDS: Final = 500
BUSY_LEAST_S: Final = 0.5
"""Time in a second from which a loop is busy."""
ACCEPTING: Final = 0.1
"""Share of a CONNECT for the socket and decoding."""
COMMIT_LEAST: Final = 0.2
"""Least share of a commit's duration that does not depend on its operations."""
OP_SHARE: Final = 0.02
"""Usual cost of an operation, in commits."""


def least_squares(
    rows: Sequence[Sequence[float]], taken: Sequence[float], usual: Sequence[float]
) -> list[float]:
    """Return the costs, not negative, that explain `taken` best; `usual` are their usual shares."""
    count = len(usual)
    gram = [[sum(row[i] * row[j] for row in rows) for j in range(count)] for i in range(count)]
    right = [
        sum(row[i] * value for row, value in zip(rows, taken, strict=True)) for i in range(count)
    ]
    expected = [sum(cost * work for cost, work in zip(usual, row, strict=True)) for row in rows]
    square = sum(each * each for each in expected)
    if not square:
        return [0.0] * count
    scale = sum(each * value for each, value in zip(expected, taken, strict=True)) / square
    prior = [scale * cost for cost in usual]
    total = sum(value * value for value in taken)
    weights = [WEIGHT * total / (cost * cost) if cost else 0.0 for cost in prior]
    costs = list(prior)
    for _ in range(ROUNDS):
        for i in range(count):
            others = sum(gram[i][j] * costs[j] for j in range(count) if j != i)
            below = gram[i][i] + weights[i]
            if below:
                costs[i] = max(0.0, (right[i] - others + weights[i] * prior[i]) / below)
    return costs


def loop_by_second(run: RecordedRun) -> list[float]:
    """Return the time that the loop worked; a busy loop's also while it had no core.

    A loop with little work waits for a core when it wakes up. Durations of commits include that.
    """
    rows = run.rows("samples", "busy_s", "running_ratio")
    taken = [(busy_s or 0.0) / (ratio or 1.0) for busy_s, ratio in rows]
    return [
        with_waits_s if with_waits_s >= BUSY_LEAST_S else busy_s
        for with_waits_s, busy_s in zip(run.sums(taken), run.by_second("busy_s"), strict=True)
    ]


def work_by_second(run: RecordedRun) -> tuple[list[list[float]], list[float]]:
    """Return the counts of each kind of work, and the time that it took without that of an idle
    loop."""
    taken = loop_by_second(run)
    kinds = [map(sum, zip(*map(run.by_second, names), strict=True)) for names in SHARES]
    rows = [list(row) for row in zip(*kinds, strict=True)]
    idle = [took_s for row, took_s in zip(rows, taken, strict=True) if not any(row)]
    idle_s = sum(idle) / len(idle) if idle else 0.0
    return rows, [max(0.0, took_s - idle_s) for took_s in taken]


def node_costs(run: RecordedRun, queueing: float, notes: list[str]) -> dict[str, Any]:
    """Return table `node` of a scenario; `queueing`: share of a delivery before its commit."""
    rows, work = work_by_second(run)
    connect_s, refuse_s, publish_s, delivery_s, commit_s = least_squares(
        rows, work, list(SHARES.values())
    )
    totals = [sum(row[index] for row in rows) for index in range(len(SHARES))]
    unseen = [names[0] for names, total in zip(SHARES, totals, strict=True) if not total]
    if unseen:
        names = ", ".join(name.removesuffix("_count") for name in unseen)
        notes.append(f"There was no work of these kinds, so usual shares are assumed: {names}.")
    return {
        "accept_s": ACCEPTING * connect_s,
        "connect_s": max(1e-6, (1.0 - ACCEPTING) * connect_s),
        "refuse_s": max(0.0, refuse_s - ACCEPTING * connect_s),
        "read_s": READING * publish_s,
        "publish_s": max(1e-7, (1.0 - READING) * publish_s),
        "queue_s": queueing * delivery_s,
        "send_s": SENDING * (1.0 - queueing) * delivery_s,
        "delivery_s": (1.0 - SENDING) * (1.0 - queueing) * delivery_s,
        "handoff_s": commit_s,
        **_memory(run),
    }


def _memory(run: RecordedRun) -> dict[str, Any]:
    points = list(run.rows("samples", "connections_count", "memory_bytes"))
    least, most = min(points), max(points)
    grown = (most[1] - least[1]) / (most[0] - least[0]) if most[0] > least[0] else 0.0
    return {
        "process_bytes": int(min(size_bytes for _, size_bytes in points)),
        "connection_bytes": max(0, int(grown)),
        "memory_max_bytes": int(run.column("samples", "memory_limit_bytes")[0]),
    }


def store_costs(run: RecordedRun, handoff_s: float) -> dict[str, Any]:
    """Return table `store` of a scenario, or {} if the run does not show commits.

    The recorded duration of a commit includes that of handing it over, `handoff_s`.
    """
    columns = ("commits_count", "stored_count", "committing_s")
    rows = [row for row in run.rows("samples", *columns) if row[0] and row[2] is not None]
    if not rows:
        return {}
    _, op_s = least_squares([row[:2] for row in rows], [row[2] for row in rows], (1.0, OP_SHARE))
    commits, ops, total_s = (sum(column) for column in zip(*rows, strict=True))
    mean_s = total_s / commits
    fixed_s = mean_s - handoff_s - op_s * ops / commits
    return {
        "commit_s": max(COMMIT_LEAST * mean_s, fixed_s),
        "op_s": op_s,
        "commit_times": [
            [max(took_s - handoff_s - op_s * size, COMMIT_LEAST * took_s), count]
            for took_s, size, count in _commits(run, rows)
        ],
    }


def _commits(
    run: RecordedRun, rows: Sequence[tuple[int, int, float]]
) -> Iterator[tuple[float, float, int]]:
    """Yield duration, mean number of operations, and number of the commits of each bucket.

    The recording does not show which commit had which operations. Assumption: larger commits took
    longer.
    """
    times: dict[float, int] = {}
    for _, bound_s, count in run.histograms("commit"):
        times[bound_s] = times.get(bound_s, 0) + count
    sizes = sorted((stored / commits, commits) for commits, stored, _ in rows)
    scale = sum(times.values()) / sum(count for _, count in sizes)
    left = [(size, count * scale) for size, count in reversed(sizes)]
    for bound_s, count in sorted(times.items()):
        wanted, ops = float(count), 0.0
        while wanted > 0.0 and left:
            size, there = left.pop()
            taken = min(there, wanted)
            ops += taken * size
            wanted -= taken
            if there > taken:
                left.append((size, there - taken))
        yield _middle_s(bound_s), ops / count, count


def _middle_s(bound_s: float) -> float:
    """Return the geometric middle of a bucket."""
    return float(min(bound_s, BOUNDS_S[-1]) / BUCKET_RATIO**0.5)

"""Messages: how many were published, how evenly, how large, and to how many subscribers."""

from itertools import pairwise
from typing import Any, Final

from simulations.fitting.groups import ClientKind
from simulations.fitting.measured import publishing_seconds
from simulations.fitting.recorded import RecordedRun

POINTS_MAX: Final = 600
EVEN: Final = 0.5
"""Variance by mean of the messages in neighbouring samples, below which gaps are even: 1 is that of
a Poisson process."""
HARDLY: Final = 0.05
"""Deliveries per message below which the messages have no subscriber."""
ONE: Final = 1.5
"""Deliveries per message up to which each message has one subscriber."""
NEARLY_ALL: Final = 0.8
"""Share of the subscribers from which on all of them get each message."""


def add_messages(
    run: RecordedRun, groups: list[ClientKind], tables: dict[str, dict[str, Any]], notes: list[str]
) -> None:
    """Add the key `publish` to the tables of groups that publish, and split their audience."""
    published = run.by_second("published_count")
    seconds = publishing_seconds(published)
    total = sum(published)
    publishers = [group for group in groups if group.publishes]
    if not total or not publishers:
        return
    audience = max(
        (group for group in groups if group.subscribes),
        key=lambda group: len(group.arrivals_s),
        default=None,
    )
    clients = sum(len(group.arrivals_s) for group in publishers)
    plan: dict[str, Any] = {"outstanding": 1_000, "v5": False}
    if run.has("samples", "payload_bytes"):
        plan["payload_bytes"] = round(sum(run.by_second("payload_bytes")) / total)
    else:
        notes.append("Sizes of messages are not in the recording: 64 bytes are assumed.")
    answered = sum(count for _, _, count in run.histograms("acknowledgement"))
    if answered < 0.99 * total:
        notes.append(f"{1 - answered / total:.0%} of the messages had QoS 0: QoS 1 is simulated.")
    if audience is None:
        plan["stored"] = False
    else:
        deliveries = sum(run.by_second("delivered_count")[second] for second in seconds)
        fan_out = deliveries / max(1.0, sum(published[second] for second in seconds))
        plan |= _audience(audience, fan_out, tables, notes)
    if _is_even(run):
        plan["even"] = True
    notes.append("Messages that clients could not send are not in the recording.")
    step = -(-len(published) // POINTS_MAX)
    for group in publishers:
        share = len(group.arrivals_s) / clients
        if group.outstanding is not None:
            tables[group.name]["publish"] = plan | {"outstanding": group.outstanding}
            tables[group.name]["publish"].pop("even", None)
            continue
        points = [
            [float(second), round(share * sum(published[second : second + step]), 3)]
            for second in range(0, len(published), step)
        ]
        tables[group.name]["publish"] = plan | {"trace": {"points": points}}


def _audience(
    audience: ClientKind, fan_out: float, tables: dict[str, dict[str, Any]], notes: list[str]
) -> dict[str, Any]:
    """Return the keys of `publish` for its receivers."""
    count = len(audience.arrivals_s)
    if fan_out < HARDLY:
        return {"stored": False}
    plan: dict[str, Any] = {"to": audience.name, "stored": audience.durable}
    if fan_out <= ONE:
        if abs(fan_out - 1.0) > HARDLY:
            notes.append(f"A message had {fan_out:.2f} subscribers on average: one is simulated.")
        return plan | {"spread": "one"}
    if fan_out >= NEARLY_ALL * count:
        return plan | {"spread": "all"}
    receivers = f"{audience.name}-reached"
    reached_count = min(count - 1, round(fan_out))
    notes.append(
        f"The recording does not show which of the {count} subscribers get which message: the "
        f"same {reached_count} of them get all."
    )
    first = tables[audience.name]
    reached = dict(first, clients=reached_count)
    first |= {"clients": count - reached_count, "subscribes": False}
    tables[receivers] = reached
    return plan | {"to": receivers, "spread": "all"}


def _is_even(run: RecordedRun) -> bool:
    """Return True if the messages come more evenly than in a Poisson process."""
    counts = [count or 0 for count in run.column("samples", "published_count")]
    busy = [index for index, count in enumerate(counts) if count]
    if len(busy) < 3:
        return False
    counts = counts[busy[0] : busy[-1] + 1]
    steps = [(after - before) ** 2 / 2 for before, after in pairwise(counts)]
    return sum(steps) / len(steps) < EVEN * sum(counts) / len(counts)

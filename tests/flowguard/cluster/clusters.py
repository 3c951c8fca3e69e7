"""A cluster of which others tell, for the tests of what is heard."""

from typing import Literal

from hypothesis import strategies as st

from flowguard.cluster.pressure import GUARD_S, RELEASE_S, Cluster, PressureRecord
from flowguard.config import FlowSettings

NODES = ("a", "b", "c", "d")
WINDOW_MAX = 100

windows = st.floats(1.0, WINDOW_MAX)
pressures = st.floats(0.0, 16.0)
paths = st.none() | st.frozensets(st.sampled_from(("own", *NODES)))


def cluster(
    rule: Literal["path", "max"] = "path", floor: float = 0.05, peers_max: int = 256
) -> Cluster:
    settings = FlowSettings(cluster_rule=rule, window_floor=floor, window_max=WINDOW_MAX)
    return Cluster("own", 1, settings, peers_max)


def is_guarded(here: Cluster, now_s: float) -> bool:
    """Whether windows are capped because a peer was lost."""
    return here.lost(now_s) > 0 and now_s < here._guard_from_s + GUARD_S + RELEASE_S


def record(
    node: str, sequence: int = 1, window: float = 100.0, pressure: float = 0.0
) -> PressureRecord:
    return PressureRecord(node, 1, sequence, window, pressure, None, 16)


loads = st.dictionaries(st.sampled_from(NODES), st.tuples(windows, pressures))


def heard(told: dict[str, tuple[float, float]], own: tuple[float, float] = (100.0, 0.0)) -> Cluster:
    """A cluster of which each node has just told its window and pressure."""
    here = cluster()
    here.announce(*own, None, 16, 0.0)
    for node, (window, pressure) in told.items():
        here.merge(record(node, 1, window, pressure), 0.0)
    return here

"""The laws without feedback: fixed windows, levels, rates (simulations.baselines).

1. A fixed window stays, whatever is seen.
2. Levels run from 1 to 10, and never fall while the pressure rises; nor do allowances rise.
3. Nothing is remembered: the same pressure gives the same grant, whatever was before.
4. The highest pressure of the cluster decides on packets, the node's own on CONNECTs.
"""

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.cluster.pressure import Cluster, PressureRecord
from flowguard.config import FlowSettings
from flowguard.flow.load.signals import Signal
from flowguard.flow.policy import Policy
from simulations.baselines.gates import OpenGate
from simulations.baselines.level_map import (
    CREDITS_MAX,
    Levelled,
    Levels,
    allowance_of,
    level_map,
    level_of,
    rate_limit,
)
from simulations.baselines.static import WINDOW_UNLIMITED, Baseline, Static
from tests.simulations.baselines.samples import judge, under

PRESSURES = st.floats(0.0, 16.0, allow_nan=False)


def levels(cluster: Cluster | None = None) -> Baseline[str]:
    gate: OpenGate[str] = OpenGate()
    law = Levelled(Levels(100, cluster), gate, level_map)
    return Baseline("level-map", gate, judge, law)


def rates(cluster: Cluster | None = None) -> Baseline[str]:
    gate: OpenGate[str] = OpenGate()
    law = Levelled(Levels(CREDITS_MAX, cluster), gate, rate_limit)
    return Baseline("rate-limit-v1", gate, judge, law)


@pytest.mark.parametrize("window", [1, 10, 100, WINDOW_UNLIMITED])
@given(pressure=PRESSURES)
def test_a_fixed_window_stays_whatever_is_seen(window: int, pressure: float) -> None:
    gate: OpenGate[str] = OpenGate()
    policy = Baseline("static", gate, judge, Static(window))
    assert policy.tick(under(pressure)).window == window


def test_a_fixed_window_still_reports_the_pressure_and_its_cause() -> None:
    gate: OpenGate[str] = OpenGate()
    grant = Baseline("static-10", gate, judge, Static(10)).tick(under(3.0))
    assert grant.pressure.value == pytest.approx(3.0)
    assert grant.pressure.cause == "queue"
    assert grant.why == "fixed at 10"
    assert grant.credits is None


def test_the_ten_levels_begin_where_they_are_said_to_begin() -> None:
    assert [level_of(pressure) for pressure in (0.0, 0.5, 1.0, 2.0, 4.0, 16.0)] == [
        1,
        1,
        4,
        7,
        10,
        10,
    ]


def test_the_windows_of_the_levels_fall_from_a_hundred_to_one() -> None:
    windows = [allowance_of(level, 100) for level in range(1, 11)]
    assert windows == [100, 60, 36, 22, 13, 8, 5, 3, 2, 1]


@given(st.lists(PRESSURES, min_size=2, max_size=30), st.integers(1, 65_535))
def test_a_higher_pressure_never_gives_more(pressures: list[float], allowance_max: int) -> None:
    found = [level_of(pressure) for pressure in sorted(pressures)]
    assert all(1 <= level <= 10 for level in found)
    allowed = [allowance_of(level, allowance_max) for level in found]
    assert all(1 <= allowance <= allowance_max for allowance in allowed)
    assert all(after <= before for before, after in pairwise(allowed))


@pytest.mark.parametrize("build", [levels, rates])
@given(history=st.lists(PRESSURES, max_size=20), pressure=PRESSURES)
def test_nothing_is_remembered(
    build: Callable[[], Policy[str]], history: list[float], pressure: float
) -> None:
    policy = build()
    for past in history:
        policy.tick(under(past))
    assert policy.tick(under(pressure)) == build().tick(under(pressure))


def test_a_noisy_pressure_swings_the_window_over_its_whole_range() -> None:
    """A memoryless map swings: that is a property of the map itself."""
    windows = {levels().tick(under(pressure)).window for pressure in (0.4, 4.2)}
    assert windows == {100.0, 1.0}


@pytest.mark.parametrize("build", [levels, rates])
@pytest.mark.parametrize("rule", ["path", "max"])
def test_the_worst_node_of_the_cluster_sets_everybodys_level(
    build: Callable[[Cluster | None], Policy[str]], rule: Literal["path", "max"]
) -> None:
    cluster = Cluster("own", 1, FlowSettings(cluster_rule=rule))
    policy = build(cluster)
    assert policy.tick(under(0.1)) == build(None).tick(under(0.1))
    for node, pressure in (("a", 0.2), ("b", 4.1), ("c", 0.3)):
        cluster.merge(PressureRecord(node, 1, 1, 50.0, pressure, Signal.STORE, 16), 0.0)
    grant = policy.tick(under(0.1))
    assert grant.why.startswith("level 10 of 10")
    assert (grant.credits or grant.window) == 1
    assert grant.pressure.value == pytest.approx(0.1)


def test_a_node_tells_the_others_of_its_own_level_and_not_of_the_clusters() -> None:
    told: list[PressureRecord] = []
    cluster = Cluster("own", 1, FlowSettings())
    cluster.merge(PressureRecord("worst", 1, 1, 1.0, 4.1, Signal.STORE, 16), 0.0)
    gate: OpenGate[str] = OpenGate()
    law = Levelled(Levels(100, cluster, told.append), gate, level_map)
    policy = Baseline("level-map", gate, judge, law)
    assert policy.tick(under(1.0)).window == 1
    (record,) = told
    assert (record.window, record.cause) == (22.0, Signal.QUEUE)
    assert record.pressure == pytest.approx(1.0)


def test_credits_fall_from_a_thousand_to_ten_packets_per_second_without_any_window() -> None:
    grants = [rates().tick(under(pressure)) for pressure in (0.1, 1.0, 4.0)]
    assert [grant.credits for grant in grants] == [CREDITS_MAX, 22, 1]
    assert {grant.window for grant in grants} == {float(WINDOW_UNLIMITED)}


# --- where they are ------------------------------------------------------------------------------


def test_a_broker_knows_no_law_but_its_own_unless_its_settings_name_one() -> None:
    ask = (
        "import sys\n"
        "from flowguard.broker import server\n"
        "from flowguard.config import FlowSettings\n"
        "def known(): return 'simulations.baselines' in sys.modules\n"
        "server._load_policies(FlowSettings(), None)\n"
        "print(known())\n"
        "server._load_policies(FlowSettings(), FlowSettings(policy='static-10'))\n"
        "print(known())\n"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_law_that_is_not_loaded_is_refused_by_name() -> None:
    ask = (
        "from flowguard.config import FlowSettings\n"
        "from flowguard.flow.policies import make_policy\n"
        "make_policy('emqx-flag', FlowSettings())\n"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert "flow.policy: emqx-flag is another broker's law" in done.stderr

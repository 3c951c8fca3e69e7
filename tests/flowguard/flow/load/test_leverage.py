"""Windows are pressed by no more than they can relieve: the loop's work that they can put off."""

from dataclasses import replace

import pytest

from flowguard.config import FlowSettings
from flowguard.flow.adaptive import Flowguard
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.law import WindowLaw
from flowguard.flow.load.leverage import KEPT_SHARE, Leverage
from flowguard.flow.load.signals import PRESSURE_MAX, TICK_S, Objectives, Sample, Signal
from flowguard.flow.policy import Grant
from flowguard.flow.windows.window import AdmissionWindow, NodeWindow

SETTINGS = FlowSettings()
DISTRESS = Sample(0.0, sojourn_s=0.4, worked_s=0.1)


def grants(seen: Sample, ticks: int = 30) -> list[Grant]:
    """The grants of a node that observes the same for some ticks."""
    law = WindowLaw(SETTINGS.window_max, SETTINGS.window_floor)
    policy: Flowguard[str] = Flowguard("flowguard", law, ConnectGate(SETTINGS), Objectives())
    return [policy.tick(replace(seen, now_s=tick * TICK_S)) for tick in range(1, ticks + 1)]


@pytest.mark.parametrize(
    ("movable_work", "window"),
    [(0.0, 100.0), (1.0, 100.0), (26.0, 100.0), (100.0, 1.0), (None, 1.0)],
    ids=["nothing", "a hundredth", "below the share to keep", "everything", "not reported"],
)
def test_windows_are_cut_only_if_clients_with_more_than_a_packet_take_the_loop(
    movable_work: float | None, window: float
) -> None:
    last = grants(replace(DISTRESS, work=100.0, movable_work=movable_work), 60)[-1]
    assert last.pressure.value == PRESSURE_MAX
    assert last.pressure.cause is Signal.QUEUE
    assert last.window == window
    assert last.leverage == (None if movable_work is None else pytest.approx(movable_work / 100.0))


def test_grant_says_that_windows_are_not_cut_because_a_cut_would_not_help() -> None:
    last = grants(replace(DISTRESS, work=100.0, movable_work=1.0))[-1]
    assert last.why == (
        "at its maximum of 100; not cut, because smaller windows would delay only 1 % of the event "
        "loop's work"
    )


def test_windows_settle_where_clients_with_more_than_a_packet_keep_their_share() -> None:
    """Work that windows put off is proportional to them: they are cut until a quarter is left."""
    law = WindowLaw(SETTINGS.window_max, SETTINGS.window_floor)
    policy: Flowguard[str] = Flowguard("flowguard", law, ConnectGate(SETTINGS), Objectives())
    window, leverages = 100.0, []
    for tick in range(1, 200):
        seen = replace(
            DISTRESS, now_s=tick * TICK_S, work=100.0 + 2.0 * window, movable_work=2.0 * window
        )
        grant = policy.tick(seen)
        window = grant.window
        leverages.append(grant.leverage)
    assert leverages[-1] == pytest.approx(KEPT_SHARE, rel=0.3)
    assert 10.0 < window < 30.0


def test_windows_that_a_cut_would_not_help_grow_back_to_where_it_would() -> None:
    """In the dead band of a pressure from other causes, they would stay as small as in a
    distress."""
    law = WindowLaw(SETTINGS.window_max, SETTINGS.window_floor, start=1.0)
    policy: Flowguard[str] = Flowguard("flowguard", law, ConnectGate(SETTINGS), Objectives())
    seen = replace(DISTRESS, work=100.0, movable_work=24.0)
    windows = [policy.tick(replace(seen, now_s=n * TICK_S)).window for n in range(1, 60)]
    assert windows[-1] > 5.0
    assert windows == sorted(windows)


@pytest.mark.parametrize("floor", [1.0, 0.1])
def test_windows_stay_above_the_floor_where_a_cut_would_defer_few_packets(floor: float) -> None:
    """At the floor windows could defer half of their share, which is less than clients keep."""
    law = WindowLaw(SETTINGS.window_max, floor, start=10.0 * floor)
    policy: Flowguard[str] = Flowguard("flowguard", law, ConnectGate(SETTINGS), Objectives())
    seen = replace(DISTRESS, work=100.0, movable_work=42.0)
    for tick in range(1, 200):
        grant = policy.tick(replace(seen, now_s=tick * TICK_S))
    assert 1.2 * floor < grant.window < 4.0 * floor


def test_memory_at_its_objective_keeps_windows_that_a_cut_would_not_help() -> None:
    law = WindowLaw(SETTINGS.window_max, SETTINGS.window_floor, start=10.0)
    policy: Flowguard[str] = Flowguard("flowguard", law, ConnectGate(SETTINGS), Objectives())
    seen = replace(DISTRESS, memory_share=0.7, work=100.0, movable_work=1.0)
    windows = {policy.tick(replace(seen, now_s=n * TICK_S)).window for n in range(1, 60)}
    assert windows == {10.0}


def test_memory_presses_windows_whatever_they_can_move() -> None:
    seen = replace(DISTRESS, sojourn_s=0.0, memory_share=0.9, work=100.0, movable_work=0.0)
    last = grants(seen)[-1]
    assert last.window < 10.0
    assert "not cut" not in last.why


def test_work_for_connects_and_handshakes_is_none_that_windows_put_off() -> None:
    leverage = Leverage()
    for tick in range(1, 20):
        leverage.observe(
            Sample(
                tick * TICK_S,
                worked_s=0.1,
                connecting_s=0.04,
                handshakes_s=0.02,
                work=50.0,
                movable_work=25.0,
            ),
            refusing_s=0.02,
        )
    assert leverage.share == pytest.approx(0.1)


def test_a_host_that_counts_seconds_does_other_things_as_well() -> None:
    leverage = Leverage()
    leverage.observe(Sample(0.1, worked_s=0.1, work=0.04, movable_work=0.02), refusing_s=0.0)
    assert leverage.share == pytest.approx(0.2)


def test_a_host_without_times_reports_shares_of_its_packets() -> None:
    leverage = Leverage()
    leverage.observe(Sample(0.1, work=50.0, movable_work=10.0), refusing_s=0.01)
    assert leverage.share == pytest.approx(0.2)


def test_a_tick_with_little_work_hardly_changes_the_share() -> None:
    """A store stands still: the loop is idle, and the few packets that come all wait."""
    leverage = Leverage()
    leverage.observe(Sample(0.1, worked_s=0.1, work=50.0, movable_work=5.0), refusing_s=0.0)
    leverage.observe(Sample(5.1, work=0.0, movable_work=0.0), refusing_s=0.0)
    assert leverage.share == pytest.approx(0.1)
    for tick in range(30):
        seen = Sample(6.0 + tick * TICK_S, worked_s=0.000_1, work=1.0, movable_work=1.0)
        leverage.observe(seen, refusing_s=0.0)
    assert leverage.share == pytest.approx(0.1, abs=0.01)


def test_a_host_that_reports_nothing_has_the_whole_pressure() -> None:
    leverage = Leverage()
    leverage.observe(Sample(0.1, worked_s=0.1), refusing_s=0.0)
    assert leverage.share is None
    assert leverage.pressure_max == PRESSURE_MAX


@pytest.mark.parametrize(
    ("in_process", "waits", "weight", "divides", "movable"),
    [
        (1, False, 1, False, False),
        (1, True, 1, False, True),
        (2, False, 1, False, True),
        (0, False, 1, False, False),
        (0, True, 1, False, True),
        (7, False, 7, False, False),
        (1, False, 1, True, True),
    ],
    ids=["one", "waits", "two", "none", "all wait", "one heavy", "less than a packet"],
)
def test_work_is_movable_if_its_client_has_more_than_a_packet(
    in_process: int, waits: bool, weight: int, divides: bool, movable: bool
) -> None:
    node = NodeWindow()
    node.divides = divides
    window = AdmissionWindow(node)
    for _ in range(in_process // weight):
        window.admit(weight)
    window.rest(waits)
    window.worked(3.0)
    assert node.work == 3.0
    assert node.movable_work == (3.0 if movable else 0.0)

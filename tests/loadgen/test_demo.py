"""`flowguard demo`: small and without a terminal; its pieces; that a broken promise shows."""

import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flowguard.cli.remote import top_screen
from flowguard.config import FlowSettings
from flowguard.flow import Signal
from flowguard.ops.status import status_of
from loadgen.demo.broker import (
    CONNECT_BUFFER,
    CONNECTS_IN_PROCESS,
    DemoSample,
    demo_settings,
)
from loadgen.demo.screen import Act, DemoHistory, caption, line, screen
from loadgen.demo.summary import DemoOutcome, show_summary
from tests.support.patience import HANG_S
from tests.support.stage import Stage

DEMO = [sys.executable, "-m", "flowguard", "demo", "--publishers", "3", "--calm", "0.3"]
"""Only against hanging: no test measures time."""


@pytest.mark.slow
def test_a_small_demo_keeps_its_promise() -> None:
    done = subprocess.run(
        [*DEMO, "--clients", "250"], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("1 calm", "250 of 250", "messages lost", "make serve"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_an_interrupt_ends_it_cleanly() -> None:
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        while "1 calm" not in demo.stdout.readline():
            assert demo.poll() is None
        demo.send_signal(signal.SIGINT)
        assert demo.wait(HANG_S) == 130
        assert "interrupted" in demo.stdout.read()
        assert demo.stderr.read() == ""


def at(at_s: float, **changes: Any) -> DemoSample:
    """A crowd that comes at 5 s, is in at 10 s, and forgotten at 15 s."""
    crowd = 5 <= at_s < 10
    refused = min(5_000, max(0, int((at_s - 5) * 1_000)))
    calm = DemoSample(
        at_s,
        window=1 if crowd else 100 if at_s < 5 or at_s >= 15 else 30,
        pressure=16.0 if crowd else 0.3,
        cause=Signal.QUEUE,
        in_process=CONNECTS_IN_PROCESS if crowd else 0,
        buffered=CONNECT_BUFFER if crowd else 0,
        refused=refused,
        arrived=40 if at_s < 5 else 300 + refused if crowd else 2_540 + refused,
        connected=2_540 if at_s >= 10 else 40,
        published=int(at_s * 600),
        paused=20 if crowd else 0,
    )
    return replace(calm, **changes)


def history(seconds: float = 20.0) -> DemoHistory:
    result = DemoHistory(publishers=20, clients=2_540, window_max=100)
    result.begin(at(0.0))
    for tick in range(1, int(seconds * 10) + 1):
        result.add(at(tick / 10))
    return result


def pressed() -> top_screen.StatusHistory:
    """A broker as `flowguard top` sees it in the crowd: every line that it can have is there."""
    stage, top = Stage(), top_screen.StatusHistory("")
    before, now = (status_of(stage.node, stage.now_s + s) for s in (0.0, 1.0))
    now["pressure"] = {**now["pressure"], "value": 16.0, "cause": "queue"}
    now["pressure"]["signals"]["queue"] = 16.0
    now["gate"]["buffered"]["used"] = CONNECT_BUFFER
    now["gate"]["refused"] = {"gate_full": 2_000, "gate_deadline": 3}
    now["dropped"] = {"queue_messages": 1}
    top.add(before)
    top.add(now)
    return top


def text_on_screen(shown: DemoHistory, width: int = 80) -> str:
    console = Console(width=width, height=24, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen(shown, pressed(), console.width))
    return capture.get()


@pytest.mark.parametrize("seconds", [0.0, 0.1, 7.0, 12.0, 20.0, 59.0])
def test_the_screen_fits_80_by_24(seconds: float) -> None:
    lines = text_on_screen(history(seconds)).splitlines()
    assert len(lines) <= 23  # the cursor's row below
    assert all(len(text) <= 80 for text in lines)


@pytest.mark.parametrize(
    ("seconds", "act", "words"),
    [
        (4.9, Act.CALM, "but keeps up"),
        (5.0, Act.CROWD, "A crowd has come"),
        (9.9, Act.CROWD, "200 wait"),
        (10.0, Act.RECOVERY, "All clients are in, 5 s after the first of the crowd"),
        (14.9, Act.RECOVERY, "windows grow back to 100"),
        (15.0, Act.RECOVERY, "Windows are back at 100, 5 s later"),
    ],
)
def test_a_caption_appears_when_the_thing_has_happened(
    seconds: float, act: Act, words: str
) -> None:
    shown = history(seconds)
    assert shown.act is act
    assert words in text_on_screen(shown)
    assert f" s  {act.value} " in line(shown)


def test_no_caption_speaks_of_a_crowd_that_has_not_come() -> None:
    shown = DemoHistory(publishers=20, clients=2_540, window_max=100)
    for each in (at(0.0), at(0.1), at(60.0, connected=40, refused=0, arrived=40)):
        shown.add(each) if shown.samples else shown.begin(each)
    assert shown.act is Act.CALM
    assert "crowd" not in caption(shown)


def test_the_publishers_are_no_crowd_however_often_they_came() -> None:
    shown = DemoHistory(publishers=20, clients=2_540, window_max=100)
    shown.add(at(0.0, arrived=0, connected=0))
    shown.add(at(0.1, arrived=47))
    assert shown.act is Act.CROWD
    shown.begin(at(0.2, arrived=47))
    shown.add(at(0.3, arrived=47))
    assert shown.act is Act.CALM


@given(
    window=st.integers(1, 100) | st.just(100),
    pressure=st.floats(0, 16) | st.just(1.0),
    refused=st.integers(0, 10**6),
    in_process=st.integers(0, 10),
    buffered=st.integers(0, 200),
    connected=st.integers(40, 2_540) | st.just(2_540),
)
def test_a_caption_has_two_lines_and_says_only_what_is_so(
    window: int, pressure: float, refused: int, in_process: int, buffered: int, connected: int
) -> None:
    shown = history(7.0)
    shown.add(
        at(
            7.1,
            window=window,
            pressure=pressure,
            refused=refused,
            in_process=in_process,
            buffered=buffered,
            connected=connected,
        )
    )
    text = caption(shown)
    assert len(text.splitlines()) == 2
    assert all(len(part) <= 79 for part in text.splitlines())
    assert ("All clients are in" in text) == (connected == 2_540)
    if shown.act is Act.RECOVERY:
        assert ("load has fallen" in text) == (pressure < 1 and window < 100)
        assert ("are back" in text) == (window == 100)
    else:
        assert ("a time to retry" in text) == (refused > 0)
        assert (" wait" in text) == (buffered > 0)


def test_the_screen_is_that_of_top() -> None:
    text = text_on_screen(history(7.0), 100)
    for words in ("2 flash crowd", "16.00 of 1 ◀ cause", "200 of", "2,000", "gate_full"):
        assert words in text


def test_a_line_tells_the_same() -> None:
    text = line(history(7.0))
    for words in ("7.0 s", "window   1", "queue", "connects 10+200", "publish/s 600"):
        assert words in text


# --- the verdict ---------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "clients": 100,
    "connected": 100,
    "came_back": 30,
    "busy": 50,
    "attempts_max": 3,
    "resets": 0,
    "closed": 0,
    "timeouts": 0,
    "lost": 0,
    "connected_after_s": {"p50": 1.0, "p99": 1.9, "p100": 2.0},
}
MESSAGES = {"sent": 1_000, "received": 1_000, "acknowledged": 1_000, "acknowledged_lost": 0}


def text_of(outcome: DemoOutcome) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        show_summary(outcome, console)
    return capture.get()


def test_a_kept_promise_shows_where_to_look_next() -> None:
    outcome = DemoOutcome(history(), GOOD | MESSAGES, GOOD)
    assert outcome.promise_kept
    assert "make serve" in text_of(outcome)
    assert "half in 1.0 s, all in 2.0 s" in text_of(outcome)


@pytest.mark.parametrize(
    ("traffic", "crowd", "words"),
    [
        ({}, {"resets": 1}, "resets: 1"),
        ({}, {"lost": 2}, "connections lost: 2"),
        ({}, {"closed": 1, "timeouts": 2}, "attempts without an answer: 3"),
        ({}, {"connected": 90}, "clients that did not get in: 10"),
        ({"acknowledged_lost": 4}, {}, "acknowledged messages lost: 4"),
        ({"sent": 0}, {}, "nothing was published"),
    ],
)
def test_a_broken_promise_is_named(
    traffic: dict[str, int], crowd: dict[str, int], words: str
) -> None:
    outcome = DemoOutcome(history(), GOOD | MESSAGES | traffic, GOOD | crowd)
    assert not outcome.promise_kept
    assert f"promise broken: {words}" in text_of(outcome)


def test_a_storm_without_a_result_is_a_broken_promise() -> None:
    outcome = DemoOutcome(history(), None, GOOD)
    assert not outcome.promise_kept
    assert "without a result" in text_of(outcome)


@pytest.mark.parametrize("late_s", [0.0, 0.001, 0.1, 2.0])
def test_how_late_this_machine_is_is_no_news_to_the_broker(late_s: float) -> None:
    flow, quiet = demo_settings(late_s).flow, demo_settings(0.0).flow
    for name in ("store_objective_s", "queue_objective_s", "loop_objective_s"):
        assert getattr(flow, name) >= getattr(quiet, name) + late_s
    assert quiet.loop_objective_s == FlowSettings().loop_objective_s

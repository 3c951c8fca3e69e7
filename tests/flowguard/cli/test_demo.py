"""`flowguard demo`: small and without a terminal; its pieces; that a broken promise shows."""

import signal
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from flowguard.cli.demo_broker import CONNECT_BUFFER, CONNECTS_IN_PROCESS, Sample
from flowguard.cli.demo_screen import Act, History, line, screen
from flowguard.cli.demo_summary import Outcome, show_summary
from flowguard.flow import Signal

DEMO = [sys.executable, "-m", "flowguard", "demo", "--publishers", "3", "--calm", "0.3"]
LIMIT_S = 90


@pytest.mark.slow
def test_a_small_demo_keeps_its_promise() -> None:
    done = subprocess.run(
        [*DEMO, "--clients", "250"], capture_output=True, text=True, timeout=LIMIT_S, check=False
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
        assert demo.wait(LIMIT_S) == 130
        assert "interrupted" in demo.stdout.read()
        assert demo.stderr.read() == ""


def history(seconds: float = 20.0) -> History:
    """A crowd that came at 5 s and was gone at 10 s."""
    result = History(publishers=20, clients=2_540)
    for tick in range(int(seconds * 10) + 1):
        at_s = tick / 10
        crowd = 5 <= at_s < 10
        result.samples.append(
            Sample(
                at_s,
                window=1 if crowd else 100,
                pressure=16.0 if crowd else 0.3,
                cause=Signal.QUEUE,
                in_process=CONNECTS_IN_PROCESS if crowd else 0,
                buffered=CONNECT_BUFFER if crowd else 0,
                refused=min(5_000, max(0, int((at_s - 5) * 1_000))),
                connected=2_540 if at_s >= 10 else 40,
                published=int(at_s * 600),
                paused=20 if crowd else 0,
            )
        )
    return result


@pytest.mark.parametrize("act", list(Act))
@pytest.mark.parametrize("seconds", [0.0, 0.1, 7.0, 20.0, 59.0])
def test_the_screen_fits_80_by_24(seconds: float, act: Act) -> None:
    shown = history(seconds)
    shown.act = act
    console = Console(width=80, height=24, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen(shown, console.width))
    lines = capture.get().splitlines()
    assert len(lines) <= 23  # the cursor's row below
    assert all(len(text) <= 80 for text in lines)


def test_the_screen_says_why() -> None:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(screen(history(7.0), console.width))
    text = capture.get()
    for words in ("work waits", "16.0", "200 of 200", "2,000 times"):
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
    "time_to_connected_ms": {"max": 2_000.0},
}
MESSAGES = {"sent": 1_000, "received": 1_000, "acknowledged": 1_000, "acknowledged_lost": 0}


def text_of(outcome: Outcome) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        show_summary(outcome, console)
    return capture.get()


def test_a_kept_promise_shows_where_to_look_next() -> None:
    outcome = Outcome(history(), GOOD | MESSAGES, GOOD)
    assert outcome.promise_kept
    assert "make serve" in text_of(outcome)


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
    outcome = Outcome(history(), GOOD | MESSAGES | traffic, GOOD | crowd)
    assert not outcome.promise_kept
    assert f"promise broken: {words}" in text_of(outcome)


def test_a_storm_without_a_result_is_a_broken_promise() -> None:
    outcome = Outcome(history(), None, GOOD)
    assert not outcome.promise_kept
    assert "without a result" in text_of(outcome)

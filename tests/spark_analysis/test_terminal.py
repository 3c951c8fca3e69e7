import re
from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spark_analysis.terminal import progress


def told(*, is_terminal: bool = False) -> tuple[Console, StringIO]:
    said = StringIO()
    return Console(file=said, force_terminal=is_terminal, width=100), said


def words(said: StringIO) -> list[str]:
    """Without the seconds."""
    return [line.split(" s  ", 1)[1] for line in said.getvalue().splitlines()]


def test_without_a_terminal_each_step_is_a_line_when_it_begins() -> None:
    console, said = told()
    with progress(console) as shown:
        task = shown.add_task("examining runs", total=None)
        assert words(said) == ["examining runs"]
        shown.update(task, description="starting Spark", total=3, completed=0)
        assert words(said) == ["examining runs", "starting Spark"]
        shown.update(task, description="who was refused?", advance=1)
        shown.update(task, description="who was refused?")
    assert words(said) == ["examining runs", "starting Spark", "who was refused?"]
    assert "\x1b" not in said.getvalue()


@given(total=st.integers(1, 300), jumps=st.lists(st.integers(0, 100), max_size=300))
def test_a_long_step_says_at_most_nine_times_how_far_it_is(total: int, jumps: list[int]) -> None:
    console, said = told()
    with progress(console) as shown:
        task = shown.add_task("simulating", total=total)
        done = 0
        for jump in jumps:
            done = min(total, done + jump)
            shown.update(task, completed=done)
    first, *others = words(said)
    assert first == "simulating"
    assert len(others) <= 9
    counts = [int(line.split(" of ")[0]) for line in others]
    assert counts == sorted(set(counts))
    assert all(total / 10 <= count < total for count in counts)


def test_a_long_step_has_the_time_left() -> None:
    console, said = told()
    with progress(console) as shown:
        task = shown.add_task("simulating", total=10)
        shown.update(task, completed=2)
        shown.update(task, completed=5)
    assert re.fullmatch(r"5 of 10, \d+ s left", words(said)[-1])

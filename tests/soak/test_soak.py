"""The default run repeats its examples; `make soak` draws others, and names its findings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRAWS = """
from pathlib import Path
from hypothesis import given, strategies as st

@given(st.integers(), st.text())
def test_draws(number, text):
    with Path({drawn!r}).open("a") as file:
        print(number, ascii(text), file=file)
"""
FAILS = """
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

def test_without_examples():
    raise AssertionError("no property")

@given(st.integers())
def test_small(number):
    assert number < 1_000

class Counter(RuleBasedStateMachine):
    count = 0

    @rule(by=st.integers(1, 3))
    def grow(self, by):
        self.count += by
        assert self.count < 2

TestMachine = Counter.TestCase

def test_machine_of_its_own():
    run_state_machine_as_test(Counter, settings=settings(max_examples=20))

@given(st.integers())
def test_holds(number):
    assert number == number
"""
HANGS = """
import threading
from hypothesis import given, strategies as st

@given(st.integers())
def test_hangs(number):
    threading.Event().wait()
"""
OWN = ("HYPOTHESIS_PROFILE", "CI", "PYTEST_XDIST_WORKER")


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a Python module, in a process without a profile in its environment."""
    clean = {name: text for name, text in os.environ.items() if name not in OWN}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=clean | {"PYTEST_PLUGINS": "tests.conftest", "PYTEST_XDIST_AUTO_NUM_WORKERS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def drawn(folder: Path, *options: str) -> str:
    """The examples of a property test."""
    file, test = folder / "drawn.txt", folder / "test_draws.py"
    file.unlink(missing_ok=True)
    test.write_text(DRAWS.format(drawn=str(file)))
    done = run("pytest", "-q", "-p", "no:cacheprovider", *options, str(test))
    assert done.returncode == 0, done.stdout + done.stderr
    return file.read_text()


def soak(folder: Path, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    test = folder / "test_soaked.py"
    test.write_text(text)
    return run("tests.soak", "--folder", str(folder / "soak"), *options, str(test))


@pytest.mark.slow
def test_examples_are_the_same_each_time_and_a_seed_draws_its_own(tmp_path: Path) -> None:
    same, first = drawn(tmp_path), drawn(tmp_path, "--hypothesis-seed=1")
    assert same == drawn(tmp_path)
    assert first == drawn(tmp_path, "--hypothesis-seed=1")
    assert len({same, first, drawn(tmp_path, "--hypothesis-seed=2")}) == 3


@pytest.mark.slow
def test_what_a_soak_finds_can_become_an_example_and_be_repeated(tmp_path: Path) -> None:
    done = soak(tmp_path, FAILS, "--rounds", "2", "--seed", "7")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("FOUND: ") == 3  # of the first round: the second finds them again
    assert "test_small(\n    number=1000,\n)" in done.stdout
    assert "state.grow(by=2)" in done.stdout
    assert "--hypothesis-seed=7" in done.stdout
    assert "without_examples" not in done.stdout
    assert [line.split(" in ")[0] for line in done.stdout.splitlines() if "seed " in line[:5]] == [
        "seed 7: 4 property tests",
        "seed 8: 4 property tests",
    ]
    assert (tmp_path / "soak" / "finds.txt").read_text().count("FOUND: ") == 6
    repeat = next(
        line for line in done.stdout.splitlines() if "::test_small" in line and "-m" in line
    )
    _, _, options = repeat.partition("::test_small' ")
    test = f"{tmp_path / 'test_soaked.py'}::test_small"
    again = run("pytest", *options.split(), "-p", "no:cacheprovider", test)
    assert again.returncode == 1
    assert "number=1000" in again.stdout


@pytest.mark.slow
def test_nothing_found_is_exit_code_0_and_leaves_nothing(tmp_path: Path) -> None:
    text = FAILS.replace("assert self.count < 2", "pass").replace("1_000", "number + 1")
    done = soak(tmp_path, text, "--rounds", "1", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 property tests run, 0 of them failed" in done.stdout
    assert list((tmp_path / "soak").iterdir()) == []


@pytest.mark.slow
def test_a_soak_ends_when_its_time_is_over_whatever_its_tests_do(tmp_path: Path) -> None:
    done = soak(tmp_path, HANGS, "--minutes", "0.05", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 property tests run" in done.stdout


def test_a_soak_without_property_tests_says_so(tmp_path: Path) -> None:
    done = soak(tmp_path, "def test_plain(): pass\n", "--rounds", "1", "--seed", "1")
    assert done.returncode == 2
    assert "no property test" in done.stdout

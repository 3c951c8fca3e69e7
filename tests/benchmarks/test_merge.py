"""The benchmark of merging measures what it says, and writes it where it belongs."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import merge


def invoke(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(merge.main)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def figures(entries: int, seconds: float, peak_mib: float) -> merge.Merged:
    return merge.Merged(entries, entries * 3 // 2, seconds, peak_mib, 1.0, 1.5)


@pytest.mark.slow
def test_two_sizes_are_measured_and_written_into_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Benchmarks\n\nbefore\n")
    for _ in range(2):
        code, shown = invoke(
            "--entries", "400,800", "--queues", "4", "--write", "--page", str(page)
        )
        assert code == 0, shown
    text = page.read_text()
    assert text.startswith("# Benchmarks\n\nbefore\n")
    assert text.count("Two replicas of a store become one") == 1
    assert "| 2 x 800 | 1,200 |" in text


@pytest.mark.parametrize(
    ("measured", "passed"),
    [
        ([figures(100_000, 1.0, 100), figures(1_000_000, 11.0, 120)], True),
        ([figures(1_000_000, 20.1, 100)], False),
        ([figures(100_000, 0.5, 100), figures(1_000_000, 8.0, 120)], False),
        ([figures(100_000, 1.0, 100), figures(1_000_000, 11.0, 165)], False),
    ],
    ids=["good", "slow", "not linear", "memory grows"],
)
def test_what_is_good_enough(measured: list[merge.Merged], passed: bool) -> None:
    assert merge.tell(measured, 100, 200).passed is passed


@pytest.mark.parametrize("entries", ["many", "", "100"])
def test_sizes_that_are_none_are_refused(entries: str) -> None:
    code, _ = invoke("--entries", entries)
    assert code == 2

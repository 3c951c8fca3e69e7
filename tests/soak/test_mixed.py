"""A short form of `make mixed`, and its finding for each bound that does not hold."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attacks.victim import MIB
from tests.soak import mixed
from tests.soak.mixed import NEWCOMERS, Sample, failures, soak

BEFORE = Sample(0.0, 100 * MIB, 15, 5)
FLAT = [100 * MIB] * 50


@pytest.mark.slow
async def test_a_short_mixed_load_breaks_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed, "QUIET_S", 1.0)
    shown: list[str] = []
    assert await soak(0.05, 300 * MIB, 200.0, tmp_path, shown.append) == []
    said = next(line for line in shown if "messages published" in line)
    assert int(said.split()[0].replace(",", "")) > 0
    assert ", 0 lost, 0 rejected" in said


def test_each_bound_is_judged() -> None:
    assert failures(FLAT, BEFORE, BEFORE, 0, 0) == []
    grown = [*FLAT, *[106 * MIB] * 50]
    (memory,) = failures(grown, BEFORE, BEFORE, 0, 0)
    assert "6.0%" in memory
    assert failures([*FLAT, *[104 * MIB] * 50], BEFORE, BEFORE, 0, 0) == []
    (descriptors,) = failures(FLAT, BEFORE, replace(BEFORE, descriptors=17), 0, 0)
    assert descriptors == "2 descriptors were left open"
    (threads,) = failures(FLAT, BEFORE, replace(BEFORE, threads=6), 0, 0)
    assert threads == "1 threads were left"
    (newcomers,) = failures(FLAT, BEFORE, BEFORE, NEWCOMERS, 0)
    assert newcomers.startswith(f"{NEWCOMERS} of {NEWCOMERS} newcomers")
    (late,) = failures(FLAT, BEFORE, BEFORE, 0, 3)
    assert late.startswith("3 clients")

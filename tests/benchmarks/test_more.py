"""`--more` goes on from the last run, if that was of the same brokers."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import typer

from benchmarks import __main__ as bench
from benchmarks import tls_storm
from benchmarks.report import Origin
from benchmarks.runner import Sample

VERSIONS = {"flowguard": "1.0 (abc)", "mosquitto": "2.0.11"}


def sample(scenario: str, broker: str) -> Sample:
    return Sample(scenario=scenario, broker=broker, figures={"cpu_us": 1.0})


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """The samples of the last run."""
    monkeypatch.setattr(bench, "work_folder", lambda: tmp_path)
    samples = [sample(key, broker) for key in ("qos0-100", "idle") for broker in VERSIONS]
    bench.keep(samples, Origin("", "", "", False, 1.0, 1, VERSIONS, {}, 0.0))
    return samples


def test_rows_of_the_last_run_stay_unless_they_are_measured_anew(last: list[Sample]) -> None:
    assert bench.earlier({"idle"}, VERSIONS | {"other": "7"}) == last[:2]


@pytest.mark.parametrize("now", [VERSIONS | {"mosquitto": "2.1.2"}, {"flowguard": "1.0 (abc)"}])
def test_a_run_of_other_versions_is_not_gone_on_from(
    last: list[Sample], now: dict[str, str]
) -> None:
    with pytest.raises(typer.BadParameter, match=r"mosquitto was 2\.0\.11, now"):
        bench.earlier({"idle"}, now)
    assert bench.earlier({"idle", "qos0-100"}, now) == []


def test_without_a_run_there_is_nothing_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "work_folder", lambda: tmp_path)
    with pytest.raises(typer.BadParameter, match="without it first"):
        bench.earlier(set(), VERSIONS)


def test_crowds_by_tls_stay_beside_those_that_come_to_the_same_flowguard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_storm, "work_folder", lambda: tmp_path)
    with pytest.raises(typer.BadParameter, match="without it first"):
        tls_storm.others(set(), "abc")
    full, resumed = (
        tls_storm.Run("flowguard", crowd, 9, 9, 0, 0, 0.1, 0.2, 0.3, 1.0, 1.0, 2.0, 3.0, "")
        for crowd in ("full handshakes", "resumed")
    )
    last = tls_storm.Storm((full, resumed), "abc")
    (tmp_path / "tls-storm.json").write_text(json.dumps(asdict(last)))
    assert tls_storm.others({"resumed"}, "abc") == [full]
    with pytest.raises(typer.BadParameter, match=r"was abc, now it is def"):
        tls_storm.others({"resumed"}, "def")

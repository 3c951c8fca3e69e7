"""Files of limits: what a tuner writes, in force (`--limits`) or watching (`--shadow`)."""

import json
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from flowguard.cli.settings import load, read_limits, settings_toml, with_limits
from flowguard.config import Settings
from flowguard.errors import ConfigError
from flowguard.types import MQTT_5
from tests.flowguard.cli.http_port import http_address
from tests.flowguard.cli.test_serve import Caller, refused
from tests.interop.broker import PATIENCE_S, running_broker, start


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    chosen = "[flow]\nwindow_max = 50\nunfinished_max = 200\n"
    evidence = "[evidence]\nruns = 12\n[evidence.window_max]\nreason = 'measured'\n"
    return write(tmp_path / "limits.toml", chosen + evidence)


# --- --limits ------------------------------------------------------------------------------------


def test_limits_go_before_the_file_and_after_variables(tmp_path: Path, limits: Path) -> None:
    config = write(tmp_path / "c.toml", "[flow]\nwindow_max = 7\nconnect_buffer_max = 9\n")
    environment = {"FLOWGUARD_FLOW__UNFINISHED_MAX": "300"}
    loaded = load(config, environment, read_limits(limits))
    flow = loaded.settings.flow
    assert (flow.window_max, flow.connect_buffer_max, flow.unfinished_max) == (50, 9, 300)
    assert loaded.origins == {
        "flow.window_max": str(limits),
        "flow.connect_buffer_max": str(config),
        "flow.unfinished_max": "FLOWGUARD_FLOW__UNFINISHED_MAX",
    }


def test_limits_that_only_go_together_with_the_file_are_taken(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", "[flow]\nwindow_max = 500\n")
    floor = read_limits(write(tmp_path / "limits.toml", "[flow]\nwindow_floor = 200\n"))
    assert load(config, {}, floor).settings.flow.window_floor == 200
    with pytest.raises(ConfigError, match=r"flow\.window_floor is above flow\.window_max"):
        load(None, {}, floor)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[flow]\nwindow_maxi = 5\n", "flow.window_maxi: unknown setting; did you mean flow.wind"),
        ("[flow]\nwindow_max = 0\n", "flow.window_max: "),
        ("[flow]\nwindow_max = 'wide'\n", "flow.window_max: "),
        ("flow = 5\n", "flow: "),
        ("[evidence]\nruns = 3\n", "flow: is missing"),
        ("[flow]\n[node]\ndrain_s = 1\n", "node: a file of limits has [flow] and [evidence] only"),
    ],
)
def test_what_is_wrong_with_limits_is_one_line_with_key_and_file(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = write(tmp_path / "limits.toml", text)
    with pytest.raises(ConfigError) as error:
        read_limits(path)
    assert str(error.value).startswith(complaint)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--limits", "--shadow"])
def test_a_broker_with_impossible_limits_does_not_start(tmp_path: Path, option: str) -> None:
    path = write(tmp_path / "limits.toml", "[flow]\nwindow_max = -1\n")
    code, complaint = refused(option, str(path), "--data", str(tmp_path / "data"))
    assert code == 2
    assert "flow.window_max: " in complaint
    code, complaint = refused(option, str(tmp_path / "none"), "--data", str(tmp_path / "data"))
    assert code == 2
    assert "No such file" in complaint


@pytest.mark.slow
def test_settings_shows_who_said_what_as_a_file_that_means_the_same(limits: Path) -> None:
    environment = {"FLOWGUARD_FLOW__UNFINISHED_MAX": "300"}
    process = start("settings", "--limits", str(limits), environment=environment)
    shown, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    lines = shown.splitlines()
    assert f"window_max = 50  # {limits}" in lines
    assert "unfinished_max = 300  # FLOWGUARD_FLOW__UNFINISHED_MAX" in lines
    again = write(limits.with_name("again.toml"), shown)
    assert load(again, {}).settings == load(None, environment, read_limits(limits)).settings


def test_without_files_and_variables_settings_sets_nothing() -> None:
    assert settings_toml(load(None, {})) == settings_toml()
    assert all(not table for table in tomllib.loads(settings_toml()).values())


# --- --shadow ------------------------------------------------------------------------------------


def test_a_shadow_differs_by_its_limits_only(limits: Path) -> None:
    settings = Settings.model_validate({"flow": {"policy": "static-100", "unfinished_max": 9}})
    chosen = read_limits(limits)
    assert chosen is not None
    expected = settings.flow.model_dump() | {"window_max": 50, "unfinished_max": 200}
    assert with_limits(settings, chosen).model_dump() == expected


def status(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}/status", timeout=PATIENCE_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def are_open(shown: dict[str, Any]) -> bool:
    """Both windows are as large as they may be, which a pause of the machine takes from them for a
    while, and the difference has been seen."""
    shadow = shown["shadow"]
    real = min(shown["window"]["limit"], shadow["window_real"])
    return bool(real >= 50 and shadow["window"] >= 20 and shadow["stricter_ticks"])


@pytest.mark.slow
def test_limits_are_in_force_and_a_shadow_is_not(tmp_path: Path, limits: Path) -> None:
    watching = write(tmp_path / "watching.toml", "[flow]\nwindow_max = 20\ncost_bytes = 7\n")
    arguments = ("--limits", str(limits), "--shadow", str(watching))
    with running_broker(tmp_path, *arguments) as broker:
        address = http_address(broker)
        with Caller(broker, MQTT_5) as caller:
            caller.read()
            deadline_s = time.monotonic() + PATIENCE_S
            while not are_open(shown := status(address)):
                assert time.monotonic() < deadline_s, shown
        assert shown["window"]["limit_max"] == shown["window"]["limit"] == 50
        shadow = shown["shadow"]
        assert (shadow["policy"], shadow["window"], shadow["window_real"]) == ("flowguard", 20, 50)
        assert shadow["limits"] == {"window_max": 20, "cost_bytes": 7}
        assert shadow["paused"] == 0
        broker.terminate()
        log = broker.log.read_text()
    assert "in_force={'window_max': 50, 'unfinished_max': 200}" in log
    assert "judged={'window_max': 20}" in log
    assert "not_judged=['cost_bytes']" in log
    (last,) = [line for line in log.splitlines() if "stricter_ticks" in line]
    assert "window=20" in last

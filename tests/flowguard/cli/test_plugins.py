import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowguard.cli import app, plugins


def plug_in(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str, extra: str = ""
) -> None:
    """A command `other` in a module of that name."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    plug = EntryPoint("other", f"{name}:other {extra}", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [plug])


def test_a_front_room_brings_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "def other(number: int) -> None:\n    '''Count.'''\n    raise SystemExit(number)\n"
    plug_in(monkeypatch, tmp_path, "plugged_in_whole", text)
    assert CliRunner().invoke(app, ["other", "7"]).exit_code == 7
    assert "Count." in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plugged_in_without", "import pyarrow.nothing_of_that_name\n"),
        (
            "plugged_in_with_option",
            "def other(out: str = '') -> None:\n    import pyarrow.nothing_of_that_name\n",
        ),
    ],
    ids=["at once", "only with an option"],
)
def test_a_command_whose_extra_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str
) -> None:
    plug_in(monkeypatch, tmp_path, name, text)
    result = CliRunner().invoke(app, ["other", "--out", "here"])
    assert result.exit_code == 2
    assert result.stderr == f"needs: {sys.executable} -m pip install 'flowguard-mqtt[sim]'\n"
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plugged_in_with_more", "import pyarrow.nothing_of_that_name\n"),
        (
            "plugged_in_with_more_when_called",
            "def other() -> None:\n    import pyarrow.nothing_of_that_name\n",
        ),
    ],
    ids=["at once", "when it is called"],
)
def test_what_is_missing_is_installed_with_the_extra_that_the_command_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str
) -> None:
    plug_in(monkeypatch, tmp_path, name, text, "[spark]")
    result = CliRunner().invoke(app, ["other"])
    assert result.stderr == f"needs: {sys.executable} -m pip install 'flowguard-mqtt[spark]'\n"


def test_what_comes_with_a_missing_package_of_its_extra_is_missing_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plugins, "find_spec", lambda name: None if name == "pyspark" else name)
    text = "import of_pyspark_nothing_of_that_name\n"
    plug_in(monkeypatch, tmp_path, "plugged_in_without_spark", text, "[spark]")
    result = CliRunner().invoke(app, ["other"])
    assert result.stderr == f"needs: {sys.executable} -m pip install 'flowguard-mqtt[spark]'\n"


def test_a_missing_module_that_no_extra_brings_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plug_in(monkeypatch, tmp_path, "plugged_in_wrong", "import nothing_of_that_name\n")
    result = CliRunner().invoke(app, ["other"])
    assert isinstance(result.exception, ModuleNotFoundError)


@pytest.mark.slow
def test_the_broker_imports_no_front_room_and_no_pyarrow() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from flowguard.cli import app\n"
        "assert CliRunner().invoke(app, ['serve', '--help']).exit_code == 0\n"
        "print([name for name in ('simulations', 'pyarrow') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

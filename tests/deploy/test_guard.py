"""The small distribution flowguard-guard, in an environment that has nothing else of ours."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowguard import __version__
from flowguard.config import FlowSettings
from tests.support.patience import HANG_S

ROOT = Path(__file__).parents[2]
PACKAGES_MAX = 5
BYTES_MAX = 5 * 1024 * 1024
PROGRAM = """
import asyncio, json, sys
from flowguard_guard import RefusedError
from flowguard_guard.asyncio_guard import open_guard
from flowguard_guard.config import FlowSettings

async def main():
    async with open_guard(FlowSettings(window_max=2), waiting_max=1) as guard:
        client, free = guard.client(), asyncio.Event()
        done = []
        async def work():
            try:
                async with guard.packet(client, size_bytes=10):
                    await free.wait()
                done.append("done")
            except RefusedError as busy:
                done.append(str(busy.reason))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(work())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            free.set()
        return done

done = asyncio.run(main())
before = {"sitecustomize", *sys.stdlib_module_names}
tops = {name.partition(".")[0] for name in sys.modules} - before
settings = {**vars(FlowSettings())}
print(json.dumps([done, sorted(name for name in tops if name[0] != "_"), settings]))
"""

pytestmark = pytest.mark.slow


@dataclass
class Installed:
    wheel: Path
    environment: Path

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run its Python, in isolated mode and in a folder without our files."""
        command = [str(self.environment / "bin" / "python"), "-I", *words]
        return subprocess.run(
            command,
            cwd=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guard") / "project"
    subprocess.run([sys.executable, str(ROOT / "guard" / "make.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def installed(project: Path) -> Installed:
    folder = project.parent
    words = ["-m", "hatchling", "build", "-d", str(folder / "dist")]
    subprocess.run([sys.executable, *words], cwd=project, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    # Its only requirement is copied, because tests use no network.
    for path in Path(sysconfig.get_path("purelib")).glob("mypy_extensions*"):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, packages / path.name)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-index", str(wheel)], check=True)
    return Installed(wheel, environment)


def test_environment_has_few_small_packages(installed: Installed) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(installed.environment / "bin" / "python")]
    listed = json.loads(subprocess.check_output([*pip, "list", "--format", "json"], text=True))
    assert {each["name"] for each in listed} == {"flowguard-guard", "mypy_extensions"}
    assert len(listed) <= PACKAGES_MAX
    (packages,) = installed.environment.glob("lib/python*/site-packages")
    assert sum(path.stat().st_size for path in packages.rglob("*.*") if path.is_file()) < BYTES_MAX


def test_wheel_shares_no_file_with_the_broker(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    metadata = f"flowguard_guard-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"flowguard_guard", metadata}
    line = re.search(r"^packages = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.M)
    assert line is not None
    assert "flowguard_guard" not in line[1]


def test_guard_admits_waits_and_rejects_with_the_defaults_of_the_broker(
    installed: Installed,
) -> None:
    ended = installed.run("-c", PROGRAM)
    assert ended.returncode == 0, ended.stderr
    done, imported, settings = json.loads(ended.stdout)
    assert done == ["queue_messages", "done", "done", "done"]
    assert {*imported} <= {"flowguard_guard", "mypy_extensions"}
    assert settings == FlowSettings().model_dump()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("window_max=0", "window_max: 0 is not at least 1"),
        ("window_max=True", "window_max: True is no value of this setting, int"),
        ("window_floor=float('nan')", "window_floor: nan is no value of this setting, float"),
        ("policy='vegas2'", "policy: 'vegas2' is no value of this setting, one of flowguard"),
        ("windows=1", "windows: unknown setting; known are policy"),
    ],
)
def test_wrong_settings_are_named(installed: Installed, values: str, why: str) -> None:
    ended = installed.run("-c", f"import flowguard_guard.config as c; c.FlowSettings({values})")
    assert f"ValueError: {why}" in ended.stderr


def test_types_of_the_package_hold(project: Path, tmp_path: Path) -> None:
    words = ["-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "flowguard_guard"]
    ended = subprocess.run(
        [sys.executable, *words], cwd=project, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout

"""The wheels, compiled and pure: installed outside of a checkout, they serve."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowguard import __version__
from flowguard.codec.packets import Connack, Puback, Suback, Subscribe
from flowguard.types import Publish, SubscriptionOptions
from tests.interop.broker import running_broker
from tests.support.caller import Caller
from tests.support.compiled import compiled_rooms, run

REQUIREMENTS = "import hatchling.build as b; print(*b.get_requires_for_build_wheel(), sep='\\n')"
PLACES = "import flowguard, simulations; print(flowguard.__file__, simulations.__file__)"
PACKAGES = {
    "flowguard",
    "broker_adapter",
    "loadgen",
    "simulations",
    "spark_analysis",
    "spark_sweep",
    "store_tools",
}
pytestmark = [pytest.mark.slow, pytest.mark.long]


@dataclass
class Installed:
    """A wheel, and an environment with nothing of ours but what was in it."""

    build: str
    wheel: Path
    environment: Path

    def run(self, name: str, *arguments: str) -> str:
        """Return the output of one of its programs, started in a folder without our files."""
        command = [str(self.environment / "bin" / name), *arguments]
        return subprocess.check_output(command, cwd=self.environment, text=True)


@pytest.fixture(scope="module", params=["compiled", "pure Python"])
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    choice = {"FLOWGUARD_PURE": "1"} if request.param == "pure Python" else {}
    if not choice:
        compiled_rooms()
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), **choice)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    # What flowguard depends on is installed here already. A path in such a file is only a path:
    # the file there that leads to the checkout is not read.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = ["-m", "pip", "--python", str(environment / "bin" / "python")]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    return Installed(request.param, wheel, environment)


def test_a_wheel_has_compiled_rooms_for_its_platform_or_none_for_all(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    modules = [name for name in names if name.endswith(".so")]
    assert "flowguard/codec/decoder.py" in names
    metadata = f"flowguard_mqtt-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names if name not in modules} == PACKAGES | {
        metadata
    }
    if installed.build == "compiled":
        assert f"flowguard/codec/decoder{sysconfig.get_config_var('EXT_SUFFIX')}" in modules
        assert "-cp{}{}-".format(*sys.version_info) in installed.wheel.name
    else:
        assert not modules
        assert installed.wheel.name.endswith("-py3-none-any.whl")


def test_an_installed_program_says_which_build_it_is(installed: Installed) -> None:
    said = installed.run("flowguard", "--version")
    assert said == f"flowguard {__version__} ({installed.build})\n"
    for place in installed.run("python", "-c", PLACES).split():
        assert Path(place).is_relative_to(installed.environment)


def test_an_installed_broker_serves(installed: Installed, tmp_path: Path) -> None:
    program = [str(installed.environment / "bin" / "flowguard")]
    with running_broker(tmp_path, program=program) as broker, Caller(broker) as client:
        assert isinstance(client.read(), Connack)
        client.send(Subscribe(1, (("hello/#", SubscriptionOptions(1)),)))
        assert isinstance(client.read(), Suback)
        client.send(Publish("hello/world", b"it works", 1, packet_id=7))
        answers = {type(packet): packet for packet in (client.read(), client.read())}
        assert answers[Puback] == Puback(7)
        delivered = answers[Publish]
        assert isinstance(delivered, Publish)
        assert (delivered.topic, delivered.payload, delivered.qos) == (
            "hello/world",
            b"it works",
            1,
        )


def test_only_compiling_needs_more_than_the_builder() -> None:
    compiled_rooms()  # Skips without a compiler.
    assert any(line.startswith("mypy>=") for line in run("-c", REQUIREMENTS).splitlines())
    assert run("-c", REQUIREMENTS, FLOWGUARD_PURE="1").split() == []

"""The shipped code is the tested code: tests of compiled packages pass on these."""

import ast
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.interop.broker import start
from tests.support.compiled import COMPILED, compiled_rooms, run, script

ASK_OF_COLLECTOR = """
import gc
from flowguard.codec.packets import Puback
from flowguard.records import Append, Delivery
from flowguard.types import Publish

message = Publish("t", b"", 1)
delivery = Delivery(message, 1, False, (), 0.0)
for each in (message, delivery, Append("c", 1, delivery), Puback(1)):
    print(gc.is_tracked(each))
"""
pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_compiled_rooms_are_extensions_and_hide_messages_from_the_collector() -> None:
    rooms = compiled_rooms()
    where = "from flowguard.codec import decoder; print(decoder.__file__)"
    assert run("-c", where, rooms=rooms).strip().endswith(".so")
    assert run("-c", ASK_OF_COLLECTOR, rooms=rooms).split() == ["False"] * 4


def test_what_is_compiled_does_not_depend_on_extras_that_are_installed() -> None:
    """In a new clone there is none, and no compiler may ask for one."""
    compiler = script()
    project = tomllib.loads((compiler.ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["compile"]]
    names = {canonicalize_name(Requirement(each).name) for each in wanted}
    sources = [
        *compiler.sources_of((*compiler.MODULES, *compiler.ROOMS), compiler.PACKAGE.parent),
        *compiler.sources_of(compiler.PROXY, compiler.ROOT),
    ]
    found = {module for path in sources for module in imported(path)}
    foreign = found - sys.stdlib_module_names - {"flowguard", "broker_adapter"}
    homes = packages_distributions()
    assert {"trio", "mypy_extensions"} <= foreign
    assert {
        each for each in foreign if not {*map(canonicalize_name, homes.get(each, ()))} & names
    } == {*compiler.EXTRAS}


def test_a_compiler_that_finds_no_extra_asks_for_none(tmp_path: Path) -> None:
    settings, room = tmp_path / "mypy.ini", tmp_path / "room.py"
    settings.write_text(script().settings())
    room.write_text("import aiokafka\nfrom websockets.server import ServerProtocol\n")
    where = ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache")]
    run("-m", "mypy", "--no-site-packages", *where, str(room))


def imported(path: Path) -> Iterator[str]:
    """The top packages that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("rooms", COMPILED, ids=" ".join)
def test_the_tests_of_rooms_pass_on_the_compiled_rooms(
    rooms: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    # Without src on pytest's own path: it would come before the compiled folder. And without tests
    # that say nothing of the compiled packages: the marker `once`.
    options = ["-q", "-p", "no:cacheprovider", "-o", "pythonpath=.", "-m", "not once"]
    words = ("-m", "pytest", *options, *rooms)
    output = run(*words, rooms=compiled_rooms(), BUILD_UNDER_TEST="compiled")
    for line in output.splitlines():
        if line.startswith("skipped: "):
            record_property("skipped", f"on the compiled packages, {line}")


def test_programs_that_tests_start_run_on_the_compiled_rooms() -> None:
    compiled_rooms()
    with start("--version") as process:
        output, _ = process.communicate()
    assert "(compiled)" in output


def test_what_a_compiler_that_was_killed_left_is_deleted(tmp_path: Path) -> None:
    dead = run("-c", "import os; print(os.getpid())").strip()
    mine, left = tmp_path / f"rooms.{os.getpid()}.a_b", tmp_path / f"rooms.{dead}.x"
    for folder in (mine, left, tmp_path / "rooms"):
        (folder / "flowguard").mkdir(parents=True)
    script().tidy(tmp_path / "rooms")
    assert set(tmp_path.iterdir()) == {mine, tmp_path / "rooms"}

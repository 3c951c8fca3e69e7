"""What every command does alike: help, completion in a shell, and the names of values."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from flowguard.cli import app
from flowguard.cli.plugins import PANELS
from tests.flowguard.cli.http_port import http_address, run
from tests.interop.broker import environment_with, running_broker
from tests.support.patience import HANG_S


def commands(path: tuple[str, ...], found: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and the commands below it, each with its words."""
    yield path, found
    for name, inner in getattr(found, "commands", {}).items():
        yield from commands((*path, name), inner)


ROOT: Any = get_command(app)
COMMANDS = [
    each
    for name in ROOT.list_commands(None)
    for each in commands((name,), ROOT.get_command(None, name))
]


@pytest.mark.parametrize("words", [(), *(path for path, _ in COMMANDS)], ids=" ".join)
def test_each_command_has_short_help_without_names_of_types(words: tuple[str, ...]) -> None:
    code, short, complaint = run(*words, "-h")
    assert (code, complaint) == (0, "")
    assert run(*words, "--help")[1] == short
    for name in ("<bool>", "<str>", "<path>", "<int", "<float", "list["):
        assert name not in short


def test_summary_of_each_command_fits_in_a_line_of_help() -> None:
    code, shown, _ = run("--help")
    assert code == 0
    for name in PANELS:
        assert f" {name} " in shown
    for name in ROOT.list_commands(None):
        summary = ROOT.get_command(None, name).help.partition("\n")[0]
        assert len(summary) <= 61, (name, summary)
        assert summary in shown


def test_each_option_has_help_that_is_shown_whole() -> None:
    for path, found in COMMANDS:
        for param in found.params:
            assert param.help or param.hidden, (path, param.name)
            assert "[default" not in (param.help or ""), (path, param.name)  # Markup would hide it.


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (("ca",), ["capacity", "calibrate"]),
        (("clients", "fo"), ["forget"]),
        (("serve", "--allow-p"), ["--allow-plaintext"]),
        (("clients", "list", "--state", "p"), ["paused"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bash_completes_words(
    words: tuple[str, ...], completions: list[str], tmp_path: Path
) -> None:
    """Bash runs what `--show-completion` prints, as after `--install-completion`."""
    program = tmp_path / "flowguard"
    program.write_text(
        f'#!{sys.executable}\nfrom flowguard.cli import app\napp(prog_name="flowguard")\n'
    )
    program.chmod(0o755)
    script = (
        'eval "$(flowguard --show-completion)"\n'
        f"COMP_WORDS=(flowguard {' '.join(words)}) COMP_CWORD={len(words)}\n"
        "$(complete -p flowguard | sed 's/.*-F \\([^ ]*\\) .*/\\1/') flowguard\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == sorted(completions)


def run_in(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and whole output of `flowguard ARGUMENTS` in this working directory."""
    done = subprocess.run(
        [sys.executable, "-m", "flowguard", *arguments],
        cwd=folder,
        env=environment_with(None),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_check_without_argument_takes_flowguard_toml(tmp_path: Path) -> None:
    code, said = run_in(tmp_path, "check")
    assert code == 2
    assert "there is no flowguard.toml in this directory" in said
    (tmp_path / "flowguard.toml").write_text(run("settings")[1])
    assert run_in(tmp_path, "check") == (0, "flowguard.toml is good: 1 listener, no rules\n")
    (tmp_path / "flowguard.toml").write_text("[flow]\nwindow = 3\n")
    code, said = run_in(tmp_path, "check", "--json")
    found = json.loads(said)
    assert (code, found["good"], len(found["wrong"])) == (2, False, 1)
    assert found["wrong"][0].startswith("flow.window: unknown setting")


def test_status_levels_and_reload_are_printed_as_json(tmp_path: Path) -> None:
    with running_broker(tmp_path, "--http", "127.0.0.1:0", "--store", "memory") as broker:
        url = f"http://{http_address(broker)}"
        status = json.loads(run("top", url, "--json")[1])
        workers = status.get("workers", [status])
        assert [each["clients"]["connected"] for each in workers] == [0] * len(workers)
        assert json.loads(run("log", "show", "--json", "--url", url)[1])["level"] == "info"
        reloaded = json.loads(run("reload", "--json", "--url", url)[1])
        assert (reloaded["certificates"], reloaded["needs_restart"]) == (0, [])

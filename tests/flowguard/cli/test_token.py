"""`--token-file` and FLOWGUARD_TOKEN: the token of commands for brokers on other machines."""

from pathlib import Path

import pytest

from tests.flowguard.cli.test_answers import server
from tests.support.commands import flowguard

COMMANDS = {
    "clients": ("clients", "kick", "c", "--url"),
    "top": ("top", "--once"),
    "store": ("store", "backup", "copy", "--url"),
}


def asked(command: str, *options: str, variable: str = "") -> tuple[list[str | None], str]:
    """The headers Authorization of a command, and what it complains about."""
    sent: list[str | None] = []
    with server({"error": "no"}, 409, sent) as url:
        environment = {"FLOWGUARD_TOKEN": variable} if variable else {}
        arguments = (*COMMANDS[command], url, *options)
        _, _, complaint = flowguard(*arguments, environment=environment)
    return sent, complaint


@pytest.mark.parametrize("command", COMMANDS)
def test_token_file_is_used_by_each_command_with_a_url(command: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of the file\r\nsecond line\n")
    options = ("--token-file", str(file))
    assert asked(command)[0] == [None]
    assert asked(command, variable="of the environment")[0] == ["Bearer of the environment"]
    assert asked(command, *options, variable="of the environment")[0] == ["Bearer of the file"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"", "does not begin with a line of ASCII text"),
        (b"\nsecond line", "does not begin with a line of ASCII text"),
        (b"se\rcret", "does not begin with a line of ASCII text"),
        (b"\xff\xfe", "does not begin with a line of ASCII text"),
    ],
)
def test_token_file_that_cannot_be_used_is_an_error(
    content: bytes | None, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    sent, complaint = asked("clients", "--token-file", str(file))
    assert (sent, why in complaint, "--token-file" in complaint) == ([], True, True)
    assert "cret" not in complaint


def test_variable_with_a_line_end_is_not_shown() -> None:
    sent, complaint = asked("clients", variable="se\ncret")
    assert (sent, "FLOWGUARD_TOKEN is not a line" in complaint) == ([], True)
    assert "cret" not in complaint


@pytest.mark.parametrize(
    "command",
    [
        ("top",),
        ("explain", "c", "--url"),
        ("clients", "list", "--url"),
        ("trace", "c", "--url"),
        ("drain", "--over", "1m", "--url"),
        ("log", "show", "--url"),
        ("reload", "--url"),
        ("cluster", "status", "--url"),
    ],
    ids=" ".join,
)
def test_missing_token_is_named_with_the_option(command: tuple[str, ...]) -> None:
    with server({"error": "a token is wanted"}, 401) as url:
        code, _, complaint = flowguard(*command, url)
    assert (code, "a token is wanted" in complaint, "--token-file" in complaint) == (1, True, True)
    assert "Is a broker running?" not in complaint

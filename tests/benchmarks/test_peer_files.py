"""Other brokers of a user's own beside ours."""

from pathlib import Path

import pytest

from benchmarks.build import Unavailable
from benchmarks.peer_files import read_peer

FILE = """
command = ["sh", "-c", "serve on $port with $config"]
version = ["echo", "Other 7.1"]
config = '''
port = $port
'''
durable = "files = $folder"
"""


def peer_file(folder: Path, text: str = FILE) -> str:
    path = folder / "other.toml"
    path.write_text(text)
    return f"other={path}"


def test_a_peer_serves_with_its_own_command_and_configuration(tmp_path: Path) -> None:
    peer = read_peer(peer_file(tmp_path))
    assert (peer.name, peer.prepare()) == ("other", "Other 7.1")
    config = tmp_path / "config"
    assert peer.command(1883, tmp_path, "qos0-100")[2] == f"serve on 1883 with {config}"
    assert config.read_text() == "port = 1883\n"
    peer.command(1883, tmp_path, "durable-100-16")
    assert config.read_text() == f"port = 1883\nfiles = {tmp_path}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("command = [", "Invalid"),
        ("command = ['a']", "version"),
        ("command = []\nversion = ['a']", "command"),
        (FILE + "\ncolour = 1", "colour"),
    ],
)
def test_what_is_wrong_with_a_peer_file_is_said(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_peer(peer_file(tmp_path, text))


@pytest.mark.parametrize("argument", ["other", "=file", "other=", "other=there/is/none"])
def test_a_peer_is_a_name_and_a_file(argument: str) -> None:
    with pytest.raises(ValueError, match="--peer"):
        read_peer(argument)


@pytest.mark.parametrize("command", ["version = ['true']", "version = ['there-is-no-such-one']"])
def test_a_peer_without_a_version_is_not_measured(tmp_path: Path, command: str) -> None:
    peer = read_peer(peer_file(tmp_path, f"command = ['sh']\n{command}"))
    with pytest.raises(Unavailable, match="version"):
        peer.prepare()

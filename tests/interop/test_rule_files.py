"""Files of rules and passwords: flowguard and Mosquitto decide the same of them."""

import shutil
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from flowguard.access.mosquitto import parse_acl
from flowguard.access.rights import Principal, published_as
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Packet, Puback
from flowguard.errors import ConfigError
from flowguard.identity.passwords import PasswordFile
from flowguard.lines import text_of
from flowguard.types import MQTT_5, Publish
from tests.interop.broker import PATIENCE_S
from tests.interop.mosquitto_peer import program

pytestmark = pytest.mark.slow
USERS = ("ann", "bob", None)
CLIENT_ID = "victim"
TOPICS = ("open", "s/victim/t", "s/ann/t", "s/%c/t", "s/%u/t", "own/ann", "own/bob", "a b", "x")
CHARACTERS = ("\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\x1d", "\x1e", "\xa0", "\t")
RULES = {
    "client id in a topic line": "topic write s/%c/#\ntopic open\n",
    "user in a topic line": "user ann\ntopic write s/%u/#\n",
    "deny with a client id": "user ann\ntopic #\ntopic deny s/%c/#\n",
    "patterns": "pattern write s/%c/#\npattern own/%u\n",
    "blanks": "user   ann  \ntopic   write   x  \ntopic a b\n",
    "crlf": "user ann\r\ntopic write x\r\n\r\nuser bob\r\ntopic open\r\n",
} | {
    f"{what} {ord(character):04x}": text.replace("@", character)
    for character in CHARACTERS
    for what, text in {
        "comment": "# a@topic write #\n# @user bob\ntopic open\n",
        "user": "user ann@\ntopic write x\nuser @bob\ntopic open\n",
        "end of a topic": "user ann\ntopic write x@\ntopic write open\n",
    }.items()
}


class Told:
    """A client of Mosquitto."""

    def __init__(self, port: int, user: str | None, password: bytes | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._decoder = PacketDecoder(2**20, MQTT_5, role="client")
        connect = Connect(CLIENT_ID, MQTT_5, username=user, password=password)
        self.code = self._ask(connect, Connack)

    def _ask(self, packet: Packet, kind: type[Connack] | type[Puback]) -> int:
        self._socket.sendall(encode(packet, MQTT_5))
        while (answer := self._decoder.next()) is None:
            data = self._socket.recv(4_096)
            assert data, "Mosquitto has closed the connection"
            self._decoder.feed(data)
        assert isinstance(answer, kind)
        return answer.reason_code

    def may_write(self, topic: str) -> bool:
        return self._ask(Publish(topic, b"", 1, packet_id=1), Puback) < 0x80

    def close(self) -> None:
        self._socket.close()


class Mosquitto:
    """A Mosquitto with these lines in its configuration; `port` None: it does not start."""

    def __init__(self, folder: Path, *lines: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        conf = folder / "mosquitto.conf"
        conf.write_text("\n".join([f"listener {port} 127.0.0.1", f"user {folder.owner()}", *lines]))
        path = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        if path is None:
            pytest.skip("mosquitto is missing: apt-get install mosquitto")
        words = [path, "-c", str(conf)]
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self.port: int | None = None
        for line in self._process.stderr:
            if "running" in line:
                self.port = port
                break

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("name", RULES)
def test_mosquitto_lets_the_same_clients_publish(name: str, tmp_path: Path) -> None:
    (tmp_path / "acl").write_bytes(RULES[name].encode())
    lines = ("allow_anonymous true", f"acl_file {tmp_path / 'acl'}")
    with closing(Mosquitto(tmp_path, *lines)) as mosquitto:
        try:
            rules = parse_acl(RULES[name], "acl")
        except ConfigError:
            assert mosquitto.port is None
            return
        assert mosquitto.port is not None
        for user in USERS:
            rights = rules.rights(None if user is None else Principal(user), CLIENT_ID)
            wanted = published_as(1, retain=False, will=False)
            ours = {topic: bool(rights.decide(topic) & wanted) for topic in TOPICS}
            with closing(Told(mosquitto.port, user)) as client:
                theirs = {topic: client.may_write(topic) for topic in TOPICS}
            assert ours == theirs, user


@pytest.mark.parametrize("around", ["", " ", "\t", "\v", "\u2028", "\x85", "\xa0"])
def test_mosquitto_knows_the_same_users(around: str, tmp_path: Path) -> None:
    path = tmp_path / "users"
    words = [program("mosquitto_passwd"), "-b", "-c", str(path), "ann", "secret"]
    subprocess.run(words, check=True, timeout=PATIENCE_S)
    hashed = path.read_text().strip().partition(":")[2]
    text = f"# {around}eve:{hashed}\n{around}ann{around}:{hashed}\r\n"
    path.write_bytes(text.encode())
    users = PasswordFile.parse(text_of(path.read_bytes(), "users"), "users")
    with closing(Mosquitto(tmp_path, f"password_file {path}")) as mosquitto:
        assert mosquitto.port is not None
        names = {"ann", "eve", f"{around}ann{around}" if around > "\x9f" else "bob"}
        for name in sorted(names):  # It closes connections that say control characters.
            with closing(Told(mosquitto.port, name, b"secret")) as client:
                assert (client.code == 0) == users.verify(name, b"secret"), name

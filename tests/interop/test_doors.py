"""Other people's clients through TLS and WebSocket, with passwords, certificates and rules.

Each subscribes to what is its own, publishes to what is not, and then to what is.
"""

import asyncio
import base64
import functools
import http.server
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest

from flowguard.identity.passwords import PasswordFile
from flowguard.types import ReasonCode
from tests.interop.broker import ANNOUNCEMENT, PATIENCE_S, WORKERS, Broker, running_broker
from tests.interop.mosquitto_peer import program
from tests.interop.mqttjs_peer import PACKAGE
from tests.interop.paho_peer import end_loop
from tests.support.authority import Authority, Pair
from tests.support.browser import Page, open_page

pytestmark = pytest.mark.slow
SECRET = "correct horse battery"
TOKEN_SECRET = b"a secret of thirty-two bytes ...."
SCHEMES = ("mqtt", "ws", "mqtts", "wss")
CERTIFICATES = ("mqtts", "wss")
WAYS = [(scheme, "ann") for scheme in SCHEMES] + [(scheme, "sensor-7") for scheme in CERTIFICATES]
"""Schemes, and who comes: ann says her password, sensor-7 shows its certificate."""


@dataclass(frozen=True)
class Doors:
    """A broker with a listener of each scheme, and one for clients with certificates."""

    broker: Broker
    authority: Authority
    pair: Pair
    """The broker's own."""
    ports: dict[str, int]
    sensor: Pair

    def port(self, scheme: str, user: str) -> int:
        """Where that user comes in."""
        return self.ports[f"{scheme} certificate" if user == "sensor-7" else scheme]

    def context(self, user: str = "ann") -> ssl.SSLContext:
        """What a client needs to trust the broker, and to be trusted."""
        return self.authority.client_context(self.sensor if user == "sensor-7" else None)


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@dataclass(frozen=True)
class Site:
    """A folder, and the origin under which its files are pages."""

    folder: Path
    origin: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    handler = functools.partial(Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Site(folder, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module", params=WORKERS, ids="workers={}".format)
def doors(
    request: pytest.FixtureRequest, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    authority = Authority(folder)
    pair = authority.issue("127.0.0.1")
    users = PasswordFile({}).with_user("ann", SECRET.encode())
    (folder / "users").write_text(users.with_user("bea", SECRET.encode(), scram=True).text())
    (folder / "acl.toml").write_text(
        '[roles.own]\nusers = ["*"]\npublish = ["%u/#"]\nsubscribe = ["%u/#"]\n'
    )
    listeners = [f'"{scheme}://127.0.0.1:0"' for scheme in SCHEMES]
    listeners += [
        f'{{address = "{scheme}://127.0.0.1:0", client_ca = "{authority.cert}"}}'
        for scheme in CERTIFICATES
    ]
    listeners.append('{address = "mqtts://127.0.0.1:0", password_is = "token"}')
    secret = base64.urlsafe_b64encode(TOKEN_SECRET).rstrip(b"=").decode()
    key_set = {"keys": [{"kty": "oct", "k": secret}]}
    (folder / "keys.json").write_text(json.dumps(key_set))
    (folder / "broker.toml").write_text(
        f'[network]\ncert = "{pair.cert}"\nkey = "{pair.key}"\n'
        f"listeners = [{', '.join(listeners)}]\norigins = ['{site.origin}']\n"
        f'password_file = "{folder}/users"\npassword_is = "password"\n'
        f'token_keys = "{folder}/keys.json"\ntoken_audience = "mqtt"\n'
        f'acl_file = "{folder}/acl.toml"\n'
    )
    config = ("--config", str(folder / "broker.toml"), "--workers", str(request.param))
    with running_broker(folder / "b", *config, listen=False) as broker:
        ports = {"mqtt": broker.port}
        assert broker.process.stdout is not None
        for name in (*SCHEMES[1:], "mqtts certificate", "wss certificate", "token"):
            said = broker.process.stdout.readline().removeprefix(ANNOUNCEMENT).split()[0]
            ports[name] = int(said.rpartition(":")[2])
        yield Doors(broker, authority, pair, ports, authority.issue("sensor-7"))


def token(user: str) -> str:
    """A token that never expires while a test runs."""
    return jwt.encode({"sub": user, "exp": 4_000_000_000, "aud": "mqtt"}, TOKEN_SECRET, "HS256")


def mosquitto(name: str, port: int, *words: str) -> tuple[int, str]:
    """Run one of Mosquitto's clients; its exit code, and what it said."""
    command = [program(name), "-h", "127.0.0.1", "-p", str(port), "-V", "mqttv5", "-q", "1", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("way", ["password", "certificate", "token"])
def test_mosquittos_clients(doors: Doors, way: str) -> None:
    user = "sensor-7" if way == "certificate" else "ann"
    proof = ["--cafile", str(doors.authority.cert)]
    if way == "password":
        proof += ["-u", user, "-P", SECRET]
    elif way == "token":
        proof += ["-u", user, "-P", token(user)]
    else:
        proof += ["--cert", str(doors.sensor.cert), "--key", str(doors.sensor.key)]
    port = doors.ports["token"] if way == "token" else doors.port("mqtts", user)
    session = ("-i", f"sub-{way}", "-c", "-x", "600", "-t", f"{user}/#")
    assert mosquitto("mosquitto_sub", port, *proof, *session, "-E")[0] == 0
    for topic in ("other/x", f"{user}/x"):
        _, said = mosquitto("mosquitto_pub", port, *proof, "-t", topic, "-m", topic)
        assert ("Not authorized" in said) == (topic == "other/x")
    code, got = mosquitto("mosquitto_sub", port, *proof, *session, "-C", "1")
    assert (code, got.strip()) == (0, f"{user}/x")


def test_mosquittos_client_without_certificate_or_with_a_wrong_password(doors: Doors) -> None:
    trust = ("--cafile", str(doors.authority.cert), "-t", "a", "-m", "x")
    assert mosquitto("mosquitto_pub", doors.port("mqtts", "sensor-7"), *trust)[0] != 0
    code, said = mosquitto("mosquitto_pub", doors.ports["mqtts"], *trust, "-u", "ann", "-P", "no")
    assert code == ReasonCode.BAD_USER_NAME_OR_PASSWORD, said


@pytest.mark.parametrize(("scheme", "user"), WAYS)
def test_paho(doors: Doors, scheme: str, user: str) -> None:
    paho = pytest.importorskip("paho.mqtt.client")
    transport = "websockets" if scheme.startswith("ws") else "tcp"
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, "paho", protocol=paho.MQTTv5, transport=transport
    )
    if user == "ann":
        client.username_pw_set(user, SECRET)
    if scheme in ("mqtts", "wss"):
        client.tls_set_context(doors.context(user))
    codes: list[int] = []
    got: list[str] = []
    done = threading.Event()

    def on_publish(_: Any, __: Any, ___: Any, code: Any, ____: Any) -> None:
        codes.append(code.value)

    def on_subscribe(*_: Any) -> None:
        client.publish("other/x", b"", 1)
        client.publish(f"{user}/x", b"", 1)

    def on_message(_: Any, __: Any, message: Any) -> None:
        got.append(message.topic)
        done.set()

    client.on_publish, client.on_subscribe, client.on_message = on_publish, on_subscribe, on_message
    client.on_connect = lambda *_: client.subscribe(f"{user}/#", 1)
    client.connect_timeout = PATIENCE_S
    client.connect("127.0.0.1", doors.port(scheme, user))
    client.loop_start()
    assert done.wait(PATIENCE_S)
    client.disconnect()
    end_loop(client)
    assert got == [f"{user}/x"]
    assert codes[0] == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize(("scheme", "user"), WAYS)
def test_aiomqtt(doors: Doors, scheme: str, user: str) -> None:
    aiomqtt = pytest.importorskip("aiomqtt")

    async def talk() -> str:
        async with aiomqtt.Client(
            "127.0.0.1",
            doors.port(scheme, user),
            username=user if user == "ann" else None,
            password=SECRET if user == "ann" else None,
            identifier="aiomqtt",
            timeout=PATIENCE_S,
            transport="websockets" if scheme.startswith("ws") else "tcp",
            tls_context=doors.context(user) if scheme in ("mqtts", "wss") else None,
        ) as client:
            await client.subscribe(f"{user}/#", 1)
            await client.publish("other/x", b"", 1)
            await client.publish(f"{user}/x", b"", 1)
            async for message in client.messages:
                return str(message.topic)
        raise AssertionError("it ends without a message")

    assert asyncio.run(asyncio.wait_for(talk(), PATIENCE_S)) == f"{user}/x"


@pytest.mark.parametrize("user", ["ann", "sensor-7"])
def test_gmqtt_over_tls(doors: Doors, user: str) -> None:
    gmqtt = pytest.importorskip("gmqtt")

    async def talk() -> str:
        got: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        unacknowledged = gmqtt.client.PersistentStorage()
        client = gmqtt.Client("gmqtt", persistent_storage=unacknowledged)
        if user == "ann":
            client.set_auth_credentials(user, SECRET)

        def on_message(_: Any, topic: str, *__: Any) -> int:
            got.set_result(topic)
            return 0

        def on_subscribe(*_: Any) -> None:
            client.publish("other/x", b"", qos=1)
            client.publish(f"{user}/x", b"", qos=1)

        client.on_message, client.on_subscribe = on_message, on_subscribe
        await client.connect("127.0.0.1", doors.port("mqtts", user), ssl=doors.context(user))
        client.subscribe(f"{user}/#", qos=1)
        topic = await got
        await unacknowledged.wait_empty()  # Bytes that meet its close_notify are an error there.
        await client.disconnect()
        return topic

    assert asyncio.run(asyncio.wait_for(talk(), PATIENCE_S)) == f"{user}/x"


def bundle() -> Path:
    """MQTT.js; skips the test where it is missing."""
    if not PACKAGE.exists():
        pytest.skip("MQTT.js is missing: make test installs it")
    return PACKAGE


def run_node(script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a script of this folder with MQTT.js in Node, until it ends."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing: make test installs it")
    return subprocess.run(
        [node, str(Path(__file__).with_name(script)), str(bundle()), *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("scheme", CERTIFICATES)
def test_mqttjs_proves_a_password_without_saying_it(doors: Doors, scheme: str) -> None:
    where = (f"{scheme}://127.0.0.1:{doors.ports[scheme]}", str(doors.authority.cert))
    right = run_node("scram.cjs", *where, "bea", SECRET)
    assert right.stdout.splitlines() == ["true", "135"], right.stderr
    for wrong in (("bea", "wrong"), ("nobody", SECRET)):
        assert run_node("scram.cjs", *where, *wrong).stdout.strip() == "refused 135"


@pytest.mark.parametrize(("scheme", "user"), WAYS)
@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
def test_mqttjs(doors: Doors, scheme: str, user: str, is_right: bool) -> None:
    options: dict[str, str] = {"ca": str(doors.authority.cert)}
    if user == "ann":
        options |= {"username": user, "password": SECRET if is_right else "wrong"}
    elif is_right:
        options |= {"cert": str(doors.sensor.cert), "key": str(doors.sensor.key)}
    url = f"{scheme}://127.0.0.1:{doors.port(scheme, user)}"
    ended = run_node("doors.cjs", url, user, json.dumps(options))
    if is_right:
        assert ended.stdout.strip() == f"135\n1 {user}/x hello", ended.stderr
    else:
        assert ended.stdout.startswith("refused 134" if user == "ann" else "refused"), ended.stderr


@pytest.fixture(scope="module")
def tab(doors: Doors, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser that trusts the key of the broker's certificate, on a page with MQTT.js."""
    shutil.copy(bundle() / "dist" / "mqtt.min.js", site.folder)
    shutil.copy(Path(__file__).with_name("doors.html"), site.folder)
    trusted = f"--ignore-certificate-errors-spki-list={doors.pair.pin()}"
    with open_page(tmp_path_factory.mktemp("chromium"), trusted) as opened:
        opened.visit(f"{site.origin}/doors.html", 800)
        yield opened


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.parametrize("password", [SECRET, "wrong"])
def test_mqttjs_in_a_page(doors: Doors, tab: Page, scheme: str, password: str) -> None:
    url = f"{scheme}://127.0.0.1:{doors.ports[scheme]}"
    said = tab.evaluate(f"talk({json.dumps(url)}, 'ann', {json.dumps(password)})")
    assert said == (["135", "1 ann/x hello"] if password == SECRET else ["refused 134"])


@pytest.mark.browser
def test_a_page_of_another_origin_is_refused(doors: Doors, site: Site, tab: Page) -> None:
    tab.visit(f"{site.origin.replace('127.0.0.1', 'shop.localhost')}/doors.html", 800)
    said = tab.evaluate(f"talk('ws://127.0.0.1:{doors.ports['ws']}', 'ann', '{SECRET}')")
    assert said == ["closed"]


def openssl(doors: Doors, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """`openssl s_client`, until it or the broker ends."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is missing")
    where = ("-connect", f"127.0.0.1:{doors.ports['mqtts']}", "-CAfile", str(doors.authority.cert))
    return subprocess.run(
        [program, "s_client", *words, *where],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("version", "spoken"), [("tls1", False), ("tls1_1", False), ("tls1_2", True), ("tls1_3", True)]
)
def test_versions_of_tls_as_openssl_sees_them(doors: Doors, version: str, spoken: bool) -> None:
    # The lowest level of security lets the client offer what is old.
    ended = openssl(doors, f"-{version}", "-cipher", "DEFAULT:@SECLEVEL=0")
    assert ("Verify return code: 0 (ok)" in ended.stdout and ended.returncode == 0) is spoken
    assert ("Cipher is (NONE)" in ended.stdout) is not spoken


def test_new_keys_by_renegotiation_are_refused(doors: Doors) -> None:
    """TLS 1.2 has it, and each would cost the broker another handshake."""
    ended = openssl(doors, "-tls1_2", stdin="R\n")
    assert "RENEGOTIATING" in ended.stdout + ended.stderr
    assert "no renegotiation" in ended.stderr

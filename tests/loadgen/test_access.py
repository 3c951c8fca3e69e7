"""`flowguard storm` and its kit with TLS, users and WebSocket, at flowguard and at Mosquitto."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.brokers import free_port
from flowguard.identity.passwords import PasswordFile
from loadgen.kit import KitReport, Survival
from tests.broker_adapter.upstream import MOSQUITTO, Mosquitto
from tests.interop.broker import ANNOUNCEMENT, running_broker
from tests.support.authority import Authority, Pair
from tests.support.commands import flowguard

SECRET = "correct horse battery"
SCHEMES = ("mqtt", "ws", "mqtts", "wss")

pytestmark = pytest.mark.slow
needs_mosquitto = [
    pytest.mark.peers,
    pytest.mark.skipif(MOSQUITTO is None, reason="no mosquitto here"),
]


@dataclass(frozen=True)
class Place:
    """Listeners of a broker that asks for a user, and one that asks for a certificate."""

    folder: Path
    authority: Authority
    addresses: dict[str, str]
    sensor: Pair

    def access(self, scheme: str) -> list[str]:
        """The address, and the options without which nobody gets in."""
        words = [self.addresses[scheme]]
        if scheme == "certificate":
            words += ["--cert", str(self.sensor.cert), "--key", str(self.sensor.key)]
        else:
            words += ["--user", "user-{n}", "--password-file", str(self.folder / "password")]
        return words + (
            ["--cafile", str(self.authority.cert)]
            if words[0].startswith(("mqtts:", "wss:"))
            else []
        )


def files(folder: Path) -> tuple[Authority, Pair, Pair]:
    """The authority, and certificates of a broker and a client. The password is a pattern."""
    authority = Authority(folder)
    (folder / "password").write_text("secret-{n}\n")
    return authority, authority.issue("127.0.0.1"), authority.issue("sensor-7")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("access")
    authority, pair, sensor = files(folder)
    users = PasswordFile({})
    for number in range(6):
        users = users.with_user(f"user-{number}", f"secret-{number}".encode())
    (folder / "users").write_text(users.text())
    listeners = [f'"{scheme}://127.0.0.1:0"' for scheme in SCHEMES]
    listeners.append(f'{{address = "mqtts://127.0.0.1:0", client_ca = "{authority.cert}"}}')
    (folder / "broker.toml").write_text(
        f'[network]\ncert = "{pair.cert}"\nkey = "{pair.key}"\npassword_file = "{folder}/users"\n'
        f"listeners = [{', '.join(listeners)}]\nallow_all_topics = true\n"
    )
    config = ("--config", str(folder / "broker.toml"))
    with running_broker(folder / "b", *config, listen=False) as broker:
        addresses = {"mqtt": f"127.0.0.1:{broker.port}"}
        assert broker.process.stdout is not None
        for name in (*SCHEMES[1:], "certificate"):
            place = broker.process.stdout.readline().removeprefix(ANNOUNCEMENT).split()[0]
            scheme = "mqtts" if name == "certificate" else name
            addresses[name] = f"{scheme}://{place}"
        yield Place(folder, authority, addresses, sensor)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    assert MOSQUITTO is not None
    folder = tmp_path_factory.mktemp("mosquitto")
    authority, pair, sensor = files(folder)
    (folder / "users").write_text("".join(f"user-{n}:secret-{n}\n" for n in range(6)))
    subprocess.run(["mosquitto_passwd", "-U", str(folder / "users")], check=True)
    broker = Mosquitto(folder)
    tls_port, certificate_port = free_port(), free_port()
    tls = f"cafile {authority.cert}\ncertfile {pair.cert}\nkeyfile {pair.key}\n"
    users = f"allow_anonymous false\npassword_file {folder}/users\n"
    (folder / "mosquitto.conf").write_text(
        f"user root\nper_listener_settings true\nlistener {broker.port} 127.0.0.1\n{users}"
        f"listener {tls_port} 127.0.0.1\n{users}{tls}"
        f"listener {certificate_port} 127.0.0.1\n{tls}require_certificate true\n"
        "use_identity_as_username true\n"
    )
    with running(broker):
        addresses = {
            "mqtt": f"127.0.0.1:{broker.port}",
            "mqtts": f"mqtts://127.0.0.1:{tls_port}",
            "certificate": f"mqtts://127.0.0.1:{certificate_port}",
        }
        yield Place(folder, authority, addresses, sensor)


@contextmanager
def running(broker: Mosquitto) -> Iterator[None]:
    broker.start()
    try:
        yield
    finally:
        broker.kill()


@pytest.fixture(params=["ours", pytest.param("theirs", marks=needs_mosquitto)])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def storm(*words: str, environment: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """The exit code and the result."""
    code, said, errors = flowguard("storm", *words, "--json", "-", environment=environment)
    assert said, errors
    return code, json.loads(said)


@pytest.mark.parametrize("scheme", [*SCHEMES, "certificate"])
def test_storm_delivers_messages_through_each_layer(place: Place, scheme: str) -> None:
    if scheme not in place.addresses:
        pytest.skip("this Mosquitto listens without WebSocket: Debian builds it so")
    words = ("pairs", "--pairs", "3", "--seconds", "0.3", "--payload", "20000")
    code, result = storm(*place.access(scheme), *words)
    assert code == 0, result
    assert result["connected"] == result["attempts"] == 6
    assert result["received"] == result["expected"] > 3


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
def test_slow_subscribers_read_their_backlog_through_layers(ours: Place, scheme: str) -> None:
    words = ("slow-subscriber", "--clients", "3", "--seconds", "0.3", "--payload", "2000")
    code, result = storm(*ours.access(scheme), *words, "--rate", "200", "--slow-rate", "5000")
    assert code == 0, result
    assert result["received"] == result["expected"] > result["slow_received"] > 0


def test_users_of_a_file_take_turns(ours: Place) -> None:
    path = ours.folder / "some"
    path.write_text("user-1:secret-1\n\nuser-2:wrong\n")
    words = ("connect", "--clients", "4", "--retry", "none", "--users", str(path), "--hold", "0")
    code, result = storm(ours.addresses["mqtt"], *words)
    assert (code, result["accepted"], result["refused"]) == (1, 2, {"0x86": 2})


def test_password_may_come_from_the_environment(ours: Place) -> None:
    words = (ours.addresses["mqtt"], "connect", "--clients", "1", "--hold", "0", "--user", "user-3")
    code, result = storm(*words, environment={"STORM_PASSWORD": "secret-3"})
    assert (code, result["connected"]) == (0, 1)
    code, result = storm(*words, "--retry", "none", environment={"STORM_PASSWORD": "secret-4"})
    assert (code, result["refused"]) == (1, {"0x86": 1})


@pytest.mark.parametrize("scheme", ["mqtt", "wss", "certificate"])
def test_kit_judges_a_broker_behind_layers(place: Place, scheme: str) -> None:
    if scheme not in place.addresses:
        scheme = "mqtts"
    words = ("--kit", *place.access(scheme), "--only", "connect-storm,noisy-neighbour")
    # Six users are known: twenty quiet pairs and a flood need a single one.
    words = tuple(word.replace("{n}", "1") for word in words)
    (place.folder / "password").write_text("secret-1\n")
    try:
        _, result = storm(*words, "--clients", "50")
    finally:
        (place.folder / "password").write_text("secret-{n}\n")
    report = KitReport.model_validate(result)
    assert report.target == place.addresses[scheme]
    first, second = report.findings
    assert first.values["connected"] == 50
    assert second.values["noise_per_s"], second.sentence


def _without(words: list[str], *options: str) -> list[str]:
    kept = list(words)
    for option in options:
        if option in kept:
            del kept[kept.index(option) : kept.index(option) + 2]
    return kept


@pytest.mark.parametrize(
    ("scheme", "missing", "asks"),
    [
        ("mqtt", ("--user", "--password-file"), "asks for credentials (0x87)"),
        ("mqtts", ("--cafile",), "its certificate is not trusted"),
        ("certificate", ("--cert", "--key"), "asks for TLS (tlsv13 alert certificate required)"),
    ],
)
@pytest.mark.parametrize("version", ["5.0", "3.1.1"])
def test_kit_is_unclear_if_it_lacks_what_the_broker_asks_for(
    place: Place, scheme: str, missing: tuple[str, ...], asks: str, version: str
) -> None:
    words = ("--kit", *_without(place.access(scheme), *missing), "--clients", "5")
    code, result = storm(*words, "--version", version)
    findings = KitReport.model_validate(result).findings
    assert code == 1
    assert {finding.verdict for finding in findings} == {Survival.UNCLEAR}
    assert all(asks in finding.sentence for finding in findings), findings[0].sentence


def test_kit_is_unclear_if_a_password_is_wrong_or_tls_is_not_spoken(place: Place) -> None:
    wrong = place.folder / "wrong"
    wrong.write_text("wrong\n")
    words = ("--kit", place.addresses["mqtt"], "--user", "user-1", "--password-file", str(wrong))
    plain = place.addresses["mqtts"].removeprefix("mqtts://")
    for each in (words, ("--kit", plain)):
        _, result = storm(*each, "--clients", "5")
        findings = KitReport.model_validate(result).findings
        assert {f.verdict for f in findings} == {Survival.UNCLEAR}, findings[0].sentence


def test_kit_is_unclear_if_some_of_the_users_are_rejected(ours: Place) -> None:
    words = ("--kit", *ours.access("mqtt"), "--only", "connect-storm", "--clients", "10")
    _, result = storm(*words, "--connect-seconds", "2")
    (finding,) = KitReport.model_validate(result).findings
    assert finding.verdict is Survival.UNCLEAR
    assert "6 of 10 clients in" in finding.sentence
    assert "rejects some of the users" in finding.sentence


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--cafile", "none.pem"], "certificates need mqtts:// or wss://"),
        (["--password-file", "none"], "--password-file needs --user"),
        (["--user", "ann", "--password-file", "none"], "cannot read none"),
        (["--user", "ann", "--users", "none"], "cannot be used with --user"),
        (["--users", __file__], "expected NAME:PASSWORD"),
    ],
)
def test_options_of_access_are_checked_first(words: list[str], hint: str) -> None:
    code, _, said = flowguard("storm", "127.0.0.1:1", "connect", *words)
    assert code == 2
    assert hint in " ".join(said.split())


def test_unusable_certificates_are_named(ours: Place, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for option in ("--cafile", "--cert"):
        code, _, said = flowguard("storm", ours.addresses["mqtts"], "connect", option, str(bad))
        assert code == 2
        assert f"{option} {bad}: no certificate or key" in said.replace("\n", "")


@pytest.mark.parametrize("scheme", [*SCHEMES, "certificate"])
def test_publish_and_subscribe_through_each_layer(place: Place, scheme: str) -> None:
    if scheme in place.addresses:
        options = ("--broker", *place.access(scheme))
        code, _, errors = flowguard("publish", "kept", "text", "--retain", *options)
        assert code == 0, errors
        code, said, errors = flowguard("subscribe", "kept", "--count", "1", *options)
        assert (code, said) == (0, "kept (retained) text\n"), errors

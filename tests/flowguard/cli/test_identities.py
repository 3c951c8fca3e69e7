"""`flowguard passwd`, users of a running broker, SIGHUP, and what the street may not reach."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from flowguard.broker.sockets.listening import open_doorways
from flowguard.cli.remote.ask import POST_HEADERS
from flowguard.codec.packets import Connack, Pingreq, Pingresp
from flowguard.errors import ConfigError
from flowguard.network_settings import NetworkSettings
from flowguard.types import ReasonCode
from tests.flowguard.cli.http_port import http_address
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.authority import Authority
from tests.support.caller import Caller

pytestmark = pytest.mark.slow
SECRET = "correct horse battery"


def passwd(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowguard", "passwd", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_users_are_added_checked_and_deleted(tmp_path: Path) -> None:
    file = tmp_path / "users"
    options = ("ann", "--file", str(file))
    assert passwd("add", *options, stdin=f"{SECRET}\n{SECRET}\n").returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert SECRET not in file.read_text()
    assert passwd("check", *options, stdin=f"{SECRET}\n").returncode == 0
    assert passwd("check", *options, stdin="wrong\n").returncode == 1
    before = file.read_text()
    differing = passwd("add", *options, stdin=f"{SECRET}\nsomething else\n")
    assert (differing.returncode, file.read_text()) == (2, before)
    assert SECRET not in differing.stdout + differing.stderr
    assert passwd("del", *options).returncode == 0
    assert file.read_text() == ""
    gone = passwd("del", *options)
    assert (gone.returncode, gone.stderr.strip()) == (2, "there is no user 'ann'")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_who_could_read_the_file_still_can(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.touch(0o640)
    os.chown(file, 12_345, 23_456)
    added = passwd("add", "ann", "--file", str(file), stdin=f"{SECRET}\n{SECRET}\n")
    assert added.returncode == 0
    found = file.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12_345, 23_456, 0o640)


def test_a_user_may_have_a_verifier_of_scram(tmp_path: Path) -> None:
    options = ("ann", "--file", str(tmp_path / "users"))
    assert passwd("add", "--scram", *options, stdin=f"{SECRET}\n{SECRET}\n").returncode == 0
    key, user = (tmp_path / "users").read_text().splitlines()
    assert key.startswith("#flowguard-key")
    assert user.startswith("ann:SCRAM-SHA-256$")
    assert passwd("check", *options, stdin=f"{SECRET}\n").returncode == 0
    assert passwd("check", *options, stdin="wrong\n").returncode == 1


def reason(broker: Broker, user: str | None, password: str = SECRET) -> int:
    with Caller(broker, username=user, password=password.encode() if user else None) as caller:
        connack = caller.read()
        assert isinstance(connack, Connack)
        return connack.reason_code


def hang_up(broker: Broker, caller: Caller, awaited: str, times: int) -> None:
    """SIGHUP, until the log has said so once more; the caller stays connected."""
    broker.process.send_signal(signal.SIGHUP)
    while broker.log.read_text().count(awaited) < times:
        caller.send(Pingreq())
        assert isinstance(caller.read(), Pingresp)


def test_a_broker_reads_its_users_anew_and_shows_no_secret_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "users"
    options = ("--file", str(file))
    assert passwd("add", "ann", *options, stdin=f"{SECRET}\n{SECRET}\n").returncode == 0
    rules = tmp_path / "acl"
    rules.write_text("pattern readwrite %u/#\n")
    words = (
        "--password-file",
        str(file),
        "--acl",
        str(rules),
        "--record",
        str(tmp_path / "b/runs"),
    )
    with running_broker(tmp_path / "b", *words) as broker:
        address = http_address(broker)
        assert reason(broker, "ann") == 0
        assert reason(broker, "ann", "wrong" + SECRET) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert reason(broker, None) == ReasonCode.NOT_AUTHORIZED
        with Caller(broker, client_id="stays", username="ann", password=SECRET.encode()) as caller:
            assert isinstance(caller.read(), Connack)
            good = file.read_text()
            file.write_text("nonsense\n")
            hang_up(broker, caller, "reload failed", 1)
            assert reason(broker, "ann") == 0
            file.write_text(good)
            assert passwd("add", "bob", *options, stdin=f"{SECRET}\n{SECRET}\n").returncode == 0
            hang_up(broker, caller, "reloaded certificates, users, keys and rules", 1)
            assert reason(broker, "bob") == 0
            shown = []
            for page in ("status", "metrics", "explain/stays"):
                with urllib.request.urlopen(f"http://{address}/{page}", timeout=PATIENCE_S) as said:
                    shown.append(said.read().decode())
            asked = json.dumps({"folder": str(tmp_path / "b" / "copy")}).encode()
            copy = urllib.request.Request(f"http://{address}/backup", asked, POST_HEADERS)
            with urllib.request.urlopen(copy, timeout=PATIENCE_S) as said:
                shown.append(said.read().decode())
        checks = json.loads(shown[0])["listener"]["checks"]
        assert (checks["wrong"], checks["anonymous"]) == (1, 1)
        assert broker.terminate() == 0
        shown.append(broker.log.read_text())
        files = [path for path in (tmp_path / "b").rglob("*") if path.is_file()]
        assert {"copy", "runs", "data"} <= {
            path.relative_to(tmp_path / "b").parts[0] for path in files
        }
        stored = b"".join(path.read_bytes() for path in files)
    hashes = [line.partition(":")[2] for line in file.read_text().splitlines()]
    for secret in (SECRET, *hashes):
        assert not any(secret in text for text in shown)
        assert secret.encode() not in stored


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ({"listeners": ["0.0.0.0:0"]}, "--allow-plaintext"),
        ({"listeners": ["ws://[::]:0"]}, "--allow-plaintext"),
        ({"listeners": ["0.0.0.0:0"], "password_file": "users"}, "--allow-plaintext"),
        ({"listeners": ["0.0.0.0:0"], "allow_plaintext": True}, "--allow-anonymous"),
        (
            {"listeners": ["mqtts://0.0.0.0:0"], "cert": "a", "key": "b"},
            "--allow-anonymous",
        ),
        (  # Without TLS there is no certificate to request.
            {
                "listeners": ["0.0.0.0:0", "mqtts://127.0.0.1:0"],
                "allow_plaintext": True,
                "client_ca": "ca",
                "cert": "a",
                "key": "b",
            },
            "--allow-anonymous",
        ),
        ({"client_ca": "ca"}, "network.client_ca: ca .* no listener speaks TLS"),
        (
            {"listeners": ["0.0.0.0:0"], "allow_plaintext": True, "client_ca": "ca"},
            "no listener speaks TLS",
        ),
        (
            {"listeners": ["127.0.0.1:0", "ws://[::1]:0"], "client_ca": "ca"},
            "no listener speaks TLS",
        ),
        ({"listeners": [{"address": "127.0.0.1:0", "client_ca": "ca"}]}, "client_ca would do noth"),
        (
            {"listeners": [{"address": "ws://127.0.0.1:0", "cert": "a", "key": "b"}]},
            "cert, key would do nothing",
        ),
    ],
)
def test_what_the_street_reaches_has_tls_and_identities_or_a_word_that_it_need_not(
    network: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        open_doorways(NetworkSettings.model_validate(network))


def test_a_listener_that_asks_for_certificates_needs_no_more_words(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    listener = {"address": "mqtts://0.0.0.0:0", "client_ca": authority.cert}
    network = {"listeners": [listener], "cert": pair.cert, "key": pair.key}
    (doorway,) = open_doorways(NetworkSettings.model_validate(network))
    doorway.close()


def test_in_as_many_words_it_listens() -> None:
    words = {"allow_plaintext": True, "allow_anonymous": True}
    network = NetworkSettings.model_validate({"listeners": ["0.0.0.0:0"], **words})
    (doorway,) = open_doorways(network)
    doorway.close()

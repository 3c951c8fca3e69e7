"""No secret leaves a broker: whatever it writes, shows, stores or sends is searched for them."""

import base64
import json
import secrets
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jwt
import pytest

from flowguard.cli.remote.ask import POST_HEADERS
from flowguard.codec.packets import Auth, Connack, Disconnect, Pingreq, Pingresp, Subscribe
from flowguard.identity.passwords import PasswordFile
from flowguard.identity.scram import METHOD, ScramVerifier
from flowguard.types import Properties, Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.cli.http_port import http_address, run
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.authority import Authority
from tests.support.caller import Caller
from tests.support.scram import ScramClient

pytestmark = pytest.mark.slow
PASSWORD, WRONG, PENCIL = "correct horse battery", "wrong horse battery", "pencil of sue"
SIGNING_KEY = b"a signing key of 32 bytes or more"
OTHER_KEY = b"another key that signs nothing here"
HTTP_TOKEN = "a token of the page, long enough"
FAR = 4_000_000_000


def token(key: bytes = SIGNING_KEY, **claims: object) -> str:
    return jwt.encode({"sub": "jon", "exp": FAR, "aud": "mqtt", **claims}, key, "HS256")


TOKENS = {
    "right": token(),
    "forged": token(OTHER_KEY),
    "expired": token(exp=1_000_000_000),
    "for others": token(aud="others"),
}


def make(folder: Path) -> tuple[Path, list[str]]:
    """A configuration with every kind of secret, and those that lie in its files."""
    pair = Authority(folder).issue("127.0.0.1")
    users = PasswordFile({}).with_user("ann", PASSWORD.encode())
    verifier = ScramVerifier.of(PENCIL, b"s" * 16, 4_096)
    hashes = {**users.hashes, "sue": str(verifier)}
    (folder / "users").write_text(PasswordFile(hashes).text())
    encoded = base64.urlsafe_b64encode(SIGNING_KEY).rstrip(b"=").decode()
    (folder / "keys.json").write_text(json.dumps({"keys": [{"kty": "oct", "k": encoded}]}))
    (folder / "page").write_text(HTTP_TOKEN + "\n")
    (folder / "acl.toml").write_text(
        '[roles.own]\nusers = ["*"]\npublish = ["%u/#"]\nreceive = ["%u/#", "$SYS/#"]\n'
    )
    (folder / "broker.toml").write_text(
        f'[network]\nlisteners = ["127.0.0.1:0", "mqtts://127.0.0.1:0", '
        f'{{address = "127.0.0.1:0", password_is = "token"}}]\npassword_is = "password"\n'
        f'cert = "{pair.cert}"\nkey = "{pair.key}"\npassword_file = "{folder}/users"\n'
        f'token_keys = "{folder}/keys.json"\ntoken_audience = "mqtt"\n'
        f'acl_file = "{folder}/acl.toml"\n[http]\ntoken_file = "{folder}/page"\n'
        f'[log]\nlevel = "debug"\nformat = "json"\n'
    )
    kept = str(verifier).split("$")[2].split(":")[1:]
    private = pair.key.read_text().splitlines()[1:-1]
    return folder / "broker.toml", [*users.hashes.values(), *kept, encoded, *private]


def come(broker: Broker, user: str, password: str) -> int:
    with Caller(broker, client_id=f"by {user}", username=user, password=password.encode()) as one:
        connack = one.read()
        assert isinstance(connack, Connack)
        return connack.reason_code


def prove(broker: Broker, password: str) -> tuple[int, list[str]]:
    """Log in by SCRAM. Return the reason code, and the secrets that were exchanged."""
    client = ScramClient("sue", password, secrets.token_urlsafe(18))
    begun = Properties(authentication_method=METHOD, authentication_data=client.first())
    with Caller(broker, client_id="by proof", properties=begun) as one:
        asked = one.read()
        assert isinstance(asked, Auth)
        assert asked.properties.authentication_data is not None
        final = client.final(asked.properties.authentication_data)
        proof = Properties(authentication_method=METHOD, authentication_data=final)
        one.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, proof))
        connack = one.read()
        assert isinstance(connack, Connack | Disconnect)
        return connack.reason_code, [final.decode().rpartition("p=")[2]]


def shown(address: str) -> Iterator[str]:
    """Yield the pages of the HTTP port for a permitted reader."""
    for path in ("status", "metrics", "explain/stays", "health", ""):
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=PATIENCE_S) as said:
            yield said.read().decode()
    with urllib.request.urlopen(f"http://{address}/events", timeout=PATIENCE_S) as said:
        yield "".join(said.readline().decode() for _ in range(3))


def system_topics(caller: Caller) -> Iterator[str]:
    """Retained messages of $SYS, until a ping is answered."""
    caller.send(Subscribe(1, (("$SYS/#", SubscriptionOptions()),)), Pingreq())
    while not isinstance(packet := caller.read(), Pingresp):
        if isinstance(packet, Publish):
            yield f"{packet.topic} {packet.payload!r}"


def test_no_secret_is_in_any_log_metric_page_message_recording_or_backup(tmp_path: Path) -> None:
    config, in_files = make(tmp_path)
    folder = tmp_path / "b"
    words = ("--config", str(config), "--record", str(folder / "runs"))
    said = [*run("check", str(config))[1:]]
    with running_broker(folder, *words, listen=False) as broker:
        assert broker.process.stdout is not None
        broker.process.stdout.readline()  # The port of TLS.
        of_tokens = int(broker.process.stdout.readline().split()[2].rpartition(":")[2])
        address = http_address(broker)
        with Caller(broker, client_id="stays", username="ann", password=PASSWORD.encode()) as one:
            assert isinstance(one.read(), Connack)
            assert come(broker, "ann", PASSWORD) == 0
            assert come(broker, "ann", WRONG) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
            assert come(broker, "nobody", PASSWORD) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
            door = replace(broker, port=of_tokens)
            codes = {name: come(door, "jon", value) for name, value in TOKENS.items()}
            assert [name for name, code in codes.items() if code == 0] == ["right"]
            right, proofs = prove(broker, PENCIL)
            wrong, others = prove(broker, WRONG)
            assert (right, wrong) == (0, ReasonCode.NOT_AUTHORIZED)
            broker.process.send_signal(signal.SIGHUP)
            said += run("reload", "--url", address)[1:]
            said += run("explain", "stays", "--url", address)[1:]
            said += [*shown(address), *system_topics(one)]
            asked = json.dumps({"folder": str(folder / "copy")}).encode()
            copy = urllib.request.Request(f"http://{address}/backup", asked, POST_HEADERS)
            with urllib.request.urlopen(copy, timeout=PATIENCE_S) as answer:
                said.append(answer.read().decode())
        assert broker.terminate() == 0
        log = broker.log.read_text()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"copy", "runs", "data"} <= {path.relative_to(folder).parts[0] for path in files}
    found = "\0".join([*said, log]).encode() + b"\0".join(path.read_bytes() for path in files)
    assert b"stays" in found  # It is all there.
    of_clients = [PASSWORD, WRONG, PENCIL, *TOKENS.values(), *proofs, *others]
    of_keys = [SIGNING_KEY.decode(), HTTP_TOKEN]
    for secret in (*in_files, *of_clients, *of_keys):
        assert len(secret) > 12
        assert secret.encode() not in found

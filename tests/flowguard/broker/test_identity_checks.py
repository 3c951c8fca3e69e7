"""The identity of a CONNECT: checked off the loop, remembered, limited per address, read again."""

import base64
import hmac
import os
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from structlog.testing import capture_logs

from broker_adapter.proxy.protocol import header
from flowguard.access.rights import Principal
from flowguard.access.rules_toml import parse_toml
from flowguard.broker.identity import hashers, identity_checks
from flowguard.broker.identity.identity_checks import IdentityChecks, Proofs
from flowguard.broker.logs.error_log import SHOWN_MAX
from flowguard.broker.server import Running, unix_clock
from flowguard.broker.sockets.listening import open_doorways
from flowguard.codec.packets import Connack, Connect, Disconnect, Puback
from flowguard.identity.failures import BURST
from flowguard.identity.passwords import PasswordFile
from flowguard.identity.remembered import RememberedTokens
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import CheckOutcome
from flowguard.node.connect.authentication import Hooks
from flowguard.priority import lowered
from flowguard.stores import MemoryStore
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.support.patience import HANG_S
from tests.support.real import TEST_S, Wire, broker, connect, open_wire, until

USERS = PasswordFile({}).with_user("ann", b"secret").with_user("bob", b"other")


def checks_of(
    path: Path, users: PasswordFile = USERS, *, anonymous: bool = False
) -> IdentityChecks:
    path.write_text(users.text())
    network = NetworkSettings(password_file=path)
    return IdentityChecks(network, secrets.token_bytes(32), unix_clock(), anonymous=anonymous)


async def answer(
    running: Running, user: str | None, password: bytes | None, version: int = MQTT_5
) -> int:
    """The reason code of CONNACK."""
    wire = await open_wire(running, version)
    await wire.send(Connect(f"c-{user}", version, username=user, password=password))
    connack = await wire.expect(Connack)
    await wire.close()
    return connack.reason_code


@asynccontextmanager
async def asking_broker(checks: IdentityChecks, **settings: Any) -> AsyncIterator[Running]:
    async with broker(settings, checks=checks) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_who_may_come_in(tmp_path: Path, version: int) -> None:
    wrong, unknown = ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED
    async with asking_broker(checks_of(tmp_path / "users")) as running:
        assert await answer(running, "ann", b"secret", version) == 0
        assert await answer(running, "bob", b"secret", version) == wrong
        assert await answer(running, "eve", b"secret", version) == wrong
        assert await answer(running, "ann", None, version) == wrong
        told: list[str] = []
        running.node.on_turned_away = lambda connection, reason, why: told.append(why)
        assert await answer(running, None, None, version) == unknown
        assert told == ["it says no user name, and has no certificate"]


@pytest.mark.slow
async def test_anonymous_clients_come_in_where_that_was_said(tmp_path: Path) -> None:
    async with asking_broker(checks_of(tmp_path / "users", anonymous=True)) as running:
        assert await answer(running, None, None) == 0
        assert await answer(running, "eve", b"secret") == ReasonCode.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.slow
async def test_a_right_password_is_hashed_once_until_the_users_change(tmp_path: Path) -> None:
    checks = checks_of(tmp_path / "users")
    async with asking_broker(checks) as running:
        counted = running.node.door.checks
        for _ in range(3):
            assert await answer(running, "ann", b"secret") == 0
        assert (counted[CheckOutcome.RIGHT], counted[CheckOutcome.REMEMBERED]) == (1, 2)
        (tmp_path / "users").write_text(USERS.with_user("ann", b"new").text())
        checks.use(checks.read())
        assert await answer(running, "ann", b"secret") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await answer(running, "ann", b"new") == 0
        (tmp_path / "users").write_text(USERS.with_user("bob", b"b").text())
        checks.use(checks.read())  # ann has the first entry again
        assert await answer(running, "ann", b"new") == ReasonCode.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.slow
async def test_who_hashes_leaves_the_processor_to_the_loop_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashers, "LATE_S", HANG_S)  # Else another one helps.

    def threads() -> set[int]:
        named = [one for one in threading.enumerate() if one.name.startswith("identities")]
        return {one.native_id or 0 for one in named}

    mine, of_others = os.getpriority(os.PRIO_PROCESS, 0), threads()
    async with asking_broker(checks_of(tmp_path / "users")) as running:
        assert await answer(running, "ann", b"secret") == 0
        (thread,) = threads() - of_others
        is_last = os.sched_getscheduler(thread) == os.SCHED_IDLE
        assert is_last or os.getpriority(os.PRIO_PROCESS, thread) == lowered()
        assert os.getpriority(os.PRIO_PROCESS, 0) == mine
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    await until(lambda: thread not in threads())


@pytest.mark.slow
async def test_who_guesses_is_not_checked_any_more_and_who_is_known_still_comes_in(
    tmp_path: Path,
) -> None:
    cheap = PasswordFile({"ann": "$6$aaaa$aaaa"})
    checks = checks_of(tmp_path / "users", cheap)
    async with asking_broker(checks) as running:
        checks._passwords.add("ann", b"secret", cheap.hashes["ann"])
        for _ in range(int(BURST) + 5):
            assert await answer(running, "eve", b"guess") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        counted = running.node.door.checks
        assert counted[CheckOutcome.WRONG] + counted[CheckOutcome.LIMITED] == BURST + 5
        assert counted[CheckOutcome.LIMITED] > 0
        assert await answer(running, "ann", b"secret") == 0
        checks.use(checks.read())
        assert await answer(running, "ann", b"secret") == 0


@pytest.mark.slow
async def test_a_limited_address_is_logged_once_with_what_happens_to_it(tmp_path: Path) -> None:
    checks = checks_of(tmp_path / "users", PasswordFile({"eve": "$6$aaaa$aaaa"}))
    with capture_logs() as lines:
        async with asking_broker(checks) as running:
            for _ in range(int(BURST) + 5):
                await answer(running, "eve", b"guess")
    (line,) = [line for line in lines if line["event"].startswith("address limited")]
    assert line == {
        "event": "address limited after wrong passwords",
        "log_level": "warning",
        "address": "127.0.0.1",
        "effect": "its passwords are rejected without a check, except one per 5 s; passwords that "
        "were right before still connect",
        "ends": "100 s after its last wrong password",
    }


@pytest.mark.slow
async def test_many_limited_addresses_are_a_few_lines_and_a_count(tmp_path: Path) -> None:
    checks = checks_of(tmp_path / "users")
    with capture_logs() as lines:
        async with asking_broker(checks):
            for number in range(10):
                for _ in range(int(BURST)):
                    checks._failed(f"192.0.2.{number}", 0.0)
    shown = [line for line in lines if line["event"] == "address limited after wrong passwords"]
    assert len(shown) == SHOWN_MAX
    (rest,) = [line for line in lines if line["event"].endswith("passwords, not shown")]
    assert rest["addresses"] == 10 - SHOWN_MAX


@pytest.mark.slow
async def test_who_guesses_from_many_addresses_of_one_network_is_one(tmp_path: Path) -> None:
    checks = checks_of(tmp_path / "users", PasswordFile({"ann": "$6$aaaa$aaaa"}))
    listener = {"address": "127.0.0.1:0", "proxies": "127.0.0.1"}
    doors = open_doorways(NetworkSettings.model_validate({"listeners": [listener]}))
    async with broker(checks=checks, listener=doors) as running:
        for number in range(int(BURST) + 5):
            client = (f"2001:db8::{number:x}", 40_000, 0, 0)
            wire = await open_wire(running)
            await wire.stream.send_all(header(client, client))
            await wire.send(Connect("c", MQTT_5, username="ann", password=b"guess"))
            await wire.expect(Connack)
            await wire.close()
        assert running.node.door.checks[CheckOutcome.LIMITED] > 0


class SlowFile:
    """Users whose hashes take until `open` is set."""

    hashes: ClassVar = {"ann": "a hash"}

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked = 0

    def verify(self, user: str, password: bytes) -> bool:
        self.asked += 1
        self.open.wait(TEST_S)
        return password == b"secret"


@pytest.mark.slow
async def test_while_a_hash_is_made_the_others_are_served_and_the_gate_counts_it(
    tmp_path: Path,
) -> None:
    checks = checks_of(tmp_path / "users", anonymous=True)
    slow = SlowFile()
    async with asking_broker(checks) as running:
        checks.use(Proofs(slow))  # type: ignore[arg-type]
        waiting = [await open_wire(running) for _ in range(4)]
        for number, wire in enumerate(waiting):
            await wire.send(Connect(f"w{number}", MQTT_5, username="ann", password=b"secret"))
        gate = running.node.guard.gate
        await until(lambda: gate.in_process == 4)
        other = await connect(running, "other")
        await other.ping()
        for wire in waiting[1:3]:  # Two give up: nothing is computed for them.
            await wire.close()
        await until(lambda: gate.in_process == 2)
        slow.open.set()
        for wire in (waiting[0], waiting[3]):
            assert (await wire.expect(Connack)).reason_code == 0
            await wire.close()
        await other.close()
        assert slow.asked == 2
        assert running.node.door.checks[CheckOutcome.LEFT] == 2


@pytest.mark.slow
async def test_beyond_the_bound_of_those_that_wait_the_answer_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_checks, "QUESTIONS_MAX", 1)
    checks = checks_of(tmp_path / "users")
    slow = SlowFile()
    async with asking_broker(checks) as running:
        checks.use(Proofs(slow))  # type: ignore[arg-type]
        first, second, third = [await open_wire(running) for _ in range(3)]
        await first.send(Connect("1", MQTT_5, username="ann", password=b"secret"))
        await until(lambda: slow.asked == 1)
        await second.send(Connect("2", MQTT_5, username="ann", password=b"secret"))
        await until(lambda: running.node.guard.gate.in_process == 2)
        await third.send(Connect("3", MQTT_5, username="ann", password=b"secret"))
        assert (await third.expect(Connack)).reason_code == ReasonCode.SERVER_BUSY
        slow.open.set()
        for wire in (first, second):
            assert (await wire.expect(Connack)).reason_code == 0
        for wire in (first, second, third):
            await wire.close()


class BrokenFile:
    """Users whose hashes cannot be made."""

    hashes: ClassVar = {"ann": "a hash"}

    def verify(self, user: str, password: bytes) -> bool:
        raise ArithmeticError


@pytest.mark.slow
async def test_a_check_that_fails_proves_nothing_and_the_others_go_on(tmp_path: Path) -> None:
    checks = checks_of(tmp_path / "users")
    async with asking_broker(checks) as running:
        checks.use(Proofs(BrokenFile()))  # type: ignore[arg-type]
        with capture_logs() as logs:
            assert await answer(running, "ann", b"secret") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert [each["exc_info"] for each in logs if "exc_info" in each]
        checks.use(checks.read())
        assert await answer(running, "ann", b"secret") == 0


@pytest.mark.slow
async def test_the_broker_drains_while_a_hash_is_made(tmp_path: Path) -> None:
    checks = checks_of(tmp_path / "users")
    slow = SlowFile()
    async with asking_broker(checks, node={"drain_s": 0.1}) as running:
        checks.use(Proofs(slow))  # type: ignore[arg-type]
        wire = await open_wire(running)
        await wire.send(Connect("c", MQTT_5, username="ann", password=b"secret"))
        await until(lambda: slow.asked == 1)
        running.stop.set()
        with trio.fail_after(TEST_S):
            connack = await wire.expect(Connack)
        assert connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
        slow.open.set()
        await wire.close()


# --- tokens ------------------------------------------------------------------------------------


SIGNS = ec.generate_private_key(ec.SECP256R1())
AFTER_S = 1_000_000.0


def token(key: Any = SIGNS, algorithm: str = "ES256", **claims: Any) -> bytes:
    """A token of ann's that holds for days."""
    expires_at_s = unix_clock()() + AFTER_S
    said = {"sub": "ann", "exp": expires_at_s, "aud": "mqtt", **claims}
    return jwt.encode(said, key, algorithm).encode()


def keys(folder: Path, key: Any = SIGNS) -> Path:
    path = folder / "keys.pem"
    kind = PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, kind))
    return path


def token_checks(folder: Path, **network: Any) -> IdentityChecks:
    said = NetworkSettings(token_keys=keys(folder), token_audience="mqtt", **network)
    return IdentityChecks(said, secrets.token_bytes(32), unix_clock(), anonymous=False)


@pytest.mark.slow
async def test_a_token_is_the_password_with_its_users_name_or_without_any(tmp_path: Path) -> None:
    wrong, nobody = ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED
    async with asking_broker(token_checks(tmp_path)) as running:
        right = token()
        assert await answer(running, "ann", right, MQTT_311) == 0
        assert await answer(running, "ann", right) == 0
        assert await answer(running, None, right) == 0
        assert await answer(running, "bob", right) == wrong
        assert await answer(running, "ann", None) == wrong
        assert await answer(running, None, None) == nobody
        assert await answer(running, "ann", token(aud="shop")) == wrong
        assert await answer(running, "ann", token(exp=1)) == wrong
        public = (tmp_path / "keys.pem").read_bytes()
        head = base64.urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=")
        body = right.split(b".")[1]
        mac = hmac.digest(public, head + b"." + body, "sha256")
        forged = b".".join([head, body, base64.urlsafe_b64encode(mac).rstrip(b"=")])
        assert await answer(running, "ann", forged) == wrong
        none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=") + b"." + body + b"."
        assert await answer(running, "ann", none) == wrong


@pytest.mark.slow
async def test_a_token_is_checked_once_until_the_keys_change_or_it_expires(tmp_path: Path) -> None:
    checks = token_checks(tmp_path)
    async with asking_broker(checks) as running:
        counted = running.node.door.checks
        right = token()
        for _ in range(3):
            assert await answer(running, "ann", right) == 0
        checks.use(checks.read())
        assert await answer(running, "ann", right) == 0
        assert (counted[CheckOutcome.RIGHT], counted[CheckOutcome.REMEMBERED]) == (1, 3)
        real = checks.clock
        checks.clock = lambda: real() + 2 * AFTER_S
        assert checks._known("ann", right, checks.clock(), is_token=True) is None
        checks.clock = real
        other = ec.generate_private_key(ec.SECP256R1())
        keys(tmp_path, other)
        checks.use(checks.read())
        assert await answer(running, "ann", right) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await answer(running, "ann", token(other)) == 0


class Behind(MemoryStore):
    """A store whose clock is behind the wall clock by years."""

    clock = staticmethod(lambda: unix_clock()() - 20 * 365 * 86_400)


@pytest.mark.slow
@pytest.mark.parametrize("store", [MemoryStore, Behind])
async def test_when_a_token_expires_by_the_wall_clock_its_client_is_told_and_closed(
    tmp_path: Path, store: type[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(store=store(), checks=token_checks(tmp_path)) as running:
        expires_at_s = unix_clock()() - 1
        password = token(exp=expires_at_s)
        assert await answer(running, "ann", password) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        monkeypatch.setattr(identity_checks, "time", lambda: expires_at_s - 0.01)
        wire = await open_wire(running)
        await wire.send(Connect("c", MQTT_5, username="ann", password=password))
        assert (await wire.expect(Connack)).reason_code == 0
        assert (await wire.expect(Disconnect)).reason_code == ReasonCode.MAXIMUM_CONNECT_TIME
        assert await wire.receive() is None
        await wire.close()


@pytest.mark.slow
async def test_who_guesses_tokens_is_not_checked_any_more(tmp_path: Path) -> None:
    async with asking_broker(token_checks(tmp_path)) as running:
        known = token()
        assert await answer(running, "ann", known) == 0
        for _ in range(int(BURST) + 5):
            assert await answer(running, "ann", token()[:-4]) != 0
        assert running.node.door.checks[CheckOutcome.LIMITED] > 0
        assert await answer(running, "ann", known) == 0


@pytest.mark.slow
async def test_a_listener_says_what_the_password_is_and_roles_come_with_the_token(
    tmp_path: Path,
) -> None:
    users = tmp_path / "users"
    users.write_text(USERS.text())
    network = {"token_keys": keys(tmp_path), "token_audience": "mqtt", "password_file": users}
    listeners = [
        {"address": "127.0.0.1:0"},
        {"address": "127.0.0.1:0", "password_is": "token"},
    ]
    said = NetworkSettings.model_validate({**network, "listeners": listeners})
    checks = IdentityChecks(said, secrets.token_bytes(32), unix_clock(), anonymous=False)
    rules = parse_toml(
        '[roles.guest]\nusers = ["*"]\n[roles.device]\npublish = ["up/%u"]\n', "rules"
    )
    start = broker(checks=checks, listener=open_doorways(said), hooks=Hooks(rules=rules))
    async with start as running:

        async def outcome(port: int, password: bytes, topic: str | None = None) -> int:
            wire = Wire(await trio.open_tcp_stream("127.0.0.1", port), MQTT_5)
            await wire.send(Connect("c", MQTT_5, username="ann", password=password))
            code = (await wire.expect(Connack)).reason_code
            if code == 0 and topic is not None:
                await wire.send(Publish(topic, b"", 1, packet_id=1))
                code = (await wire.expect(Puback)).reason_code
            await wire.close()
            return code

        by_password, by_token = [address.port or 0 for address in running.addresses]
        wrong = ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await outcome(by_password, b"secret") == 0
        assert await outcome(by_password, token()) == wrong
        assert await outcome(by_token, b"secret") == wrong
        refused, heard_by_nobody = (
            ReasonCode.NOT_AUTHORIZED,
            ReasonCode.NO_MATCHING_SUBSCRIBERS,
        )
        assert await outcome(by_token, token(roles=["device"]), "up/ann") == heard_by_nobody
        assert await outcome(by_token, token(roles=["device"]), "up/bob") == refused
        assert await outcome(by_token, token(roles=["unheard of"]), "up/ann") == refused
        assert await outcome(by_token, token(), "up/ann") == refused


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ({"token_keys": "keys"}, "token_audience go together"),
        ({"token_audience": "mqtt"}, "token_audience go together"),
        ({"password_is": "token"}, "needs network.token_keys"),
        ({"listeners": [{"address": "127.0.0.1:0", "password_is": "password"}]}, "password_file"),
    ],
)
def test_settings_of_tokens_that_do_not_fit_are_refused(
    network: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        NetworkSettings.model_validate(network)


def test_what_is_remembered_of_tokens_is_bounded_twice() -> None:
    few = RememberedTokens(b"k", entries_max=3)
    for number in range(5):
        few.add(b"%d" % number, Principal("ann", (), 10.0))
    assert len(few) == 3
    assert few.whose(b"4", None, 5.0) is not None
    assert few.whose(b"0", None, 5.0) is None
    assert few.whose(b"4", "bob", 5.0) is None
    assert few.whose(b"4", None, 10.0) is None
    assert len(few) == 2
    small = RememberedTokens(b"k", bytes_max=2_000)
    for number in range(50):
        small.add(b"%d" % number, Principal("ann", ("role" * 20,), 10.0))
    assert small.size_bytes <= 2_000
    assert len(small) < 5
    small.forget()
    assert (len(small), small.size_bytes) == (0, 0)

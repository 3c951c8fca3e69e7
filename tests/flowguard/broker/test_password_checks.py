"""Who a CONNECT is from: answered off the loop, remembered, limited per address, read anew."""

import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from flowguard.broker import password_checks
from flowguard.broker.password_checks import PasswordChecks
from flowguard.broker.server import Running, unix_clock
from flowguard.codec.packets import Connack, Connect
from flowguard.identity.failures import BURST
from flowguard.identity.passwords import PasswordFile
from flowguard.node.door import CheckOutcome
from flowguard.types import MQTT_5, MQTT_311, ReasonCode
from tests.support.real import TEST_S, broker, connect, open_wire, until

USERS = PasswordFile({}).with_user("ann", b"secret").with_user("bob", b"other")


def checks_of(
    path: Path, users: PasswordFile = USERS, *, anonymous: bool = False
) -> PasswordChecks:
    path.write_text(users.text())
    return PasswordChecks(path, secrets.token_bytes(32), unix_clock(), anonymous=anonymous)


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
async def asking_broker(checks: PasswordChecks, **settings: Any) -> AsyncIterator[Running]:
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
        assert await answer(running, None, None, version) == unknown


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


@pytest.mark.slow
async def test_who_guesses_is_not_checked_any_more_and_who_is_known_still_comes_in(
    tmp_path: Path,
) -> None:
    cheap = PasswordFile({"ann": "$6$aaaa$aaaa"})
    checks = checks_of(tmp_path / "users", cheap)
    async with asking_broker(checks) as running:
        checks._remembered.add("ann", b"secret")
        for _ in range(int(BURST) + 5):
            assert await answer(running, "eve", b"guess") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        counted = running.node.door.checks
        assert counted[CheckOutcome.WRONG] + counted[CheckOutcome.LIMITED] == BURST + 5
        assert counted[CheckOutcome.LIMITED] > 0
        assert await answer(running, "ann", b"secret") == 0


class SlowFile:
    """Users whose hashes take until `open` is set."""

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
        checks.use(slow)  # type: ignore[arg-type]
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
    monkeypatch.setattr(password_checks, "QUESTIONS_MAX", 1)
    checks = checks_of(tmp_path / "users")
    slow = SlowFile()
    async with asking_broker(checks) as running:
        checks.use(slow)  # type: ignore[arg-type]
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


@pytest.mark.slow
async def test_the_broker_drains_while_a_hash_is_made(tmp_path: Path) -> None:
    checks = checks_of(tmp_path / "users")
    slow = SlowFile()
    async with asking_broker(checks, node={"drain_s": 0.1}) as running:
        checks.use(slow)  # type: ignore[arg-type]
        wire = await open_wire(running)
        await wire.send(Connect("c", MQTT_5, username="ann", password=b"secret"))
        await until(lambda: slow.asked == 1)
        running.stop.set()
        with trio.fail_after(TEST_S):
            connack = await wire.expect(Connack)
        assert connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
        slow.open.set()
        await wire.close()

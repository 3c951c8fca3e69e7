"""SCRAM-SHA-256 by AUTH packets, through a broker's sockets."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowguard.broker.identity.identity_checks import IdentityChecks
from flowguard.broker.server import Running, unix_clock
from flowguard.codec.packets import Auth, Connack, Connect, Disconnect
from flowguard.identity.failures import BURST
from flowguard.identity.passwords import PasswordFile
from flowguard.identity.scram import METHOD, ScramVerifier
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import CheckOutcome
from flowguard.types import MQTT_5, Properties, ReasonCode
from tests.support.real import Wire, broker, open_wire
from tests.support.scram import ScramClient

pytestmark = pytest.mark.slow
VERIFIERS = {
    user: str(ScramVerifier.of(password, b"s" * 16, 4_096))
    for user, password in (("ann", "pencil"), ("bob", "pen"))
}
CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE


@asynccontextmanager
async def scram_broker(folder: Path, users: PasswordFile | None = None) -> AsyncIterator[Running]:
    (folder / "users").write_text((users or PasswordFile(VERIFIERS)).text())
    network = NetworkSettings(password_file=folder / "users")
    checks = IdentityChecks(network, secrets.token_bytes(32), unix_clock(), anonymous=False)
    async with broker(checks=checks) as running:
        yield running


def properties(data: bytes | None, method: str = METHOD) -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


async def begin(
    running: Running, client: ScramClient, user: str | None = None
) -> tuple[Wire, bytes]:
    """A connection that was asked, and what it was asked."""
    wire = await open_wire(running)
    await wire.send(Connect("c", MQTT_5, username=user, properties=properties(client.first())))
    auth = await wire.expect(Auth)
    assert (auth.reason_code, auth.properties.authentication_method) == (CONTINUE, METHOD)
    assert auth.properties.authentication_data is not None
    return wire, auth.properties.authentication_data


async def attempt(running: Running, name: str, password: str, user: str | None = None) -> int:
    """The reason code of CONNACK."""
    client = ScramClient(name, password)
    wire, asked = await begin(running, client, user)
    await wire.send(Auth(CONTINUE, properties(client.final(asked))))
    connack = await wire.expect(Connack)
    if connack.reason_code == 0:
        assert client.check(connack.properties.authentication_data)
    await wire.close()
    return connack.reason_code


@pytest.mark.spec("MQTT-4.12.0-2", "MQTT-4.12.0-3", "MQTT-4.12.0-4", "MQTT-4.12.0-5")
async def test_who_may_come_in(tmp_path: Path) -> None:
    refused = ReasonCode.NOT_AUTHORIZED
    async with scram_broker(tmp_path) as running:
        assert await attempt(running, "ann", "pencil") == 0
        assert await attempt(running, "ann", "pencil", "ann") == 0
        assert await attempt(running, "ann", "pen") == refused
        assert await attempt(running, "eve", "pencil") == refused
        assert await attempt(running, "ann", "pencil", "bob") == refused
        counted = running.node.door.checks
        assert (counted[CheckOutcome.RIGHT], counted[CheckOutcome.WRONG]) == (2, 3)


async def test_a_restart_does_not_tell_which_users_there_are(tmp_path: Path) -> None:
    said: list[list[bytes]] = []
    for _ in range(2):
        async with scram_broker(tmp_path) as running:
            salts = []
            for name in ("ann", "eve"):
                wire, asked = await begin(running, ScramClient(name, "guess"))
                salts.append(asked.split(b",", 1)[1])
                await wire.close()
            said.append(salts)
    assert said[0] == said[1]


async def test_a_user_with_another_kind_of_hash_says_the_password_and_both_kinds_may(
    tmp_path: Path,
) -> None:
    users = PasswordFile(VERIFIERS).with_user("old", b"secret")
    async with scram_broker(tmp_path, users) as running:
        assert await attempt(running, "old", "secret") == ReasonCode.NOT_AUTHORIZED
        for user, password in (("old", b"secret"), ("ann", b"pencil")):
            wire = await open_wire(running)
            await wire.send(Connect("c", MQTT_5, username=user, password=password))
            assert (await wire.expect(Connack)).reason_code == 0
            await wire.close()


@pytest.mark.spec("MQTT-4.12.0-1")
@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "scram-sha-256", "SCRAM-SHA-256-PLUS", ""])
async def test_another_method_is_refused(tmp_path: Path, method: str) -> None:
    async with scram_broker(tmp_path) as running:
        wire = await open_wire(running)
        await wire.send(Connect("c", MQTT_5, properties=properties(b"n,,n=ann,r=x", method)))
        code = (await wire.expect(Connack)).reason_code
        assert code == ReasonCode.BAD_AUTHENTICATION_METHOD
        assert await wire.receive() is None
        await wire.close()


async def test_where_nobody_has_a_verifier_there_is_no_such_method(tmp_path: Path) -> None:
    async with scram_broker(tmp_path, PasswordFile({}).with_user("ann", b"pencil")) as running:
        wire = await open_wire(running)
        await wire.send(Connect("c", MQTT_5, properties=properties(b"n,,n=ann,r=x")))
        code = (await wire.expect(Connack)).reason_code
        assert code == ReasonCode.BAD_AUTHENTICATION_METHOD
        await wire.close()


async def test_a_password_beside_the_method_is_asked_for_too(tmp_path: Path) -> None:
    async with scram_broker(tmp_path) as running:
        client = ScramClient("ann", "pencil")
        wire = await open_wire(running)
        said = properties(client.first())
        await wire.send(Connect("c", MQTT_5, username="ann", password=b"no", properties=said))
        code = (await wire.expect(Connack)).reason_code
        assert code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        await wire.close()


async def connected(running: Running) -> Wire:
    client = ScramClient("ann", "pencil")
    wire, asked = await begin(running, client)
    await wire.send(Auth(CONTINUE, properties(client.final(asked))))
    assert (await wire.expect(Connack)).reason_code == 0
    return wire


@pytest.mark.spec("MQTT-4.12.1-1", "MQTT-4.12.1-2")
@pytest.mark.parametrize(
    ("user", "password", "is_right"),
    [("ann", "pencil", True), ("ann", "pen", False), ("bob", "pen", False)],
)
async def test_again_on_an_open_connection_it_is_the_same_user_or_the_end(
    tmp_path: Path, user: str, password: str, is_right: bool
) -> None:
    async with scram_broker(tmp_path) as running:
        wire = await connected(running)
        client = ScramClient(user, password)
        await wire.send(Auth(AGAIN, properties(client.first())))
        asked = (await wire.expect(Auth)).properties.authentication_data
        assert asked is not None
        await wire.send(Auth(CONTINUE, properties(client.final(asked))))
        if is_right:
            auth = await wire.expect(Auth)
            assert auth.reason_code == ReasonCode.SUCCESS
            assert client.check(auth.properties.authentication_data)
            await wire.ping()
        else:
            code = (await wire.expect(Disconnect)).reason_code
            assert code == ReasonCode.NOT_AUTHORIZED
            assert await wire.receive() is None
        await wire.close()


async def test_who_guesses_is_not_judged_any_more(tmp_path: Path) -> None:
    async with scram_broker(tmp_path) as running:
        counted = running.node.door.checks
        while not counted[CheckOutcome.LIMITED]:
            assert counted[CheckOutcome.WRONG] < 2 * BURST
            wire = await open_wire(running)
            await wire.send(Connect("c", MQTT_5, properties=properties(b"nonsense")))
            assert (await wire.expect(Connack)).reason_code == ReasonCode.NOT_AUTHORIZED
            await wire.close()

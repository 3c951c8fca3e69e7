"""The warning at the start names each listener that rejects no client, and no other."""

import socket
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from benchmarks.brokers import free_ports
from flowguard.app.reloadable_files import checks_of
from flowguard.broker.sockets.listening import open_doorways
from flowguard.network_settings import ListenerSettings, NetworkSettings
from flowguard.node.connect.authentication import Hooks
from flowguard.types import ReasonCode
from tests.support.authentication import SameVerdict
from tests.support.authority import Authority
from tests.support.real import broker

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    authority = Authority(folder)
    pair = authority.issue(HOST)
    users, rules = folder / "users", folder / "rules.toml"
    users.write_text("")
    rules.write_text('[roles.guest]\nanonymous = true\npublish = ["t"]\n')
    paths = {"cert": pair.cert, "key": pair.key, "ca": authority.cert, "unix": folder / "socket"}
    return {name: str(path) for name, path in (paths | {"users": users, "rules": rules}).items()}


async def warned_of(hooks: Hooks | None = None, **network: Any) -> list[str]:
    """Return the schemes of the listeners that a started broker warns of."""
    settings = NetworkSettings.model_validate(network)
    with capture_logs() as lines:
        async with broker(
            listener=open_doorways(settings), hooks=hooks, checks=checks_of(settings)
        ):
            pass
    warnings = [line for line in lines if line["event"].startswith("authentication is disabled")]
    assert [line["log_level"] for line in warnings] == ["warning"] * len(warnings)
    addresses = [address for line in warnings for address in line["listens_on"].split(", ")]
    return [address.partition(":")[0] for address in addresses]


def tls(files: Mapping[str, str], **listener: Any) -> dict[str, Any]:
    return {"address": f"mqtts://{HOST}:0", "cert": files["cert"], "key": files["key"], **listener}


async def test_a_listener_without_authentication_is_warned_of(files: Mapping[str, str]) -> None:
    assert await warned_of() == ["mqtt"]
    assert await warned_of(listeners=[tls(files)]) == ["mqtts"]
    assert await warned_of(listeners=[f"unix:{files['unix']}"]) == ["unix"]


async def test_a_listener_that_requires_client_certificates_is_not_warned_of(
    files: Mapping[str, str],
) -> None:
    listener = tls(files, client_ca=files["ca"])
    assert await warned_of(listeners=[listener]) == []
    assert await warned_of(listeners=[listener], acl_file=files["rules"]) == []


async def test_only_listeners_without_client_certificates_are_warned_of(
    files: Mapping[str, str],
) -> None:
    listeners = [tls(files, client_ca=files["ca"]), f"{HOST}:0"]
    assert await warned_of(listeners=listeners) == ["mqtt"]


async def test_rules_do_not_count_as_authentication(files: Mapping[str, str]) -> None:
    assert await warned_of(acl_file=files["rules"]) == ["mqtt"]


async def test_a_broker_that_authenticates_warns_of_no_listener(files: Mapping[str, str]) -> None:
    assert await warned_of(password_file=files["users"]) == []
    assert await warned_of(allow_anonymous=False) == []
    hooks = Hooks(authenticator=SameVerdict(ReasonCode.SUCCESS))
    assert await warned_of(hooks) == []


def test_listener_that_is_shut_rejects_connections_until_it_opens_again() -> None:
    (port,) = free_ports(1)
    address = (HOST, port)
    listener = ListenerSettings(address=f"{HOST}:{port}")
    (doorway,) = open_doorways(NetworkSettings(listeners=(listener,)))
    socket.create_connection(address).close()
    doorway.shut()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    doorway.open()
    socket.create_connection(address).close()
    doorway.close()

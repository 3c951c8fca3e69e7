"""Certificates, rules and users are reloaded while a crowd publishes by TLS: no client is lost.

RELOAD_CLIENTS=1000 makes it a crowd of 1,000.
"""

import os
import shutil
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio

from flowguard.cli.remote.ask import ask
from flowguard.codec.packets import Connack, Connect, Puback
from flowguard.types import MQTT_5, Publish
from tests.flowguard.cli.http_port import http_address
from tests.interop.broker import Broker, running_broker
from tests.support.authority import Authority, Pair
from tests.support.patience import HANG_S
from tests.support.real import Wire, until

CLIENTS = int(os.environ.get("RELOAD_CLIENTS", "60"))
HANDSHAKES = 20
"""At once, on this end."""
ROUNDS = 3
HOST = "127.0.0.1"


class Crowd:
    """Clients that publish, one message after the other, until they are stopped."""

    def __init__(self, broker: Broker, context: ssl.SSLContext) -> None:
        self._broker = broker
        self._context = context
        self._limiter = trio.CapacityLimiter(HANDSHAKES)
        self.acknowledged = [0] * CLIENTS
        self.left = 0
        """Number of clients that ended as planned, still connected."""
        self.stops = False

    async def live(self, number: int) -> None:
        async with self._limiter:
            plain = await trio.open_tcp_stream(HOST, self._broker.port)
            stream = trio.SSLStream(plain, self._context, server_hostname=HOST)
            wire = Wire(stream, MQTT_5)  # type: ignore[arg-type]
            await wire.send(Connect(f"c{number}", MQTT_5, username=f"u{number}"))
            assert (await wire.expect(Connack)).reason_code == 0
        while not self.stops:
            await wire.send(Publish(f"load/{number}", b"x", 1, packet_id=1))
            await wire.expect(Puback)
            self.acknowledged[number] += 1
            await trio.sleep(0.05)  # So that they need not a core for themselves.
        await wire.ping()
        self.left += 1
        await wire.close()

    async def goes_on(self) -> None:
        """Until each of them was answered twice more: what it had sent before has been, too."""
        before = list(self.acknowledged)
        await until(
            lambda: all(
                now >= then + 2 for now, then in zip(self.acknowledged, before, strict=True)
            )
        )


def served(authority: Authority, port: int) -> int:
    """Return the serial number of the certificate of a new connection."""
    context = ssl.create_default_context(cafile=str(authority.cert))
    with (
        socket.create_connection((HOST, port), timeout=HANG_S) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as tls,
    ):
        found: Any = tls.getpeercert()
    return int(found["serialNumber"], 16)


def renewed(authority: Authority, pair: Pair) -> int:
    new = authority.issue(HOST)
    shutil.copy(new.cert, pair.cert)
    shutil.copy(new.key, pair.key)
    return new.serial


def rules(version: int) -> str:
    return f'[roles.r{version}]\nanonymous = true\npublish = ["load/#"]\n'


def refusals(broker: Broker) -> list[str]:
    """Lines of its log: a file was wrong."""
    return [line for line in broker.log.read_text().splitlines() if "reload failed" in line]


@pytest.mark.slow
async def test_a_reload_under_load_loses_nobody_and_a_wrong_file_changes_nothing(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue(HOST)
    acl, config = tmp_path / "acl.toml", tmp_path / "broker.toml"
    acl.write_text(rules(0))
    config.write_text(
        f'[network]\nlisteners = ["mqtts://{HOST}:0"]\ncert = "{pair.cert}"\nkey = "{pair.key}"\n'
        f'acl_file = "{acl}"\n'
    )
    words = ("--config", str(config), "--store", "memory")
    with running_broker(tmp_path / "b", *words, listen=False) as broker:
        url = f"http://{http_address(broker)}"
        serial = pair.serial
        crowd = Crowd(broker, authority.client_context())
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(crowd.live, number)
            await crowd.goes_on()
            for version in range(1, ROUNDS + 1):
                serial = renewed(authority, pair)
                acl.write_text(rules(version))
                code, _ = await trio.to_thread.run_sync(ask, url, "/reload", {})
                assert code == 200
                await crowd.goes_on()
                good = pair.cert.read_bytes()
                for wrong in (pair.cert, acl):
                    kept = wrong.read_bytes()
                    wrong.write_text("[nonsense")
                    code, said = await trio.to_thread.run_sync(ask, url, "/reload", {})
                    assert code == 409
                    assert isinstance(said, dict)
                    assert str(wrong) in str(said["error"])
                    wrong.write_bytes(kept)
                    assert await trio.to_thread.run_sync(served, authority, broker.port) == serial
                assert pair.cert.read_bytes() == good
                await crowd.goes_on()
            acl.write_text("[nonsense")
            broker.process.send_signal(signal.SIGHUP)
            await until(lambda: len(refusals(broker)) == 2 * ROUNDS + 1)
            await crowd.goes_on()
            crowd.stops = True
        assert crowd.left == CLIENTS
        line = refusals(broker)[-1]
        assert str(acl) in line
        assert broker.terminate() == 0

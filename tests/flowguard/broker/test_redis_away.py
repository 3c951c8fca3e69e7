"""Redis does not answer: commits wait, other work goes on, and commits resume with Redis."""

from collections.abc import Iterator

import pytest

from flowguard.codec.packets import Connack, Puback
from flowguard.flow.load.signals import StoreState
from flowguard.ops.condition import condition_of, not_ready
from flowguard.ops.status import status_of
from flowguard.types import Publish, ReasonCode
from tests.flowguard.broker.clock import Clock
from tests.flowguard.stores.redis.benches import opened_at_last
from tests.support.real import broker, connect, connect_packet, offline_subscriber, open_wire, until
from tests.support.redis_server import EVERY_SECOND, RedisServer, redis_server

pytestmark = pytest.mark.slow
PATIENCE = {"flow": {"connect_patience_s": 600.0}, "store": {"kind": "redis"}}
LATER_S = 1_000.0
"""Patience is at its end, and no session."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), EVERY_SECOND) as server:
        yield server


def take_away(server: RedisServer, how: str) -> None:
    match how:
        case "paused":
            server.pause()
        case "down":
            server.kill()
        case "read-only":
            with server.client() as client:
                client.execute_command("REPLICAOF", "127.0.0.1", "1")


def bring_back(server: RedisServer, how: str) -> None:
    match how:
        case "paused":
            server.resume()
        case "down":
            server.start()
        case "read-only":
            with server.client() as client:
                client.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("how", ["paused", "down", "read-only"])
async def test_who_needs_it_waits_and_nobody_else(
    server: RedisServer, clock: Clock, how: str
) -> None:
    # So short that it is soon known how Redis is.
    store = opened_at_last(server, timeout_s=0.3)
    async with broker(PATIENCE, store=store, calm=True) as running:
        node = running.node
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        reader = await connect(running, "r")
        await reader.subscribe("u", 0)
        take_away(server, how)
        try:
            await publisher.send(Publish("t", b"waits", 1, packet_id=1))
            await until(lambda: node.state.is_store_away)
            await until(lambda: node.store_load.state is StoreState.STOPPED)
            await until(lambda: bool(node.outage.lasted_s(running.clock())))
            said = "Redis has accepted no writes for "
            condition, sentence = condition_of(status_of(node, running.clock()))
            assert (condition, sentence.startswith(f"stalled: {said}")) == ("stalled", True)
            assert not_ready(node, running.clock()).startswith("Redis has accepted no writes")
            assert server.unix_url in node.outage.why
            # Clean sessions come, subscribe, and get what needs no store.
            clean = await connect(running, "clean")
            await clean.subscribe("u", 0)
            await clean.publish("u", b"goes on")
            for wire in (clean, reader):
                assert (await wire.expect(Publish)).payload == b"goes on"
            # A CONNECT that needs the store waits, and is rejected with a retry-after time.
            durable = await open_wire(running)
            await durable.send(connect_packet("durable", durable=True))
            await until(lambda: "durable" in node.handshakes._claims)
            clock.jump(LATER_S)
            answer = await durable.expect(Connack)
            assert answer.reason_code == ReasonCode.SERVER_UNAVAILABLE
        finally:
            bring_back(server, how)
        assert (await publisher.expect(Puback)).reason_code == 0
        await until(lambda: node.store_load.state is StoreState.FLOWING)
        await until(lambda: not not_ready(node, running.clock()))
        # Until the claim of the rejected client is stored, others that need the store get 0x88.
        await until(lambda: not node.handshakes._freed)
        back = await connect(running, "offline", durable=True)
        assert (await back.expect(Publish)).payload == b"waits"
        again = await connect(running, "durable", durable=True)
        for wire in (publisher, reader, clean, back, again, durable):
            await wire.close()

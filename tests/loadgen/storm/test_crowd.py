from io import StringIO
from typing import Any

import pytest
import trio
from rich.console import Console

from flowguard.codec import Connack, Connect, PacketDecoder, encode
from flowguard.types import MQTT_5, MQTT_311
from loadgen.command.storm_view import show_result
from loadgen.storm import Crowd, CrowdPlan, RetryMode, RetryPolicy, Target
from loadgen.storm.loop import Fate
from tests.loadgen.storm.servers import LINGER_ZERO, broker, server, target, until
from tests.support.real import TEST_S

ONCE = RetryPolicy(RetryMode.NONE)
SOON = RetryPolicy(RetryMode.BACKOFF, first_s=0.01, max_s=0.1)


def plan_of(clients: int, retry: RetryPolicy, **more: Any) -> CrowdPlan:
    """A crowd that leaves at once, and waits as long as for a hang."""
    return CrowdPlan(
        clients, retry, **{"timeout_s": TEST_S, "seconds": TEST_S, "hold_s": 0.0, **more}
    )


async def run(where: Target, plan: CrowdPlan) -> Crowd:
    crowd = Crowd(where, plan, trio.current_time)
    with trio.fail_after(TEST_S):
        await crowd.run()
    return crowd


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_everybody_gets_in_where_there_is_room(version: int) -> None:
    async with broker() as running:
        crowd = await run(target(running.address, version), plan_of(200, SOON))
    tally = crowd.tally
    assert (tally.connected, tally.accepted, tally.attempts) == (200, 200, 200)
    assert tally.settled
    assert tally.to_connected.count == tally.answer.count == 200
    assert running.node.counters.connects_accepted == 200
    half, nearly, last = (tally.share_in_s(percent) for percent in (50, 99, 100))
    assert half is not None
    assert nearly is not None
    assert last is not None
    assert 0 < half <= nearly <= last * 1.02
    assert tally.to_connected.max_s <= last <= tally.seconds


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_who_is_refused_comes_back_until_it_is_in(version: int) -> None:
    limits = {"flow": {"connects_in_process_max": 1, "connect_buffer_max": 0}}
    async with broker(limits) as running:
        plan = plan_of(40, SOON, durable=True)
        crowd = await run(target(running.address, version), plan)
    tally = crowd.tally
    assert tally.connected == 40
    assert tally.busy > 0
    assert 0 < tally.came_back <= tally.busy
    assert tally.attempts == 40 + tally.busy
    assert tally.busy == running.node.counters.connects_refused
    assert tally.fates.total() == tally.timeouts == tally.lost == 0


async def test_without_retries_a_refusal_is_the_end() -> None:
    limits = {"flow": {"connects_in_process_max": 1, "connect_buffer_max": 0}}
    async with broker(limits) as running:
        crowd = await run(target(running.address), plan_of(40, ONCE))
    tally = crowd.tally
    assert tally.gave_up == tally.busy > 0
    assert tally.connected + tally.gave_up == tally.attempts == 40
    assert tally.share_in_s(100) is None


async def test_durable_sessions_are_gone_when_a_5_0_storm_is_over() -> None:
    async with broker() as running:
        await run(target(running.address), plan_of(50, SOON, durable=True))
        await until(lambda: not running.node.registry.sessions)


async def test_connections_that_the_broker_ends_are_lost() -> None:
    async with broker() as running:
        crowd = Crowd(target(running.address), plan_of(20, SOON, hold_s=TEST_S), trio.current_time)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.run)
            await until(lambda: crowd.tally.connected == 20)
            running.stop.set()
        # The storm has ended by itself: there is nothing left to hold.
    assert (crowd.tally.connected, crowd.tally.lost) == (0, 20)
    assert crowd.tally.ended == {0x8B: 20}


async def test_stop_ends_a_storm_in_order() -> None:
    async with broker() as running:
        crowd = Crowd(target(running.address), plan_of(20, SOON, hold_s=TEST_S), trio.current_time)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.run)
            await until(lambda: crowd.tally.connected == 20)
            crowd.stop()
        assert crowd.tally.connected == 20
        assert crowd.tally.lost == 0


async def test_a_crowd_that_never_gets_in_stops_trying() -> None:
    async with server(lambda stream: stream.aclose()) as address:
        for seconds in (0.2, 2.0, 20.0):  # A busy machine may try once in the first of them.
            crowd = await run(target(address), plan_of(5, SOON, seconds=seconds))
            if crowd.tally.attempts > 5:
                break
    assert crowd.tally.trying == 5
    assert crowd.tally.attempts > 5


# --- brokers that misbehave ----------------------------------------------------------------------


async def test_silence_is_a_timeout() -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with server(silent) as address:
        crowd = await run(target(address), plan_of(5, ONCE, timeout_s=0.1))
    assert crowd.tally.timeouts == crowd.tally.gave_up == 5


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_who_returns_to_a_durable_session_does_not_start_clean(version: int) -> None:
    clean: list[bool] = []

    async def accept(stream: trio.SocketStream) -> None:
        decoder = PacketDecoder(1_000)
        decoder.feed(await stream.receive_some(1_000))
        packet = decoder.next()
        assert isinstance(packet, Connect)
        clean.append(packet.clean_start)
        await stream.send_all(encode(Connack(False, 0), version))

    plan = plan_of(1, SOON, hold_s=TEST_S, durable=True, returns=True)
    async with server(accept) as address, trio.open_nursery() as nursery:
        crowd = Crowd(target(address, version), plan, trio.current_time)
        nursery.start_soon(crowd.run)
        await until(lambda: len(clean) > 2)
        crowd.stop()
    assert clean[:3] == [version == MQTT_5, False, False]


async def test_no_client_asks_for_no_keep_alive() -> None:
    asked: list[int] = []

    async def refuse_zero(stream: trio.SocketStream) -> None:
        decoder = PacketDecoder(1_000)
        decoder.feed(await stream.receive_some(1_000))
        packet = decoder.next()
        assert isinstance(packet, Connect)
        asked.append(packet.keep_alive_s)

    async with server(refuse_zero) as address:
        await run(target(address), plan_of(1, ONCE))
    assert asked
    assert min(asked) > 0


async def test_a_reset_is_a_reset() -> None:
    async def resetting(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, LINGER_ZERO)
        await stream.aclose()

    async with server(resetting) as address:
        crowd = await run(target(address), plan_of(5, ONCE))
    assert crowd.tally.fates[Fate.RESET] == crowd.tally.gave_up == 5


async def test_a_connection_that_closes_silently_is_no_reset() -> None:
    async def mute(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async with server(mute) as address:
        crowd = await run(target(address), plan_of(5, ONCE))
    assert crowd.tally.fates[Fate.CLOSED] == crowd.tally.gave_up == 5


async def test_bytes_that_are_no_mqtt_are_told_apart() -> None:
    async def web(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with server(web) as address:
        crowd = await run(target(address), plan_of(5, ONCE))
    assert crowd.tally.fates[Fate.BROKEN] == crowd.tally.gave_up == 5


async def test_other_refusals_are_counted_by_code() -> None:
    async def refusing(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(encode(Connack(reason_code=0x87), MQTT_5))

    async with server(refusing) as address:
        crowd = await run(target(address), plan_of(5, ONCE))
    assert crowd.tally.refused == {0x87: 5}
    assert crowd.tally.busy == 0


async def test_nobody_there_is_unreachable() -> None:
    async with server(lambda stream: stream.aclose()) as address:
        pass
    crowd = await run(target(address), plan_of(5, ONCE))
    assert crowd.tally.fates[Fate.UNREACHABLE] == crowd.tally.gave_up == 5


async def test_who_was_never_answered_has_no_times() -> None:
    shown = StringIO()
    async with server(trio.SocketStream.aclose) as address:
        crowd = await run(target(address), plan_of(1, ONCE))
    show_result(crowd, "storm", Console(file=shown, width=120))
    assert "time to connected" in shown.getvalue()
    assert "max —" in shown.getvalue()
    assert " ms" not in shown.getvalue()


async def test_a_result_fits_into_80_columns() -> None:
    shown = StringIO()
    crowd = Crowd(target(("127.0.0.1", 1)), plan_of(1, ONCE), trio.current_time)
    for times in (crowd.tally.after_start, crowd.tally.to_connected, crowd.tally.answer):
        times.record(0.563)
    show_result(crowd, "storm", Console(file=shown, width=80))
    for share in ("50 % in after 0.563 s", "99 % in after 0.563 s", "100 % in after 0.563 s"):
        assert share in shown.getvalue()

"""The kit at servers that are broken: none of them has survived anything."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from socket import SO_LINGER, SOL_SOCKET

import pytest
import trio

from flowguard.codec import Connack, encode
from flowguard.types import MQTT_5
from loadgen.kit import EXPERIMENTS, Finding, Kit, KitPlan, Survival, connecting, knock, running
from tests.loadgen.storm.servers import LINGER_ZERO, broker, server, target
from tests.support.real import TEST_S


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    be_patient(monkeypatch, 2.0)
    return iter(())


def be_patient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(knock, "PATIENCE_S", seconds)
    monkeypatch.setattr(knock, "PLAN", replace(knock.PLAN, late_s=seconds))
    monkeypatch.setattr(running, "RECOVERY_S", seconds)


async def never_answers(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def resets(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    stream.setsockopt(SOL_SOCKET, SO_LINGER, LINGER_ZERO)


async def says_yes_and_no_more(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(encode(Connack(False, 0), MQTT_5))
    await trio.sleep_forever()


async def babbles(stream: trio.SocketStream) -> None:
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def plan_for(address: tuple[str, int], *chosen: str, clients: int = 20) -> KitPlan:
    keys = chosen or tuple(experiment.key for experiment in EXPERIMENTS)
    return KitPlan(target(address), trio.current_time, clients, 0.5, 2.0, "true", keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handle", "why"),
    [
        (never_answers, "timed out"),
        (resets, "reset"),
        (says_yes_and_no_more, "a message does not come back"),
        (babbles, "broken answer"),
    ],
)
async def test_who_serves_nobody_has_failed_everything(
    handle: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may see no answer in the first of these times.
    for patience_s in (0.1,) if handle is never_answers else (2.0, 20.0, 200.0):
        be_patient(monkeypatch, patience_s)
        async with server(handle) as address:  # type: ignore[arg-type]
            kit = Kit(plan_for(address), "broken")
            with trio.fail_after(TEST_S):
                await kit.run()
        verdicts = [finding.verdict for finding in kit.findings]
        assert verdicts == [Survival.FAILED] * len(EXPERIMENTS)
        if all(why in finding.sentence for finding in kit.findings):
            break
    for finding in kit.findings:
        assert why in finding.sentence
        assert finding.figure.value is None
    assert kit.report().version == ""


async def killed_within(chosen: str, after_s: float) -> list[Finding]:
    """The findings where the broker is gone so long after that experiment has begun, which would
    last for long: but who reads nothing does not notice that it is gone."""
    seconds = 5.0 if chosen == "slow-subscriber" else TEST_S
    async with broker() as serving:
        plan = replace(plan_for(serving.address, chosen, "wide-fan-out"), seconds=seconds)
        kit = Kit(plan, "mortal")

        async def kill() -> None:
            while kit.current is None:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await trio.sleep(after_s)
            serving.stop.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            with trio.fail_after(TEST_S):
                await kit.run()
    return kit.findings


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", ["connect-storm", "retry-storm", "slow-subscriber", "flood-with-pings"]
)
async def test_who_dies_in_an_experiment_has_failed_it_and_the_next(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HOLD_S", TEST_S)
    first, second = await killed_within(chosen, 0.3)
    assert (first.verdict, second.verdict) == (Survival.FAILED, Survival.FAILED)
    assert "does not serve a single client" in first.sentence
    assert second.sentence.startswith("Not run")


@pytest.mark.slow
async def test_who_serves_one_and_no_crowd_has_failed() -> None:
    """It serves three connections at once, as a broker does, and resets all others."""
    async with broker() as serving, trio.open_nursery() as nursery:
        open_count = 0

        async def relay(stream: trio.SocketStream) -> None:
            nonlocal open_count
            if open_count >= 3:
                await resets(stream)
                return
            open_count += 1
            try:
                upstream = await trio.open_tcp_stream(*serving.address)
                async with upstream, trio.open_nursery() as both:
                    both.start_soon(_copy, stream, upstream, both)
                    both.start_soon(_copy, upstream, stream, both)
            finally:
                open_count -= 1

        listeners = await nursery.start(partial(trio.serve_tcp, relay, 0, host="127.0.0.1"))
        address = listeners[0].socket.getsockname()[:2]
        kit = Kit(plan_for(address, "connect-storm", "wide-fan-out"), "small")
        with trio.fail_after(TEST_S):
            await kit.run()
        nursery.cancel_scope.cancel()
    storm, fan = kit.findings
    assert storm.verdict is fan.verdict is Survival.FAILED
    assert "of 20 clients in" in storm.sentence
    assert "reset" in storm.sentence
    assert fan.sentence.startswith("Nothing was published")


async def _copy(source: trio.SocketStream, sink: trio.SocketStream, both: trio.Nursery) -> None:
    try:
        async for data in source:
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    both.cancel_scope.cancel()

"""The kit at our own broker, sound: it survives, by the books and not by the clock."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from flowguard.types import MQTT_5, MQTT_311
from loadgen.kit import Finding, Kit, KitPlan, Survival, connecting, knock, messaging, running
from loadgen.storm.plan import LONG_KEEP_ALIVE_S
from tests.loadgen.storm.servers import broker, end_by_the_books, target
from tests.support.real import TEST_S

CLIENTS = 20
SECONDS = 0.6
LONG_S = TEST_S
BY_THE_CLOCK = ("SILENCE_S", "PING_GOOD_S", "PING_BAD_S", "QUIET_GOOD_S", "QUIET_BAD_S")


@pytest.fixture(autouse=True)
def starved_machines_are_slow_not_red(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*BY_THE_CLOCK, "FAN_GOOD_S", "FAN_BAD_S", "CATCH_UP_S", "LATE_S", "TIMEOUT_S"):
        monkeypatch.setattr(messaging, name, LONG_S)
    monkeypatch.setattr(messaging, "KEEP_ALIVE_S", LONG_KEEP_ALIVE_S)
    monkeypatch.setattr(messaging, "NOISE_LIMIT_S", LONG_S)  # It ends with the noise.
    for name in ("IMPATIENT_TIMEOUT_S", "TIMEOUT_S", "COMMAND_S"):
        monkeypatch.setattr(connecting, name, LONG_S)
    monkeypatch.setattr(knock, "PATIENCE_S", LONG_S)
    monkeypatch.setattr(knock, "PLAN", replace(knock.PLAN, late_s=LONG_S))
    monkeypatch.setattr(running, "RECOVERY_S", LONG_S)
    graded = messaging.graded
    monkeypatch.setattr(messaging, "graded", lambda value, good, bad: graded(value, good, LONG_S))
    return iter(())


async def run(only: str, version: int = MQTT_5, seconds: float = SECONDS) -> Finding:
    with pytest.MonkeyPatch.context() as patch:
        async with broker() as serving:
            end_by_the_books(patch, serving)
            where = target(serving.address, version)
            plan = KitPlan(where, trio.current_time, CLIENTS, seconds, LONG_S, chosen=(only,))
            kit = Kit(plan, "ours")
            with trio.fail_after(TEST_S):
                await kit.run()
    (finding,) = kit.findings
    assert kit.report().version == ("5.0" if version == MQTT_5 else "3.1.1")
    return finding


@pytest.mark.slow
@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
@pytest.mark.parametrize(("only", "factor"), [("connect-storm", 1), ("retry-storm", 2)])
async def test_everybody_gets_in(only: str, factor: int, version: int) -> None:
    finding = await run(only, version)
    assert finding.values["connected"] == factor * CLIENTS
    assert finding.verdict is Survival.SURVIVED
    assert f"{factor * CLIENTS} of {factor * CLIENTS} clients in" in finding.sentence
    assert finding.figure.value is not None
    assert finding.recovered_s is not None


@pytest.mark.slow
async def test_a_slow_subscriber_is_alone_with_its_slowness() -> None:
    finding = await run("slow-subscriber")
    assert finding.verdict is Survival.SURVIVED
    assert finding.values["acknowledged"] == finding.values["sent"]
    assert finding.values["acknowledged_lost"] == finding.values["slow_lost"]


@pytest.mark.slow
async def test_every_ping_of_a_flood_is_answered() -> None:
    finding = await run("flood-with-pings")
    assert finding.verdict is Survival.SURVIVED
    assert finding.values["pings_open"] == 0
    assert finding.values["pings"] == 10  # One of each flooder, at the beginning.


@pytest.mark.slow
async def test_quiet_clients_are_measured_beside_a_flood() -> None:
    for seconds in (SECONDS, 10 * SECONDS, 100 * SECONDS):  # A busy machine makes little noise.
        finding = await run("noisy-neighbour", seconds=seconds)
        assert finding.verdict is Survival.SURVIVED
        if finding.values.get("noise_per_s"):
            break
    noise_per_s, received = finding.values["noise_per_s"], finding.values["received"]
    assert isinstance(noise_per_s, float)
    assert noise_per_s > 0
    assert received == finding.values["expected"]


@pytest.mark.slow
async def test_a_wide_fan_reaches_everybody() -> None:
    finding = await run("wide-fan-out")
    assert finding.verdict is Survival.SURVIVED
    assert finding.values["received"] == finding.values["expected"]


@pytest.mark.slow
async def test_everybody_is_back_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command asks this test to do it, and waits until it is done."""
    monkeypatch.setattr(connecting, "NOTICE_S", LONG_S)
    flag = tmp_path / "flag"
    command = f"touch '{flag}'; while [ -e '{flag}' ]; do sleep 0.05; done"
    async with trio.open_nursery() as nursery:
        async with broker() as first:
            plan = KitPlan(
                target(first.address),
                trio.current_time,
                CLIENTS,
                connect_s=LONG_S,
                restart_command=command,
                chosen=("restart",),
            )
            kit = Kit(plan, "ours")
            nursery.start_soon(kit.run)
            with trio.fail_after(TEST_S):
                while not flag.exists():  # noqa: ASYNC110
                    await trio.sleep(0.01)
        async with broker(port=first.address[1]):
            flag.unlink()
            with trio.fail_after(TEST_S):
                while not kit.findings:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    (finding,) = kit.findings
    assert finding.verdict is Survival.SURVIVED, finding.sentence
    assert finding.values["lost"] == CLIENTS
    assert f"{CLIENTS} of {CLIENTS} clients back" in finding.sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "why"), [("true", "something else"), ("echo no way; exit 3", "status 3: no way")]
)
async def test_a_restart_that_was_none_says_nothing_of_the_broker(command: str, why: str) -> None:
    async with broker() as serving:
        plan = KitPlan(
            target(serving.address), trio.current_time, 3, 0.1, LONG_S, command, ("restart",)
        )
        kit = Kit(plan, "ours")
        with trio.fail_after(TEST_S):
            await kit.run()
    (finding,) = kit.findings
    assert finding.verdict is Survival.UNCLEAR
    assert why in finding.sentence

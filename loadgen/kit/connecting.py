"""Experiments with crowds that connect: connect storm, retry storm, restart."""

from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO, Final

import trio

from flowguard.lines import count
from flowguard.types import ReasonCode
from loadgen.kit.knock import CREDENTIALS
from loadgen.kit.plan import TIMEOUT_S, KitOutcome, KitPlan
from loadgen.kit.report import Survival
from loadgen.storm.crowd import Crowd
from loadgen.storm.loop import Fate
from loadgen.storm.plan import CrowdPlan, RetryMode, RetryPolicy
from loadgen.storm.tally import ConnectTally

PATIENT: Final = RetryPolicy(RetryMode.BACKOFF, 0.5, 8.0)
IMPATIENT: Final = RetryPolicy(RetryMode.FIXED, 0.1, 0.1)
IMPATIENT_TIMEOUT_S: Final = 1.0
HOLD_S: Final = 1.0
"""Time for which all accepted clients must stay connected after the last one."""
NOTICE_S: Final = 3.0
"""Maximum time until a crowd notices that its broker has ended."""
COMMAND_S: Final = 60.0
"""A restart that takes longer has failed."""


async def connect_storm(plan: KitPlan) -> KitOutcome:
    """Connect all clients at once, with back-off."""
    crowd = CrowdPlan(plan.clients, PATIENT, TIMEOUT_S, plan.connect_s, HOLD_S)
    return await _storm(plan, crowd)


async def retry_storm(plan: KitPlan) -> KitOutcome:
    """Connect twice as many clients, which wait for a second only and retry at once."""
    crowd = CrowdPlan(2 * plan.clients, IMPATIENT, IMPATIENT_TIMEOUT_S, plan.connect_s, HOLD_S)
    return await _storm(plan, crowd)


async def _storm(plan: KitPlan, crowd_plan: CrowdPlan) -> KitOutcome:
    crowd = Crowd(plan.target, crowd_plan, plan.clock)
    await crowd.run()
    return judge_crowd(crowd, crowd.tally, crowd_plan.timeout_s, "in")


def judge_crowd(crowd: Crowd, tally: ConnectTally, timeout_s: float, where: str) -> KitOutcome:
    """Return the verdict on a crowd. `where` is "in" for a first connect, "back" for a
    reconnect."""
    accidents = {name: count for name, count in tally.failures.items() if count}
    later = tally.busy + tally.refused[ReasonCode.SERVER_UNAVAILABLE]
    refused = tally.busy + sum(tally.refused.values()) - later
    after_s = tally.share_in_s(99)
    sentence = f"{tally.connected:,} of {count(tally.clients, 'client')} {where}"
    sentence += "" if after_s is None else f", 99 % after {after_s:,.3g} s"
    told = [f"{later:,} times the answer was to come back later"] * bool(later)
    told += [f"{count:,} attempts {name}" for name, count in accidents.items()]
    told += [f"{refused:,} attempts refused otherwise"] * bool(refused)
    if tally.lost and where == "in":
        told.append(f"{count(tally.lost, 'connection')} lost after CONNACK")
    sentence += f"; {', '.join(told) or 'no reset, no time-out'}."
    verdict = Survival.SURVIVED
    if accidents or refused:
        verdict = Survival.STRUGGLED
    if tally.connected < tally.clients:
        verdict = Survival.FAILED
    if verdict is not Survival.SURVIVED and crowd.loop.turn_max_s > timeout_s / 2:
        verdict = Survival.UNCLEAR
        sentence += was_late(crowd.loop.turn_max_s)
    if crowd.loop.target.access.has_many_users and CREDENTIALS & tally.refused.keys():
        verdict = Survival.UNCLEAR
        sentence += " The broker rejects some of the users."
    if tally.fates[Fate.LOCAL]:
        verdict = Survival.UNCLEAR
        sentence += " This machine had no more ports or descriptors: choose fewer --clients."
    return KitOutcome(verdict, after_s, sentence, tally.result())


def was_late(late_s: float) -> str:
    """Return the sentence of a verdict that concerns this program more than the broker."""
    return f" This program itself was late by {late_s:.1f} s: choose fewer --clients."


async def restart(plan: KitPlan) -> KitOutcome:
    """Restart the broker while all clients are connected, and let all of them reconnect."""
    assert plan.restart_command is not None
    crowd_plan = CrowdPlan(plan.clients, PATIENT, TIMEOUT_S, plan.connect_s, returns=True)
    crowd = Crowd(plan.target, crowd_plan, plan.clock)
    try:
        await crowd.connect()
        before = crowd.tally
        if before.connected < plan.clients:
            first = judge_crowd(crowd, before, TIMEOUT_S, "in")
            sentence = f"Not restarted: {first.sentence}"
            return KitOutcome(Survival.FAILED, None, sentence, first.values)
        return await _restarted(plan, crowd)
    finally:
        crowd.loop.close_all()


async def _restarted(plan: KitPlan, crowd: Crowd) -> KitOutcome:
    assert plan.restart_command is not None
    loop = crowd.loop
    tally = crowd.tally = ConnectTally(plan.clients, connected=plan.clients)
    tally.started_s = loop.clock()
    why = await _run(plan.restart_command, crowd)
    if why:
        sentence = f"The restart command failed, {why}"
        return KitOutcome(Survival.UNCLEAR, None, sentence, tally.result())
    noticed_s = loop.clock() + NOTICE_S
    await loop.run(lambda now_s: tally.lost > 0 or now_s >= noticed_s)
    until_s = loop.clock() + plan.connect_s
    await loop.run(lambda now_s: tally.settled or now_s >= until_s)
    held_s = loop.clock() + HOLD_S
    await loop.run(lambda now_s: now_s >= held_s)
    tally.seconds = loop.clock() - tally.started_s
    outcome = _judge_return(crowd, tally)
    await crowd.leave()
    if not tally.lost:
        sentence = "No client lost its connection: the restart command restarted something else."
        return KitOutcome(Survival.UNCLEAR, None, sentence, tally.result())
    return outcome


async def _run(command: str, crowd: Crowd) -> str:
    """Run a shell command beside the crowd. Return why it failed, or ""."""
    codes: list[int] = []

    async def run_it(output: IO[bytes]) -> None:
        # Not into a pipe, which a broker that the command leaves behind would hold open.
        done = await trio.run_process(
            command, shell=True, check=False, stdout=output, stderr=output
        )
        codes.append(done.returncode)

    with TemporaryFile() as output:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_it, output)
            until_s = crowd.loop.clock() + COMMAND_S
            await crowd.loop.run(lambda now_s: bool(codes) or now_s >= until_s)
            nursery.cancel_scope.cancel()
        output.seek(0)
        said = output.read().decode(errors="replace").strip()[-200:] or "it said nothing"
    if not codes:
        return f"no end after {COMMAND_S:g} s: {said}"
    return f"status {codes[0]}: {said}" if codes[0] else ""


def _judge_return(crowd: Crowd, tally: ConnectTally) -> KitOutcome:
    """Return the verdict. TCP connections refused while the broker is down are no fault."""
    away, tally.fates[Fate.UNREACHABLE] = tally.fates[Fate.UNREACHABLE], 0
    outcome = judge_crowd(crowd, tally, TIMEOUT_S, "back")
    tally.fates[Fate.UNREACHABLE] = away
    return replace(outcome, values=tally.result())

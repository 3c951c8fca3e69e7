"""Experiments with messages: slow subscriber, flood with pings, noisy client, wide fan-out."""

import json
import sys
from dataclasses import replace
from functools import partial
from subprocess import PIPE
from typing import Final

import trio

from flowguard.lines import count
from loadgen.kit.connecting import judge_crowd, was_late
from loadgen.kit.knock import CREDENTIALS
from loadgen.kit.pings import PingingPart, PingTally
from loadgen.kit.plan import TIMEOUT_S, KitOutcome, KitPlan
from loadgen.kit.report import Survival
from loadgen.storm.plan import CrowdPlan, TrafficPlan
from loadgen.storm.tally import LatencyHistogram, Result
from loadgen.storm.traffic import Traffic

SUBSCRIBERS: Final = 10
SLOW_PAYLOAD_BYTES: Final = 1_024
SILENCE_S: Final = 2.0
"""Silence from which on a publisher is affected by the slow subscriber."""
CATCH_UP_S: Final = 8.0

FLOODERS_SHARE: Final = 0.1
FLOOD_OUTSTANDING: Final = 100
FLOOD_PAYLOAD_BYTES: Final = 256
KEEP_ALIVE_S: Final = 10
PING_GOOD_S, PING_BAD_S = 2.5, float(KEEP_ALIVE_S)
"""Up to the first a delay is not noticed; from the second on a client takes its broker for dead."""

QUIET_PAIRS: Final = 20
QUIET_RATE_PER_S: Final = 10.0
NOISE_SHARE: Final = 0.02
QUIET_GOOD_S, QUIET_BAD_S = 0.25, 2.0
NOISE_LIMIT_S: Final = 45.0

FAN_OUT_PER_S: Final = 4_000.0
"""Deliveries per second. This is little load for a broker: only the number of subscribers is
high."""
FAN_GOOD_S, FAN_BAD_S = 1.0, 5.0
LATE_S: Final = 5.0


def crowd_of(plan: KitPlan, traffic: TrafficPlan) -> CrowdPlan:
    """Return the plan of clients that connect before anything is published."""
    return CrowdPlan(traffic.clients, timeout_s=TIMEOUT_S, seconds=plan.connect_s)


def not_begun(traffic: Traffic) -> KitOutcome | None:
    """Return the verdict if no message was sent, else None."""
    if traffic.tally.sent:
        return None
    tally = traffic.crowd.tally
    if tally.connected < tally.clients:
        outcome = judge_crowd(traffic.crowd, tally, TIMEOUT_S, "in")
        sentence = f"Nothing was published: {outcome.sentence}"
        verdict = Survival.UNCLEAR if outcome.verdict is Survival.UNCLEAR else Survival.FAILED
    elif refusals := traffic.tally.subscribe_refusals:
        counts = ", ".join(f"{count:,} x 0x{code:02x}" for code, count in sorted(refusals.items()))
        sentence = f"Nothing was published: subscriptions were refused, {counts}."
        verdict = Survival.UNCLEAR if CREDENTIALS & refusals.keys() else Survival.FAILED
    else:
        sentence = f"Nothing was published: no answer to a SUBSCRIBE within {TIMEOUT_S:g} s."
        verdict = Survival.FAILED
    return KitOutcome(verdict, None, sentence, traffic.result())


def graded(value: float | None, good: float, bad: float) -> Survival:
    """Return survived up to `good`, and failed from `bad` on or without a value."""
    if value is None or value >= bad:
        return Survival.FAILED
    return Survival.SURVIVED if value <= good else Survival.STRUGGLED


def worst(*verdicts: Survival) -> Survival:
    return max(verdicts, key=list(Survival).index)


def failed_if(*counts: int) -> Survival:
    return Survival.FAILED if any(counts) else Survival.SURVIVED


async def slow_subscriber(plan: KitPlan) -> KitOutcome:
    """Flood ten subscribers, of which one reads nothing."""
    shape = TrafficPlan(
        *(1, 1, SUBSCRIBERS),
        payload_bytes=SLOW_PAYLOAD_BYTES,
        backlog=None,
        seconds=plan.seconds,
        late_s=CATCH_UP_S,
        slow=1,
    )
    traffic = Traffic(plan.target, shape, crowd_of(plan, shape), plan.clock)
    await traffic.run()
    if (outcome := not_begun(traffic)) is not None:
        return outcome
    tally, lost = traffic.tally, traffic.crowd.tally.lost
    others_lost = tally.acknowledged_lost - tally.slow_lost
    others_cut = lost - tally.slow_cut
    verdict = worst(
        graded(tally.silence_s, SILENCE_S, plan.seconds / 2), failed_if(others_lost, others_cut)
    )
    sentence = (
        f"{tally.acknowledged / max(tally.seconds, 1e-9):,.0f} messages a second were acknowledged"
        f"; {CATCH_UP_S:g} s after the last one the nine others lack {others_lost:,} of them, the "
        f"slow one {tally.slow_lost:,}"
    )
    sentence += "; the slow one was cut off" if tally.slow_cut else ""
    sentence += f"; {count(others_cut, 'other connection')} lost." if others_cut else "."
    return KitOutcome(verdict, tally.silence_s, sentence, traffic.result())


async def flood_with_pings(plan: KitPlan) -> KitOutcome:
    """Publish as fast as windows allow, with a PINGREQ of each publisher every second."""
    shape = TrafficPlan(
        *(SUBSCRIBERS, max(1, round(FLOODERS_SHARE * plan.clients / SUBSCRIBERS)), 1),
        payload_bytes=FLOOD_PAYLOAD_BYTES,
        outstanding=FLOOD_OUTSTANDING,
        backlog=None,
        seconds=plan.seconds,
        late_s=LATE_S,
    )
    pings = PingTally()
    flooding: list[PingingPart] = []

    def begin() -> None:
        now_s = plan.clock()
        for part in flooding:
            part.start(now_s, now_s + plan.seconds)

    crowd_plan = replace(crowd_of(plan, shape), keep_alive_s=KEEP_ALIVE_S)
    traffic = Traffic(plan.target, shape, crowd_plan, plan.clock, began=begin)
    loop = traffic.crowd.loop
    for publisher in traffic.publishers:
        part = PingingPart(publisher, publisher.client, loop, pings)
        publisher.client.part = part
        flooding.append(part)
    await traffic.run()
    if (outcome := not_begun(traffic)) is not None:
        return outcome
    slowest_s = pings.slowest_s(plan.clock())
    tally, lost = traffic.tally, traffic.crowd.tally.lost
    verdict = worst(graded(slowest_s, PING_GOOD_S, PING_BAD_S), failed_if(lost, pings.unanswered))
    sentence = (
        f"{tally.acknowledged / max(tally.seconds, 1e-9):,.0f} messages a second of "
        f"{count(len(flooding), 'publisher')} acknowledged; {pings.unanswered:,} of {pings.sent:,} "
        f"pings had no answer"
    )
    sentence += f"; {count(lost, 'connection')} lost." if lost else "; no connection was lost."
    if verdict is not Survival.SURVIVED and loop.turn_max_s > PING_GOOD_S / 2:
        verdict = Survival.UNCLEAR
        sentence += was_late(loop.turn_max_s)
    values: Result = {**traffic.result(), "pings": pings.sent, "pings_open": pings.unanswered}
    values["ping_ms"] = pings.answer.result_ms()
    return KitOutcome(verdict, slowest_s, sentence, values)


async def noisy_neighbour(plan: KitPlan) -> KitOutcome:
    """Run quiet pairs alone, then the same beside a flood from another process."""
    shape = TrafficPlan(
        *(QUIET_PAIRS, 1, 1), rate_per_s=QUIET_RATE_PER_S, seconds=plan.seconds / 3, late_s=LATE_S
    )
    alone = Traffic(plan.target, shape, crowd_of(plan, shape), plan.clock)
    await alone.run()
    if (outcome := not_begun(alone)) is not None:
        return outcome
    shape = replace(shape, seconds=NOISE_LIMIT_S)
    noise: list[Result] = []
    everybody_in = trio.Event()
    beside = Traffic(plan.target, shape, crowd_of(plan, shape), plan.clock, began=everybody_in.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_noise, plan, beside, everybody_in, noise)
        await beside.run()
        nursery.cancel_scope.cancel()
    if (outcome := not_begun(beside)) is not None:
        return outcome
    if not noise or not noise[0]["sent"]:
        sentence = "The flood did not begin or was not connected, so nothing was measured."
        return KitOutcome(Survival.UNCLEAR, None, sentence, beside.result())
    return _judge_quiet(alone, beside, noise[0], plan.seconds)


def _judge_quiet(alone: Traffic, beside: Traffic, noise: Result, seconds: float) -> KitOutcome:
    tally, lost = beside.tally, beside.crowd.tally.lost
    alone_s, p99_s = (t.tally.delivery.percentile_s(99) for t in (alone, beside))
    verdict = worst(
        graded(p99_s, QUIET_GOOD_S, QUIET_BAD_S), failed_if(lost, tally.acknowledged_lost)
    )
    acknowledged = noise["acknowledged"]
    assert isinstance(acknowledged, int)
    sentence = (
        f"Quiet clients alone have {(alone_s or 0.0) * 1e3:,.0f} ms at p99; beside them a flood "
        f"had {acknowledged / seconds:,.0f} messages a second acknowledged. "
        f"{tally.missing:,} of {tally.expected:,} quiet messages did not arrive"
    )
    sentence += f", {lost:,} quiet connections were lost." if lost else "."
    values: Result = {**beside.result(), "noise_per_s": round(acknowledged / seconds, 1)}
    values["alone_ms"] = alone.tally.delivery.result_ms()
    return KitOutcome(verdict, None if p99_s is None else p99_s * 1e3, sentence, values)


async def _noise(
    plan: KitPlan, quiet: Traffic, everybody_in: trio.Event, results: list[Result]
) -> None:
    """Flood from another process once the quiet clients are connected. Latencies from before do not
    count, and the quiet clients finish when the flood ends."""
    await everybody_in.wait()
    target, clients = plan.target, max(2, round(NOISE_SHARE * plan.clients))
    order = {
        "place": (str(target.address[0]), target.port, target.version),
        "host": target.host,
        "access": target.access.values(),
        "seconds": plan.seconds,
        "clients": clients,
    }
    command = [sys.executable, "-m", "loadgen.kit.noise"]
    async with trio.open_nursery() as nursery:
        stdin = json.dumps(order).encode()
        start = partial(trio.run_process, command, stdin=stdin, stdout=PIPE, check=False)
        process: trio.Process = await nursery.start(start)
        assert process.stdout is not None
        text = b""
        async for chunk in process.stdout:
            if not text:
                quiet.tally.delivery = LatencyHistogram()
            text += chunk
    last = text.splitlines()[-1:]
    if process.returncode == 0 and last:
        results.append(json.loads(last[0]))
    quiet.finish()


async def wide_fan_out(plan: KitPlan) -> KitOutcome:
    """Publish a few messages per second to all clients."""
    shape = TrafficPlan(
        *(1, 1, plan.clients),
        backlog=None,
        rate_per_s=max(0.5, FAN_OUT_PER_S / plan.clients),
        seconds=plan.seconds,
        late_s=FAN_BAD_S,
    )
    traffic = Traffic(plan.target, shape, crowd_of(plan, shape), plan.clock)
    await traffic.run()
    if (outcome := not_begun(traffic)) is not None:
        return outcome
    tally, lost = traffic.tally, traffic.crowd.tally.lost
    p99_s = tally.delivery.percentile_s(99)
    verdict = worst(graded(p99_s, FAN_GOOD_S, FAN_BAD_S), failed_if(lost, tally.acknowledged_lost))
    clients = count(plan.clients, "client")
    sentence = f"{tally.received:,} of {tally.expected:,} deliveries to {clients} arrived"
    sentence += f"; {count(lost, 'connection')} lost." if lost else ", and no connection was lost."
    if verdict is not Survival.SURVIVED and traffic.crowd.loop.turn_max_s > FAN_GOOD_S:
        verdict = Survival.UNCLEAR
        sentence += was_late(traffic.crowd.loop.turn_max_s)
    value = None if p99_s is None else p99_s * 1e3
    return KitOutcome(verdict, value, sentence, traffic.result())

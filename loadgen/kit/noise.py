"""`python -m loadgen.kit.noise`: the flood beside quiet clients.

It reads JSON from standard input, because other users of the machine can see arguments.

It is a process of its own, so that it takes no time from the measured clients. It writes a line
when it begins to publish, and its result as JSON in the last one.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import trio

from loadgen.storm.access import ClientAccess
from loadgen.storm.plan import CrowdPlan, Target, TrafficPlan
from loadgen.storm.traffic import Traffic

PAYLOAD_BYTES = 1_024
OUTSTANDING = 1_000
SUBSCRIBERS = 2
CONNECT_S = 15.0


async def make_noise(target: Target, seconds: float, clients: int) -> Traffic:
    plan = TrafficPlan(
        *(1, clients, SUBSCRIBERS),
        payload_bytes=PAYLOAD_BYTES,
        outstanding=OUTSTANDING,
        backlog=None,
        seconds=seconds,
        late_s=0.5,
    )
    crowd = CrowdPlan(plan.clients, timeout_s=CONNECT_S, seconds=CONNECT_S)
    traffic = Traffic(target, plan, crowd, trio.current_time, began=begin)
    await traffic.run()
    return traffic


def begin() -> None:
    sys.stdout.write("begins\n")
    sys.stdout.flush()


def main(order: dict[str, Any]) -> None:
    target = Target.resolve(*order["place"])
    target = replace(target, host=order["host"], access=ClientAccess.of(order["access"]))
    traffic = trio.run(make_noise, target, order["seconds"], order["clients"])
    sys.stdout.write(json.dumps(traffic.result()) + "\n")


if __name__ == "__main__":
    main(json.load(sys.stdin))

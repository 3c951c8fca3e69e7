"""`python -m loadgen.kit.noise HOST PORT VERSION SECONDS CLIENTS`: the flood beside quiet clients.

It is a process of its own, so that it takes no time from the measured clients. It writes a line
when it begins to publish, and its result as JSON in the last one.
"""

import json
import sys

import trio

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


def main(words: list[str]) -> None:
    host, port, version, seconds, clients = words
    target = Target.resolve(host, int(port), int(version))
    traffic = trio.run(make_noise, target, float(seconds), int(clients))
    sys.stdout.write(json.dumps(traffic.result()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

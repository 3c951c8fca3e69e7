"""What a packet costs in the guard: `python -m tests.broker_adapter.bench_guard`."""

import sys
import timeit
from time import process_time

from broker_adapter import Guard
from flowguard import build

NUMBER = 50_000


def main() -> None:
    guard = Guard()
    client = guard.client("a")
    start, done = guard.start, guard.done

    def packet() -> None:
        done(start(client, 1.0), 1.0)

    least_s = min(timeit.repeat(packet, number=NUMBER, repeat=25, timer=process_time)) / NUMBER
    sys.stdout.write(f"{1e6 * least_s:.2f} us per packet, {build.name()}\n")


if __name__ == "__main__":
    main()

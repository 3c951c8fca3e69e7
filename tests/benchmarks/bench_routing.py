"""What routing costs: `.venv/bin/python -m tests.benchmarks.bench_routing`.

One line per case: microseconds per call, the best of five runs, or bytes. The machine decides the
figures; compare only lines of one run.
"""

import gc
import sys
import timeit
import tracemalloc
from collections.abc import Callable
from random import Random

from flowguard.records import NEVER_S
from flowguard.routing import RetainedMessages, SharedGroup, SubscriptionTable, TopicIndex, matches
from flowguard.types import Publish

Index = TopicIndex[int, None]


def say(name: str, value: float, unit: str) -> None:
    sys.stdout.write(f"{name:<62} {value:>12,.2f} {unit}\n")


def clock(name: str, call: Callable[[], object], calls: int = 20_000) -> None:
    best_s = min(timeit.repeat(call, number=calls, repeat=5))
    say(name, best_s / calls * 1e6, "us")


def memory(name: str, fill: Callable[[], object], count: int) -> None:
    gc.collect()
    tracemalloc.start()
    kept = fill()
    gc.collect()
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept is not None
    say(name, used_bytes / count, "bytes")


def index_of(filters: list[str]) -> Index:
    index = Index()
    for number, filter in enumerate(filters):
        index.subscribe(filter, number, None)
    return index


def bench_match() -> None:
    exact = index_of([f"devices/{number}/commands" for number in range(10_000)])
    clock("match exact, 10^4 exact filters", lambda: exact.match("devices/777/commands"))
    clock("match nothing, 10^4 exact filters", lambda: exact.match("devices/none/commands"))
    own = index_of([f"devices/{number}/+" for number in range(10_000)])
    clock("match 1 of 10^4 filters d/{id}/+", lambda: own.match("devices/777/commands"))
    below = index_of([f"devices/{number}/#" for number in range(10_000)])
    clock("match 1 of 10^4 filters d/{id}/#", lambda: below.match("devices/777/a/b/c"))
    random = Random(1)
    mixed = [
        "/".join(
            "+" if random.random() < 0.2 else str(random.randrange(8))
            for _ in range(random.randint(2, 7))
        )
        + ("/#" if random.random() < 0.2 else "")
        for _ in range(10_000)
    ]
    crowd = index_of(mixed)
    found = len(crowd.match("1/2/3/4/5"))
    clock(f"match {found} of 10^4 random filters, 5 levels", lambda: crowd.match("1/2/3/4/5"))
    clock(
        "  the naive scan of the same",
        lambda: [filter for filter in mixed if matches(filter, "1/2/3/4/5")],
        20,
    )
    fan = Index()
    for number in range(1000):
        fan.subscribe("fan/out", number, None)
    clock("match 1000 subscribers of one filter", lambda: fan.match("fan/out"), 2000)
    plus = index_of(
        ["/".join("+" if bits >> i & 1 else "a" for i in range(10)) + "/x" for bits in range(1024)]
    )
    clock(
        "match nothing after the worst walk of 1024 filters",
        lambda: plus.match("a/" * 10 + "y"),
        200,
    )


def bench_change() -> None:
    index = index_of([f"devices/{number}/commands" for number in range(10_000)])

    def change(filter: str) -> None:
        index.subscribe(filter, -1, None)
        index.unsubscribe(filter, -1)

    clock("subscribe + unsubscribe, exact", lambda: change("devices/x/commands"))
    clock("subscribe + unsubscribe, a/b/+/c/#", lambda: change("a/b/+/c/#"))
    for number in range(100_000):
        index.subscribe("fan/+", number, None)
    clock("subscribe + unsubscribe beside 10^5 on one filter", lambda: change("fan/+"))


def bench_groups() -> None:
    group: SharedGroup[int, None] = SharedGroup("g", "a")
    for number in range(1000):
        group.add(number, None)
    clock("pick of 1000 members, all ready", lambda: group.pick(lambda _: 0))
    clock("pick, 990 of them offline", lambda: group.pick(lambda n: 2 if n % 100 else 0))
    clock("pick, all offline", lambda: group.pick(lambda _: 2), 2000)
    table: SubscriptionTable[int, None] = SubscriptionTable()
    for number in range(10_000):
        table.subscribe(f"devices/{number}/commands", number, None)
    table.subscribe("$share/g/devices/+/commands", 1, None)
    clock("table.match: 1 plain, 1 group", lambda: table.match("devices/777/commands"))


def retained(count: int) -> RetainedMessages:
    store = RetainedMessages(messages_max=count, bytes_max=1 << 40)
    for number in range(count):
        store.put(Publish(f"site/{number % 100}/sensor/{number}", b"20.5"), NEVER_S)
    return store


def bench_retained() -> None:
    store = retained(100_000)
    exact = "site/42/sensor/42"
    clock("retained: exact of 10^5", lambda: list(store.match(exact, 0.0)))
    clock(
        "retained: site/+/sensor/42 of 10^5",
        lambda: list(store.match("site/+/sensor/42", 0.0)),
        200,
    )
    clock("retained: # over 10^5, whole", lambda: list(store.match("#", 0.0)), 1)
    publish = Publish(exact, b"21.0")
    clock("retained: put in place of another", lambda: store.put(publish, NEVER_S))
    clock("retained: put with expiry", lambda: store.put(publish, 60.0))


def bench_memory() -> None:
    count = 10_000
    names = [f"devices/{number}/commands" for number in range(count)]
    memory("index: lone exact filter, besides the strings", lambda: index_of(names), count)
    plus = [f"devices/{number}/+" for number in range(count)]
    memory("index: lone d/{id}/+, its level's text included", lambda: index_of(plus), count)
    below = [f"devices/{number}/commands/#" for number in range(count)]
    memory("index: lone d/{id}/commands/#, texts included", lambda: index_of(below), count)
    one = ["fan/out"] * count
    memory("index: one of 10^4 on one filter", lambda: index_of(one), count)
    memory("retained: all of a 4 byte message, topic of 20", lambda: retained(count), count)
    store = retained(count)
    say("retained:   the same in the books", store.size_bytes / count, "bytes")


def main() -> None:
    bench_match()
    bench_change()
    bench_groups()
    bench_retained()
    bench_memory()


if __name__ == "__main__":
    main()

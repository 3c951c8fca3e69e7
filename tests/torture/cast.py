"""The players of a run, and the settings of its brokers."""

from random import Random
from selectors import BaseSelector
from typing import Any

from flowguard.types import MQTT_5, MQTT_311
from tests.torture.ledger import Account, Ledger
from tests.torture.players import Mortal, Player, Publisher, Reader, Subscriber, Visitor
from tests.torture.wire import Line

DURABILITIES = ("fsync", "os")
"""Durabilities of successive brokers: a killed process must not need more than the second."""
SETTINGS: dict[str, dict[str, Any]] = {
    # Queues that take whatever a sleeper misses.
    "session": {"queue_messages_max": 1_000_000, "queue_bytes_max": 2**30, "inflight_max": 100},
    "node": {"queue_bytes_max": 2**30},
    # Small, so that tables are written and compacted within a run.
    "store": {"write_buffer_bytes": 2**20, "wal_bytes_max": 2**20, "disk_reserve_bytes": 2**20},
}
TOPICS = ["t/0", "t/1", "t/2"]
EVERYTHING = {"t/#": 2, "w/#": 2}
SHARED = {"$share/g/t/#": 2}
LENT = {"$share/h/t/#": 1}


LOG_THRESHOLDS = (0, 1, 4, 8)
"""Thresholds of successive brokers: topics change between client queues and the durable log."""
LOG_LAYOUTS = ("bitmask", "skipstream")
"""Layouts of the generations that a broker begins."""
APPLICATIONS = ("s5", "one5", "lazy4", "few5", "sleeper4", "member5", "visitor5")
"""Clients that are applications, with queues in Kafka, and so a group."""


def settings(
    random: Random, *, logs: bool = False, applications: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the settings of the next broker.

    If `logs`, it may keep messages in the durable log. If `applications`, it has some, in Kafka.
    """
    store = SETTINGS["store"] | {"durability": random.choice(DURABILITIES)}
    chosen = SETTINGS | {"store": store}
    if logs:
        chosen |= {
            "session": SETTINGS["session"] | {"log_threshold": random.choice(LOG_THRESHOLDS)},
            "store": store | {"log_layout": random.choice(LOG_LAYOUTS)},
        }
    if applications:
        chosen |= {
            "session": SETTINGS["session"] | {"application_client_ids": APPLICATIONS},
            "store": store | {"application_store": "kafka"},
        }
    return chosen


def cast(port: int, selector: BaseSelector, ledger: Ledger, random: Random) -> list[Player]:
    """All players; the last character of a client id is its protocol, 5.0 or 3.1.1."""

    def given(client_id: str) -> tuple[Any, ...]:
        version = MQTT_5 if client_id.endswith("5") else MQTT_311
        return client_id, version, Line(port, selector), ledger, Random(random.random())

    group, lent = Account("group g", shared=True), Account("group h", shared=True)
    return [
        Publisher(*given("p5"), topics=TOPICS),
        Publisher(*given("p4"), topics=TOPICS),
        Publisher(*given("keeper5"), topics=["r/0", "r/1", "r/2"], retain=True),
        Subscriber(*given("s5"), filters=EVERYTHING),
        Subscriber(*given("s4"), filters=EVERYTHING),
        Subscriber(*given("one5"), filters={"t/#": 1, "w/#": 1}),
        Subscriber(*given("lazy4"), filters=EVERYTHING, laziness=0.7),
        Subscriber(*given("few5"), filters=EVERYTHING, laziness=0.3, receive_maximum=20),
        Subscriber(*given("sleeper5"), filters=EVERYTHING, sleeps=True),
        Subscriber(*given("sleeper4"), filters=EVERYTHING, sleeps=True),
        Subscriber(*given("member5"), filters=SHARED, account=group),
        Subscriber(*given("member4"), filters=SHARED, account=group, sleeps=True),
        Subscriber(*given("lent5"), filters=LENT, account=lent, laziness=0.5, receive_maximum=20),
        Subscriber(*given("lent4"), filters=LENT, account=lent, sleeps=True),
        Visitor(*given("visitor5"), filter="t/0"),
        Visitor(*given("visitor4"), filter="t/1"),
        Mortal(*given("mortal5"), topic="w/5", qos=2),
        Mortal(*given("mortal4"), topic="w/4", qos=1),
        Reader(*given("reader5"), filter="r/#"),
        Reader(*given("reader4"), filter="r/#"),
    ]

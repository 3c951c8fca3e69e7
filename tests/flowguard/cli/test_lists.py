"""`flowguard subscriptions`, `topics` and `retained` against real brokers."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flowguard.codec.packets import Connack, Puback, Publish, Suback, Subscribe
from flowguard.types import SubscriptionOptions
from tests.flowguard.cli.http_port import http_address, run
from tests.interop.broker import Broker, running_broker
from tests.support.caller import Caller
from tests.support.patience import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("workers", ["1", "2"])]
NAMES = [f"car-{number}" for number in range(6)]
"""Enough for each of two workers to own some."""


@pytest.fixture
def callers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connected(broker: Broker, client_id: str, *filters: str) -> Caller:
    caller = Caller(broker, client_id=client_id)
    assert isinstance(caller.read(), Connack)
    if filters:
        wanted = tuple((each, SubscriptionOptions(1)) for each in filters)
        caller.send(Subscribe(1, wanted))
        assert isinstance(caller.read(), Suback)
    return caller


def retain(broker: Broker, *topics: str) -> None:
    with connected(broker, "publisher") as publisher:
        for topic in topics:
            publisher.send(Publish(topic, b"payload", 1, True, packet_id=1))
            assert isinstance(publisher.read(), Puback)


def listed(*arguments: str) -> list[Any]:
    code, said, complaint = run(*arguments, "--json")
    assert (code, complaint) == (0, "")
    return [json.loads(line) for line in said.splitlines()]


def test_subscriptions_and_receivers_of_all_workers(
    tmp_path: Path, workers: str, callers: ExitStack
) -> None:
    with running_broker(tmp_path, "--workers", workers) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        for name in NAMES:
            callers.enter_context(connected(broker, name, "news/+", f"to/{name}", "$share/g/job"))
        rows = listed("subscriptions", "list", *url)
        assert len(rows) == 3 * len(NAMES)
        rows = listed("subscriptions", "list", "--filter", "news/+", *url)
        assert sorted(row["client_id"] for row in rows) == NAMES
        (row,) = listed("subscriptions", "list", "--client", "*-3", "--filter", "to/car-3", *url)
        assert (row["state"], row["qos"]) == ("connected", 1)

        rows = listed("topics", "who-gets", "news/today", *url)
        assert sorted(row["client_id"] for row in rows) == NAMES
        assert {row["filter"] for row in rows} == {"news/+"}
        rows = listed("topics", "who-gets", "job", *url)
        assert [row["filter"] for row in rows] == ["$share/g/job"] * len(NAMES)
        code, said, _ = run("topics", "who-gets", "to/car-1", *url)
        assert (code, "car-1" in said, "car-2" in said) == (0, True, False)
        code, _, complaint = run("topics", "who-gets", "nothing", *url)
        assert (code, "No client has subscribed" in complaint) == (1, True)
        code, said, complaint = run("topics", "who-gets", "news/x", "--limit", "2", *url)
        assert (code, "There are more than 2" in complaint) == (0, True)


def test_retained_messages_are_listed_and_deleted_for_good(tmp_path: Path, workers: str) -> None:
    data = ("--data", str(tmp_path / "data"), "--workers", workers)
    topics = [f"a/{number}" for number in range(6)]
    kept = {"exit_code": -signal.SIGKILL}
    with running_broker(tmp_path / "1", *data, **kept) as broker:  # type: ignore[arg-type]
        url = ("--url", f"http://{http_address(broker)}")
        retain(broker, *topics, "b", "c")
        rows = listed("retained", "list", *url)
        assert sorted(row["topic"] for row in rows) == [*topics, "b", "c"]
        assert {(row["payload_bytes"], row["qos"]) for row in rows} == {(7, 1)}
        assert [row["topic"] for row in listed("retained", "list", "b", *url)] == ["b"]
        assert listed("retained", "list", "$SYS/flowguard/#", *url)

        code, said, _ = run("retained", "delete", "a/+", *url)
        assert (code, said) == (0, "deleted 6 retained messages of a/+\n")
        code, said, _ = run("retained", "delete", "b", *url)
        assert (code, said) == (0, "deleted 1 retained message of b\n")
        code, said, _ = run("retained", "delete", "$SYS/#", *url)
        assert (code, said) == (0, "deleted 0 retained messages of $SYS/#\n")
        code, _, complaint = run("retained", "delete", "a/#/b", *url)
        assert (code, "a topic, or a filter" in complaint) == (1, True)
        log = Path(broker.log).read_text()
        assert "action=retained/delete" in log
        broker.process.kill()
        broker.process.wait()
    with running_broker(tmp_path / "2", *data) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        with connected(broker, "reader", "#") as reader:  # Its worker has asked the others.
            message = reader.read()
            assert isinstance(message, Publish)
            assert message.topic == "c"
        until_s = time.monotonic() + HANG_S
        while [row["topic"] for row in listed("retained", "list", *url)] != ["c"]:
            assert time.monotonic() < until_s


def test_one_request_deletes_a_bounded_number(tmp_path: Path, workers: str) -> None:
    with running_broker(tmp_path, "--workers", workers) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        with connected(broker, "publisher") as publisher:
            for number in range(1_200):
                publisher.send(Publish(f"many/{number}", b"x", 1, True, packet_id=1))
                assert isinstance(publisher.read(), Puback)
        code, said, _ = run("retained", "delete", "many/#", *url)
        assert (code, said) == (0, "deleted 1,200 retained messages of many/#\n")
        assert listed("retained", "list", *url) == []

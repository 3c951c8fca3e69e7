"""`flowguard drain`, and a drain after SIGTERM that takes a time."""

import re
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from flowguard.cli.remote.ask import ask
from flowguard.cli.remote.drain import seconds_of
from flowguard.codec.packets import Connack, Disconnect
from flowguard.types import ReasonCode
from tests.flowguard.cli.http_port import http_address, run
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.caller import Caller


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("5m", 300), ("1h", 3600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def crowd(broker: Broker, count: int) -> list[Caller]:
    callers = [Caller(broker, client_id=f"c{number}") for number in range(count)]
    for caller in callers:
        assert isinstance(caller.read(), Connack)
    return callers


def assert_all_are_told(callers: list[Caller], reference: str | None = None) -> None:
    expected = ReasonCode.USE_ANOTHER_SERVER if reference else ReasonCode.SERVER_SHUTTING_DOWN
    for caller in callers:
        ended = caller.read()
        assert isinstance(ended, Disconnect)
        assert ended.reason_code == expected
        assert ended.properties.server_reference == reference
        assert caller.read() is None
        caller.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("over_s", ["0", "0.5"])
def test_clients_are_sent_to_the_configured_server(
    tmp_path: Path, workers: str, over_s: str
) -> None:
    environment = {
        "FLOWGUARD_NODE__SERVER_REFERENCE": "other.example:8883",
        "FLOWGUARD_NODE__DRAIN_OVER_S": over_s,
    }
    with running_broker(tmp_path, "--workers", workers, environment=environment) as broker:
        callers = crowd(broker, 4)
        with Caller(broker, 4, client_id="older") as older:
            assert isinstance(older.read(), Connack)
            broker.process.send_signal(signal.SIGTERM)
            assert older.read() is None
        assert_all_are_told(callers, "other.example:8883")
        assert broker.process.wait(PATIENCE_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_progress_of_a_drain_is_shown(tmp_path: Path, workers: str) -> None:
    with running_broker(tmp_path, "--workers", workers, exit_code=128 + signal.SIGTERM) as broker:
        url = f"http://{http_address(broker)}"
        callers = crowd(broker, 10)
        code, _ = ask(url, "/drain", {"over_s": 1_000})
        assert code == 200
        words = re.compile(r"drain +[0-2] of 10 clients disconnected, (9\d\d|1,000) s left")
        while not words.search(run("top", url, "--once")[1]):
            assert broker.process.poll() is None
        page = urllib.request.urlopen(url).read().decode()
        assert workers == "1" or "of 10 clients disconnected, " in page
        while broker.process.poll() is None:  # The second signal ends it at once.
            broker.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        assert broker.process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        for caller in callers:
            caller.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_drain_disconnects_one_after_the_other_and_ends_the_broker(
    tmp_path: Path, workers: str
) -> None:
    with running_broker(tmp_path, "--workers", workers) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        callers = crowd(broker, 6)
        code, said, complaint = run("drain", "--over", "1s", *url)
        assert code == 0, complaint
        assert "the broker has ended; 6 clients were connected" in said
        assert broker.process.wait(PATIENCE_S) == 0
        assert_all_are_told(callers)
        log = Path(broker.log).read_text()
        assert "leaving" in log
        assert "action=drain" in log


@pytest.mark.slow
def test_while_it_drains_it_accepts_no_connections_and_is_not_ready(tmp_path: Path) -> None:
    environment = {"FLOWGUARD_NODE__DRAIN_OVER_S": "3600"}
    with running_broker(
        tmp_path, environment=environment, exit_code=128 + signal.SIGTERM
    ) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        callers = crowd(broker, 3)
        broker.process.send_signal(signal.SIGTERM)
        broker.wait_for_log("leaving")
        with pytest.raises(ConnectionRefusedError):
            Caller(broker, client_id="late")
        code, _, complaint = run("drain", "--over", "1s", *url)
        assert (code, "the broker drains already" in complaint) == (1, True)
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        for caller in callers:
            caller.close()

"""`flowguard drain`, and a drain after SIGTERM that takes a time."""

import signal
from pathlib import Path

import pytest

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


def assert_all_are_told(callers: list[Caller]) -> None:
    for caller in callers:
        ended = caller.read()
        assert isinstance(ended, Disconnect)
        assert ended.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
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

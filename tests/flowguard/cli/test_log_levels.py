"""`flowguard log`: levels of a running broker's log, and of the logs of all its workers."""

import os
import signal
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack
from tests.flowguard.cli.http_port import http_address, run
from tests.flowguard.workers.clients import Client, machine, names, tcp
from tests.flowguard.workers.test_supervisor import wait_until_ready_again
from tests.interop.broker import running_broker
from tests.support.caller import Caller

pytestmark = pytest.mark.slow


def test_log_set_changes_a_level_of_a_running_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path / "b") as broker:
        url = ("--url", f"http://{http_address(broker)}")
        with Caller(broker) as client:
            assert isinstance(client.read(), Connack)
        assert "connected" not in Path(broker.log).read_text()
        code, shown, _ = run("log", "set", "clients", "debug", *url)
        assert code == 0
        assert shown == run("log", "show", *url)[1]
        assert "clients         debug" in shown
        assert "level           info" in shown
        with Caller(broker) as client:
            assert isinstance(client.read(), Connack)
        code, _, complaint = run("log", "set", "client", "debug", *url)
        assert (code, "client is no kind of log events" in complaint) == (1, True)
    logged = Path(broker.log).read_text()
    assert logged.count("listener=") == 1, "the second client only"
    assert logged.count("connected_s=") == 1
    assert "kind=clients status=200 to=debug" in logged


def test_log_set_reaches_all_workers_also_those_that_start_later(tmp_path: Path) -> None:
    with machine(tmp_path) as running:
        url = ("--url", f"http://{running.http}")
        code, shown, complaint = run("log", "set", "clients", "debug", *url)
        assert (code, complaint) == (0, "")
        assert shown == run("log", "show", *url)[1]
        before = running.pid(0)
        os.kill(before, signal.SIGKILL)
        wait_until_ready_again(running, 0, before)
        for (name,) in (names(0, 1), names(1, 1)):
            client = Client(tcp(running.addresses[0]), name)
            client.accepted()
            client.close()
        log = running.broker.log
    logged = log.read_text()
    assert logged.count("listener=") == 2

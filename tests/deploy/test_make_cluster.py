"""`make cluster`: redis-server and three nodes, which begin and end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.brokers import free_port
from flowguard.codec.packets import Connack
from tests.flowguard.workers.clients import Client, tcp
from tests.interop.broker import PATIENCE_S
from tests.support.redis_server import needs_redis

SCRIPT = Path(__file__).parents[2] / "scripts" / "cluster.py"

pytestmark = pytest.mark.slow


def test_clients_connect_to_each_of_the_three_nodes_until_all_end(tmp_path: Path) -> None:
    needs_redis()
    port = free_port()
    environment = {**os.environ, "FIRST_PORT": str(port)}
    with subprocess.Popen(
        [sys.executable, SCRIPT], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            lines.append(script.stdout.readline())
            assert lines[-1], lines
        assert sum("kill -9" in line for line in lines) == 3
        deadline_s = time.monotonic() + PATIENCE_S
        for number in range(3):
            answer = None
            while not (isinstance(answer, Connack) and answer.reason_code == 0):
                assert time.monotonic() < deadline_s, answer
                client = Client(tcp(("127.0.0.1", port + number)), f"client-{number}")
                answer = client.read()
                client.close()
        script.send_signal(signal.SIGINT)
        assert script.wait(PATIENCE_S) == 0

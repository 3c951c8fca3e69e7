"""`make cluster`: redis-server and three nodes, which begin and end together."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.brokers import QUIET_PORTS
from flowguard.codec.packets import Connack
from tests.flowguard.workers.clients import Client, tcp
from tests.interop.broker import PATIENCE_S
from tests.support.redis_server import needs_redis
from tests.torture.nodes import are_free

LAST = 8_003
"""How far the last port of the nodes is from the first one."""
SCRIPT = Path(__file__).parents[2] / "scripts" / "cluster.py"

pytestmark = pytest.mark.slow


def first_port() -> int:
    """A first port for which all ports of the three nodes are free: those for clients, for HTTP,
    and for the cluster. None is one that the system gives to a connection by itself."""
    for port in random.sample(QUIET_PORTS[:-LAST], len(QUIET_PORTS) - LAST):
        cluster = [port + 5_117 + 100 * node + n for node in range(3) for n in range(12)]
        if are_free([*range(port, port + 3), *range(port + 8_000, port + 8_003), *cluster]):
            return port
    raise AssertionError("no ports are free")


def test_clients_connect_to_each_of_the_three_nodes_until_all_end(tmp_path: Path) -> None:
    needs_redis()
    port = first_port()
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

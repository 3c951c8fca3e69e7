"""What the proxy costs: `python -m tests.broker_adapter.bench_proxy`, with Mosquitto installed.

The same load goes to Mosquitto directly and through the proxy, in the same run. Processor time is
of the broker, and of the proxy; times are from PUBLISH to PUBACK as their publishers see it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flowguard import build
from tests.broker_adapter.upstream import Mosquitto, mosquitto, proxy_process

SECONDS = 5
CALM = {"store_objective_s": 1e9, "loop_objective_s": 1e9}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LOADS = (
    ("1 outstanding", ("--pairs", "200", "--outstanding", "1")),
    ("10 outstanding", ("--pairs", "200", "--outstanding", "10")),
    ("low load", ("--pairs", "10", "--outstanding", "1", "--rate", "5")),
)


def used_s(pid: int) -> float:
    """Its processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def storm(port: int, folder: Path, options: tuple[str, ...]) -> dict[str, Any]:
    result = folder / "result.json"
    command = [sys.executable, "-m", "flowguard", "storm", f"127.0.0.1:{port}", "pairs", *options]
    subprocess.run(
        [*command, "--seconds", str(SECONDS), "--json", str(result)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen: dict[str, Any] = json.loads(result.read_text())
    return seen


def compare(broker: Mosquitto, proxy_pid: int, port: int, folder: Path) -> None:
    for name, options in LOADS:
        at_s = used_s(broker.pid)
        direct = storm(broker.port, folder, options)
        direct_s = used_s(broker.pid) - at_s
        at_s = used_s(proxy_pid)
        through = storm(port, folder, options)
        proxy_s = used_s(proxy_pid) - at_s
        per_s = direct["sent"] / max(direct_s, 1 / TICKS_PER_S)
        proxy_per_s = through["sent"] / max(proxy_s, 1 / TICKS_PER_S)
        times = [
            f"{quantile} {seen['acknowledgement_ms'][quantile]:.2f} ms"
            for seen in (direct, through)
            for quantile in ("p50", "p99")
        ]
        sys.stdout.write(
            f"{name}: messages per CPU second: Mosquitto {per_s:,.0f}, proxy {proxy_per_s:,.0f} "
            f"({proxy_per_s / per_s:.2f}); direct {', '.join(times[:2])}; "
            f"through the proxy {', '.join(times[2:])}\n"
        )


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        with mosquitto(folder) as broker, proxy_process(folder, broker.port, **CALM) as started:
            process, port = started
            sys.stdout.write(f"{build.name()}, {os.cpu_count()} cores\n")
            compare(broker, process.pid, port, folder)


if __name__ == "__main__":
    main()

"""Each fault of a cluster, at its full count, and a table of what came of it.

`python -m tests.torture.nemesis --logs FOLDER --write`: a run of `tests.torture.cluster` for each
fault and layout, about 90 minutes. A run whose log is in the folder is not repeated. The controls
promise too little, so something must be lost in them.
"""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from tests.torture.cluster_faults import FAULTS

COMMAND = "tests.torture.cluster"
COUNT = 20
RUNS = {
    f"{name}.{layout}": f"--fault {name} --layout {layout}"
    for layout in ("stream", "zset")
    for name in FAULTS
} | {"tail.stream": "--fault fail-over --level memory"}
"""In the last one a replica may lack the end, and the owners live on: they write it again."""
CONTROLS = {
    "subscriptions of QoS 0": "--fault kill --fault cut --qos 0",
    "Redis keeps nothing on disk, SIGKILL of Redis": "--fault restart --level memory",
    "no replica has to confirm, SIGKILL of node and primary": "--fault both --level memory",
}
LOSSES = ("was acknowledged and is lost", "a session was lost")
PAGE = Path("benchmarks/results/cluster-nemesis.md")
HEAD = f"""# Faults of a cluster

`python -m tests.torture.nemesis --logs FOLDER --write`. Three nodes with three shards; 23 clients
that publish and subscribe at QoS 1 and 2, with durable, clean and shared subscriptions, wills and
retained messages. {COUNT} faults in each row, which overlap; `tests/torture/cluster_faults.py` has
a line on each.

A finding is an acknowledged message that was lost, came twice at QoS 2 or out of order, a second
will message for one connection, a session that was lost, or a node that ended by itself.

| fault | layout and durability | acknowledged | deliveries | of these repeated, QoS 1 | findings |
| --- | --- | --- | --- | --- | --- |
"""
CONTROL_HEAD = """
Controls, which promise too little:

| control | findings | the first loss |
| --- | --- | --- |
"""


def log_of(logs: Path, name: str, words: str, *, run: bool) -> list[str]:
    """Return the output of a former run, or `run` and return it; nothing without both."""
    log = logs / name.replace(" ", "-")
    if not (run or log.exists()):
        return []
    if not log.exists():
        command = [sys.executable, "-m", COMMAND, "--faults", str(COUNT), *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        log.write_text(done.stdout + done.stderr)
    return log.read_text().splitlines()


def row_of(lines: list[str]) -> str:
    """Return the row of the table in the output of a run, or "" if it has not ended."""
    return next((line for line in lines if line.startswith("| ")), "")


def main(
    logs: Annotated[Path, typer.Option(help="Directory of the logs.")],
    run: Annotated[bool, typer.Option(help="Do the runs whose logs are missing.")] = True,
    write: Annotated[bool, typer.Option(help=f"Write {PAGE}.")] = False,
) -> None:
    """Exit code 1: a run has findings, or a control has lost nothing."""
    logs.mkdir(exist_ok=True)
    rows = [row_of(log_of(logs, name, words, run=run)) for name, words in RUNS.items()]
    rows = [row for row in rows if row]
    is_good = all(row.endswith(" 0 |") for row in rows)
    text = HEAD + "\n".join(rows) + "\n" + CONTROL_HEAD
    for name, words in CONTROLS.items():
        lines = log_of(logs, name, words, run=run)
        if not lines:
            continue
        count = row_of(lines).split("|")[-2].strip()
        findings = [line for line in lines if line.startswith("after ")]
        lost = [line for line in findings if any(loss in line for loss in LOSSES)]
        text += f"| {name} | {count} | {lost[0] if lost else 'nothing was lost'} |\n"
        is_good &= bool(lost)
    print(text)
    if write:
        PAGE.write_text(text)
    raise typer.Exit(not is_good)


if __name__ == "__main__":
    typer.run(main)

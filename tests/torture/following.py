"""`python -m tests.torture.following`: `flowguard analyze --follow`, killed over and over.

A directory of runs, or with `--topic` one of a real Kafka, grows all the time. The follower and its
Java are killed with SIGKILL as soon as a chosen file appears, or at a random time after it, and
started again. At the end its summary must equal that of a follower that was never killed.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer

from flowguard.address import KafkaTopic
from flowguard.telemetry.pending import Portion
from flowguard.telemetry.recording import Recording
from flowguard.telemetry.schema import RUN, SAMPLES, VERSION
from flowguard.telemetry.topic import RunsInTopic
from spark_analysis.following import SUMMARY
from tests.spark_analysis.conftest import JARS, SHORT_JOBS
from tests.spark_analysis.recorded import values
from tests.support.apart import command
from tests.support.kafka import kafka
from tests.support.patience import HANG_S
from tests.support.reaper import reap_at_the_end

FIRST = "checkpoint/metadata"
"""Written once."""
PLACES = (
    "spark.log",  # Java starts.
    "checkpoint/sources/0/*",  # The files of a batch are chosen.
    "checkpoint/offsets/*",  # The batch begins.
    "checkpoint/state/0/*/*.delta",
    SUMMARY,
    "checkpoint/commits/*",  # The batch is over.
)
PLACES_OF_A_TOPIC = (
    "checkpoint-kafka/offsets/*",
    "runs/*/.*.part",
    "runs/*/*.parquet",
    "checkpoint-kafka/commits/*",
)
RUNS = tuple(f"live-20261130T12000{number}Z-{number}" for number in range(3))
ROWS = 50
"""Rows of a file."""
DELAY_MAX_S = 4.0
"""Longest time from the file to the kill."""
GROWS_S = 1.0


class Kill(NamedTuple):
    """A kill when a new file has appeared at the place below the follower's directory."""

    place: str
    delay_s: float = 0.0


Grow = Callable[[], int]
"""Add samples to the source; return how many there are now."""


def samples(random: Random, begin_s: float) -> list[tuple[Any, ...]]:
    """Rows of some minutes."""
    rows = [
        {
            "t_s": begin_s + number * 4.0,
            "is_alive": True,
            "window": random.uniform(1.0, 100.0),
            "pressure_ratio": random.random(),
            "accepted_count": random.randrange(1_000),
            "busy_s": random.random(),
        }
        for number in range(ROWS)
    ]
    return [values(SAMPLES, row) for row in rows]


def growing_directory(live: Path, random: Random) -> Grow:
    """Return a function that adds a complete file to one of several runs."""
    recordings = [Recording(live / run, run) for run in RUNS]
    count = 0

    def grow() -> int:
        nonlocal count
        recording = random.choice(recordings)
        recording.extend(SAMPLES, samples(random, count))
        recording.rotate()
        count += ROWS
        return count

    return grow


def growing_topic(topic: KafkaTopic, random: Random) -> Grow:
    """Return a function that sends a message of one of several runs, each of another broker."""
    senders = {run: RunsInTopic(topic) for run in RUNS}
    count = 0

    def grow() -> int:
        nonlocal count
        run = random.choice(RUNS)
        portion = Portion(
            run, values(RUN, {"schema_version": VERSION}), {SAMPLES.name: samples(random, count)}
        )
        senders[run].write([portion], 0.0)
        count += ROWS
        return count

    return grow


def following(source: str, out: Path) -> AbstractContextManager["subprocess.Popen[str]"]:
    words = ("analyze", source, "--follow", "--out", str(out), "--master", "local[2]")
    return command(*words, environment={"PYSPARK_SUBMIT_ARGS": JARS + SHORT_JOBS})


def minutes(out: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        found: list[dict[str, Any]] = json.loads((out / SUMMARY).read_text())["minutes"]
        return found
    return []


def has_counted(out: Path) -> int:
    return sum(row["samples_count"] for row in minutes(out))


def files(out: Path, place: str) -> set[tuple[Path, int]]:
    found = set()
    for path in out.glob(place):
        with suppress(FileNotFoundError):
            found.add((path, path.stat().st_mtime_ns))
    return found


def kill_at(source: str, out: Path, kill: Kill, grow: Grow = lambda: 0) -> None:
    """Start it, and kill it when a new file has appeared at the place."""
    before = files(out, kill.place)
    with following(source, out) as process:
        begun_s = grown_s = time.monotonic()
        while files(out, kill.place) <= before:
            check_runs(process, begun_s)
            if time.monotonic() > grown_s + GROWS_S:
                grow()
                grown_s = time.monotonic()
            time.sleep(0.005)
        time.sleep(kill.delay_s)


def follow_until(source: str, out: Path, count: int) -> list[dict[str, Any]]:
    """Follow until this number of samples is in the summary; return it."""
    with following(source, out) as process:
        begun_s = time.monotonic()
        while has_counted(out) < count:
            check_runs(process, begun_s)
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, said
    return minutes(out)


def check_runs(process: "subprocess.Popen[str]", begun_s: float) -> None:
    assert process.poll() is None, process.communicate()[0]
    assert time.monotonic() < begun_s + HANG_S


def torture(source: str, grow: Grow, out: Path, kills: Sequence[Kill]) -> list[dict[str, Any]]:
    """Kill it so often; return the summary of all samples."""
    grow()
    for kill in kills:
        kill_at(source, out, kill, grow)
        grow()
        where = f"{kill.delay_s:.1f} s after {kill.place}"
        typer.echo(f"killed {where}: {has_counted(out)} samples in the summary")
    return follow_until(source, out, grow())


def main(
    kills: Annotated[int, typer.Option(min=1)] = 20,
    seed: Annotated[int, typer.Option()] = 1,
    topic: Annotated[bool, typer.Option(help="Follow a topic of a real Kafka.")] = False,
) -> None:
    """Kill `analyze --follow`; exit with 1 if its summary differs."""
    reap_at_the_end()
    random = Random(seed)
    chosen = (*PLACES, *(PLACES_OF_A_TOPIC if topic else ()))
    planned = [Kill(FIRST)]
    planned += [
        Kill(place, delay_s)
        for place in chosen * kills
        for delay_s in (0.0, random.uniform(0.0, DELAY_MAX_S))
    ][: kills - 1]
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if topic:
            servers = stack.enter_context(kafka(folder / "kafka")).servers
            source = f"kafka://{servers}/telemetry"
            grow = growing_topic(KafkaTopic.parse(source), random)
        else:
            source = str(folder / "live")
            grow = growing_directory(folder / "live", random)
        killed = torture(source, grow, folder / "killed", planned)
        whole = follow_until(source, folder / "whole", has_counted(folder / "killed"))
    typer.echo(
        f"{kills} kills: {sum(row['samples_count'] for row in killed)} samples in {len(killed)} "
        f"minutes, {sum(one not in whole for one in killed)} of them not as without kills"
    )
    raise typer.Exit(killed != whole)


if __name__ == "__main__":
    typer.run(main)

"""`python -m tests.torture`, or `make torture`: kill a broker some thousand times.

Rounds of their own directory and seed, so that what is found can be repeated without the others.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import SystemRandom
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.support.kafka import kafka
from tests.support.reaper import reap_at_the_end
from tests.torture.redis_faults import FAULTS, LEVELS, PAIRS, RedisTorture, place_for
from tests.torture.restart import BACKLOGS, RESTART_OBJECTIVE_S, measure
from tests.torture.run import Torture
from tests.torture.stores import APPLYING, KAFKA_FILE, STORES
from tests.torture.verdict import Verdict

ROUND_KILLS = 500
FINDINGS_SHOWN = 20

console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def main(
    kills: Annotated[int, typer.Option(min=1, help="How often a broker is killed.")] = 3_000,
    seed: Annotated[
        int | None, typer.Option(help="Of the first round; absent: a random one.")
    ] = None,
    store: Annotated[str, typer.Option(help=f"One of {', '.join(STORES)}.")] = "rocks",
    round_kills: Annotated[int, typer.Option("--round", min=1, help="Kills of a round.")] = (
        ROUND_KILLS
    ),
    restarts: Annotated[bool, typer.Option(help="Time restarts with 100,000 messages.")] = True,
    fault: Annotated[
        str, typer.Option(help=f"Of the Redis server, with --store redis: {', '.join(FAULTS)}.")
    ] = "kill",
    layout: Annotated[str, typer.Option(help="Of the queues in Redis: stream or zset.")] = "stream",
    level: Annotated[
        str | None, typer.Option(help=f"What a commit on Redis is: {', '.join(LEVELS)}.")
    ] = None,
) -> None:
    """Exit code 1: something was found, and the directory of that round is kept."""
    kept_in = tempfile.gettempdir()  # Afterwards everything that is temporary ends with us.
    reap_at_the_end()
    if store not in STORES:
        raise typer.BadParameter(f"no store {store!r}; one of {', '.join(STORES)}")
    if fault not in FAULTS:
        raise typer.BadParameter(f"no fault {fault!r}; one of {', '.join(FAULTS)}")
    level = level or ("replicated" if fault in PAIRS else "fsync")
    if level not in LEVELS:
        raise typer.BadParameter(f"no level {level!r}; one of {', '.join(LEVELS)}")
    is_redis, has_kafka = store == "redis", store in APPLYING
    how = f"--store {store}" + f" --fault {fault} --layout {layout} --level {level}" * is_redis
    seed = SystemRandom().randrange(10_000) if seed is None else seed
    total: Counter[str] = Counter()
    with Progress(
        TextColumn("{task.completed} of {task.total} kills"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("", total=kills, state="")

        def show(verdict: Verdict) -> None:
            progress.update(
                task,
                completed=total["kills"] + verdict.kills.total(),
                state=f"seed {verdict.seed}, {verdict.acknowledged} acknowledged, "
                f"restart {verdict.restart_ms}",
            )

        while total["kills"] < kills:
            count = min(round_kills, kills - total["kills"])
            with tempfile.TemporaryDirectory(prefix="torture-") as name:
                folder = Path(name)
                if is_redis:
                    with place_for(fault, level, folder / "redis-data") as place:
                        torture = RedisTorture(
                            folder,
                            place,
                            fault=fault,
                            level=level,
                            layout=layout,
                            kills=count,
                            seed=seed,
                            on_kill=show,
                        )
                        verdict = torture.run()
                    total["faults"] += torture.fault_count
                    total["refused"] += torture.refused_count
                else:
                    with _kafka_beside(folder) if has_kafka else nullcontext():
                        run = Torture(folder, kills=count, seed=seed, store=store, on_kill=show)
                        verdict = run.run()
                console.print(str(verdict), markup=False)
                if verdict.findings:
                    options = f"--seed {seed} --kills {count} {how}"
                    _complain(verdict, folder, kept_in, options)
            seed += 1
            total["kills"] += verdict.kills.total()
            total["messages"] += verdict.acknowledged
            total["torn"] += verdict.torn
    twice = f"{total['torn']} of QoS 2 twice" + ", as docs/operate/kafka.md allows" * has_kafka
    console.print(
        f"{total['kills']} kills, {total['messages']} messages acknowledged: none lost, {twice}, "
        "all in order"
    )
    if is_redis:
        console.print(
            f"{total['faults']} times {fault}, layout {layout}, level {level}; "
            f"{total['refused']} messages refused"
        )
    elif restarts and not has_kafka:
        _time_restarts(store)


@contextmanager
def _kafka_beside(folder: Path) -> Iterator[None]:
    with kafka(folder / "kafka") as server:
        (folder / KAFKA_FILE).write_text(f"{server.servers} torture")
        yield


def _complain(verdict: Verdict, folder: Path, kept_in: str, options: str) -> None:
    console.print(f"{len(verdict.findings)} findings:", style="red")
    for finding in verdict.findings[:FINDINGS_SHOWN]:
        console.print(finding, markup=False)
    kept = tempfile.mkdtemp(prefix="torture-found-", dir=kept_in)
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    console.print(f'again: make torture ARGS="{options}"; its directory: {kept}', markup=False)
    raise typer.Exit(1)


def _time_restarts(store: str) -> None:
    for sessions, messages in BACKLOGS:
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            restart = measure(Path(folder), sessions, messages, store, cold=True)
        met = "met" if restart.connected_s < RESTART_OBJECTIVE_S else "missed"
        console.print(f"{restart}; objective {RESTART_OBJECTIVE_S:g} s {met}", markup=False)


if __name__ == "__main__":
    typer.run(main)

"""`flowguard analyze`: from runs to tables and a report.

`flowguard` finds it as an entry point. Modules that need Spark are imported when the command is
called; if they are missing, `flowguard` names the package to install.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spark_analysis import terminal

Since = Annotated[
    datetime | None,
    typer.Option("--from", metavar="TIME", help="Omit live runs that began earlier, UTC."),
]
Until = Annotated[
    datetime | None,
    typer.Option(metavar="TIME", help="Omit live runs that began then or later, UTC."),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Watch one directory that a broker writes into, or one topic; Ctrl-C ends it.",
    ),
]
KafkaProperties = Annotated[
    Path | None,
    typer.Option(
        "--kafka-properties",
        metavar="FILE",
        help="How the topic is read: properties of a Kafka client, for TLS and passwords.",
    ),
]


def analyze(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUNS...",
            help="Directories of runs, or directories with such below them; with --follow also "
            "kafka://HOST:PORT/TOPIC.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory for report.html and tables/.")
    ],
    master: terminal.Master = terminal.LOCAL,
    memory: terminal.Memory = None,
    partitions: terminal.Partitions = terminal.PARTITIONS,
    since: Since = None,
    until: Until = None,
    follow: Follow = False,
    kafka_properties: KafkaProperties = None,
) -> None:
    """Analyse runs on Spark; write a report and tables.

    The report compares policies and parameter sets, with the mean and interval of their seeds. It
    names and omits runs that are damaged, unfinished or of another version.

    --follow instead writes a summary per minute to the terminal and to DIR/running.json, and
    continues it after a restart. Runs from a topic are stored in DIR/runs, and can
    be analysed like others.
    """
    console = terminal.quiet_console()
    with console.status("loading Spark"):
        from spark_analysis.java import find_java
        from spark_analysis.job import SparkJob, follow_job, run_job
        from spark_analysis.runs.client_properties import client_properties
        from spark_analysis.runs.examination import began_between
        from spark_analysis.runs.topic import RUNS, place_of
        from spark_analysis.tables import FOLDER

    with terminal.exits(console):
        if follow and (len(runs) != 1 or since or until):
            why = "--follow watches one directory, or one topic, without --from and --until."
            raise terminal.wrong_argument(why)
        topic = place_of(runs[0]) if follow else None
        if kafka_properties and not topic:
            why = "--kafka-properties is for topics only: add --follow kafka://HOST:PORT/TOPIC."
            raise terminal.wrong_argument(why)
        properties = client_properties(kafka_properties) if kafka_properties else None
        paths = [] if topic is not None else [Path(run) for run in runs]
        terminal.check_directories(paths)
        java = find_java()
        terminal.make_directories(out, out / (RUNS if topic else "" if follow else FOLDER))
        if follow:
            source = topic or paths[0]
            follow_job(source, out, master, properties, memory_gib=memory, console=Console())
            return
        options = terminal.SparkOptions(master, memory, partitions)
        with terminal.progress(console) as shown:
            job = SparkJob(paths, out, options, shown)
            result = run_job(job, began_between(since, until))
    terminal.say(console, result.lines())
    terminal.say(console, [f"{java}, Spark on {master}"], style="dim")

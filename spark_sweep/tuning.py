"""`flowguard tune`: limits by runs that exist, or by simulations of a recorded run (`--like`)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ValidationError

from flowguard.config import FlowSettings
from flowguard.errors import ConfigError
from simulations.fitting.recorded import read_run
from simulations.fitting.writing import scenario_toml
from simulations.scenario_files.complaints import refusal
from simulations.scenario_files.loading import load, read_toml
from spark_analysis import terminal
from spark_sweep.scenario_command import write_like

if TYPE_CHECKING:
    from spark_analysis.tuner.objective import Objective

EXIT_REFUSED: Final = 3
"""Nothing is recommended, because the runs do not support it."""
SEEDS: Final = 6
OF_CONNECTS: Final = ("time_to_connect", "retries", "admission")
"""Questions whose answers depend on the limits of CONNECTs."""
CONNECT_LIMITS: Final[dict[str, tuple[float, ...]]] = {
    "connects_in_process_max": (16, 128, 1_024),
    "connect_buffer_max": (100, 10_000),
}
WINDOW_LIMITS: Final[dict[str, tuple[float, ...]]] = {
    "window_max": (10, 30, 100, 300),
    "store_objective_s": (0.075, 0.15),
}
"""Values of limits that are tried besides those of the run."""


def tune(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS", help="Directories of runs, or with such below them."),
    ] = None,
    *,
    objective: Annotated[
        str,
        typer.Option(
            metavar="OBJECTIVE", help="A TOML file, or one of: goodput, connect, utility."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Directory for limits.toml, tuning.html and tables/."
        ),
    ],
    like: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Simulate the load of this recorded run, without RUNS."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Policy whose limits are chosen.")] = "flowguard",
    master: terminal.Master = terminal.LOCAL,
    memory: terminal.Memory = None,
    partitions: terminal.Partitions = terminal.PARTITIONS,
) -> None:
    """Choose limits by recorded runs.

    It writes limits.toml and a page with the reasons.

    Runs whose parameters have a key of section `flow` try other limits; those without are the
    defaults, and everything is compared with them, seed by seed. Limits are chosen on one part of
    the seeds and judged on the other. With --like, the limits of the recorded run take the place of
    the defaults.

    If the runs do not support a recommendation, one sentence gives the reason, and the exit
    code is 3.
    """
    from spark_analysis.tuner import limits_file

    spark = terminal.SparkOptions(master, memory, partitions)
    with terminal.exits(terminal.quiet_console()):
        try:
            if (like is None) == (not runs):
                raise ConfigError("Give RUNS, or --like with a recorded run.")
            wanted = load_objective(objective)
            if like is not None:
                runs = [simulate_like(like, wanted, out, master)]
        except ConfigError as error:
            raise terminal.wrong_argument(str(error)) from error
        is_chosen = choose(runs or [], wanted, out, policy, spark)
    if not is_chosen:
        raise typer.Exit(EXIT_REFUSED)
    if like is not None:
        file = out / limits_file.NAME
        words = f"# Simulated under the load of the recorded run {like}.\n"
        file.write_text(words + file.read_text())


def load_objective(name: str) -> "Objective":
    """The objective of a file, or one of those that go by their name. Raises ConfigError."""
    from spark_analysis.tuner.objective import INCLUDED, Objective

    path = INCLUDED.get(name, Path(name))
    if not path.exists():
        known = ", ".join(sorted(INCLUDED))
        raise ConfigError(f"There is no objective {name}: neither a file nor {known}")
    try:
        return Objective.model_validate(read_toml(path))
    except ValidationError as error:
        raise refusal(path, error, Objective, unknown="see docs/operate/tuning.md") from error


def simulate_like(like: Path, objective: "Objective", out: Path, master: str) -> Path:
    """Simulate the load of a recorded run under other limits; return the directory of the runs.
    Raises ConfigError."""
    from spark_sweep.command import sweep

    console = terminal.quiet_console()
    run = read_run(like)
    terminal.make_directories(out)
    file, grid = out / f"{run.run_id}.toml", out / "grid.toml"
    terminal.say(console, [f"- {note}" for note in write_like(run, file)])
    limits = limits_to_try(objective, load(str(file)).scenario.flow)
    table = {"seeds": SEEDS, "scenarios": [file.name], "limits": {"flow": limits}}
    grid.write_text(scenario_toml(table))
    sweep(grid, out / "sweep", master)
    return out / "sweep" / "runs"


def limits_to_try(objective: "Objective", flow: FlowSettings) -> dict[str, list[Any]]:
    """Return the values of each limit on which the objective depends; the run's is one of them."""
    questions = {term.metric.partition(".")[0] for term in objective.objectives}
    values = WINDOW_LIMITS if questions.isdisjoint(OF_CONNECTS) else CONNECT_LIMITS
    return {key: sorted({*tried, getattr(flow, key)}) for key, tried in values.items()}


def choose(
    runs: list[Path], objective: "Objective", out: Path, policy: str, spark: terminal.SparkOptions
) -> bool:
    """Choose limits and print the choice; False if the runs do not support a recommendation.
    Raises JobFailed."""
    console = terminal.quiet_console()
    with console.status("loading Spark"):
        from spark_analysis.java import find_java
        from spark_analysis.job import SparkJob
        from spark_analysis.tables import FOLDER
        from spark_analysis.tuner.job import run_tuning

    terminal.check_directories(runs)
    java = find_java()
    terminal.make_directories(out, out / FOLDER)
    with terminal.progress(console) as shown:
        result = run_tuning(SparkJob(runs, out, spark, shown), objective, policy)
    terminal.say(console, result.lines())
    terminal.say(console, [f"{java}, Spark on {spark.master}"], style="dim")
    return result.limits is not None

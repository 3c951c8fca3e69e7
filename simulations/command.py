"""`flowguard simulate`: one scenario under several policies, on the same arrivals."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import inf, isfinite
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from flowguard.config import PolicyName
from flowguard.errors import ConfigError
from flowguard.flow.policies import POLICIES
from simulations.calibration.costs import flat_costs
from simulations.results.run import BEYOND, Summary, run
from simulations.results.view import screen
from simulations.scenario_files.complaints import nearest
from simulations.scenario_files.loading import LoadedScenario, change, load, names, parameters
from simulations.scenario_files.reference import keys_toml
from simulations.world import World

if TYPE_CHECKING:
    from simulations.results.archive import Archive

EXIT_INTERRUPTED = 130
EXIT_VIOLATION = 1


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="Name from --list, or a .toml or .py file."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Overload policy; repeatable, to compare.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Random seed; repeatable, for a mean.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Clients of all populations together.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Broker nodes.")] = None,
    duration: Annotated[float | None, typer.Option(help="Maximum virtual time, seconds.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Value of a key in the scenario; repeatable."
        ),
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Costs of work, from flowguard calibrate.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for recorded runs, Parquet.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the scenarios and exit.")] = False,
    show_keys: Annotated[
        bool, typer.Option("--keys", help="Print the keys of a scenario file and exit.")
    ] = False,
) -> None:
    """Replay a crowd in virtual time against several policies.

    They are those of flowguard and of other brokers.
    """
    width = None if sys.stdout.isatty() else 80
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    try:
        if show_list:
            _explain(console)
            return
        if show_keys:
            sys.stdout.write(keys_toml())
            return
        if scenario is None:
            raise ConfigError("which SCENARIO? flowguard simulate --list explains them")
        policies = [_policy(name) for name in dict.fromkeys(policy or ["flowguard"])]
        given: dict[str, Any] = {"clients": clients, "nodes": nodes, "duration_s": duration}
        changes = _changes(given, costs, sets or ())
        plans = [load(scenario, changes | chosen) for chosen in _seeds(seed)]
        archive = _archive(out, plans, policies)
    except ConfigError as error:
        _refuse(error)
    groups, interrupted = _run_all(plans, policies, archive, quiet=as_json)
    if as_json:
        sys.stdout.write(_json(plans[0], groups))
    elif groups:
        title = Text.assemble((plans[0].name, "bold"), f": {plans[0].scenario.title}\n")
        console.print(title)
        console.print(screen(plans[0].scenario, groups))
    violations = [run.violation for group in groups for run in group if run.violation]
    for violation in violations:
        typer.echo(violation, err=True)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if violations:
        raise typer.Exit(EXIT_VIOLATION)


def _changes(given: dict[str, Any], costs: Path | None, sets: Sequence[str]) -> dict[str, Any]:
    """Changes by dotted key; the more specific option wins."""
    found = {} if costs is None else flat_costs(costs)
    found |= {key: value for key, value in given.items() if value is not None}
    return found | dict(change(text) for text in sets)


def _archive(
    out: Path | None, plans: Sequence[LoadedScenario], policies: Sequence[PolicyName]
) -> "Archive | None":
    """The archive of the runs; raises ConfigError before the first run, not after an hour."""
    if out is None:
        return None
    # Here, because it needs Parquet, which a summary does not.
    from simulations.results.archive import Archive

    archive = Archive(out)
    for plan in plans:
        for policy in policies:
            archive.check(plan, policy)
    return archive


def _refuse(error: ConfigError) -> NoReturn:
    typer.echo(str(error), err=True)
    raise typer.Exit(2) from error


def _policy(name: str) -> PolicyName:
    if name not in POLICIES:
        near = nearest(name, list(POLICIES)) or f"; there are {', '.join(POLICIES)}"
        raise ConfigError(f"--policy {name}: no policy of that name{near}")
    return name


def _seeds(seeds: list[int] | None) -> list[dict[str, int]]:
    return [{"seed": number} for number in dict.fromkeys(seeds)] if seeds else [{}]


def _explain(console: Console) -> None:
    for name in names():
        scenario = load(name).scenario
        console.print(Text.assemble((name, "bold"), f": {scenario.title}"))
        console.print(Padding(Text(scenario.description), (0, 0, 0, 2)))
        given = [f"{key}={value}" for key, value in parameters(name).items()]
        if given:
            text = f"parameters, for --set: {', '.join(given)}"
            console.print(Padding(Text(text, "dim"), (0, 0, 0, 2)))
        console.print()


# --- running ---------------------------------------------------------------------------------


class _Interrupt:
    """Ctrl-C, noticed between two steps; a second one ends the process at once."""

    def __init__(self) -> None:
        self.wanted = False

    def _hear(self, _: int, __: FrameType | None) -> None:
        self.wanted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _run_all(
    plans: Sequence[LoadedScenario],
    policies: Sequence[PolicyName],
    archive: "Archive | None",
    *,
    quiet: bool,
) -> tuple[list[list[Summary]], bool]:
    """The runs that were begun, by policy, and whether they were interrupted."""
    interrupt = _Interrupt()
    groups: list[list[Summary]] = []
    with interrupt.listening(), _progress(quiet=quiet) as progress:
        for policy in policies:
            group: list[Summary] = []
            for plan in plans:
                if not interrupt.wanted:
                    group.append(_run_one(plan, policy, archive, progress, interrupt))
            if group:
                groups.append(group)
    return groups, interrupt.wanted


def _run_one(
    plan: LoadedScenario,
    policy: PolicyName,
    archive: "Archive | None",
    progress: Progress,
    interrupt: _Interrupt,
) -> Summary:
    scenario = plan.scenario
    task = progress.add_task(policy, total=scenario.duration_s, clients=0)

    def watch(world: World) -> bool:
        _show(progress, task, world)
        return not interrupt.wanted

    if archive is None:
        return run(scenario, policy, watch=watch)
    return archive.record(plan, policy, watch, even_if_stopped=True)


def _progress(*, quiet: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(24),
        TextColumn("{task.completed:6.1f} s, {task.fields[clients]:,} connected,"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def _show(progress: Progress, task: TaskID, world: World) -> None:
    connected = sum(population.connected_count for population in world.populations)
    now_s = world.engine.now_s
    total_s = world.scenario.duration_s if world.ended_s is None else now_s
    progress.update(task, completed=now_s, total=total_s, clients=connected)


def _json(plan: LoadedScenario, groups: Sequence[Sequence[Summary]]) -> str:
    runs = []
    for group in groups:
        for summary in group:
            fields: dict[str, Any] = asdict(summary)
            del fields["samples"]
            runs.append(fields | {"events_per_s": summary.events_per_s})
    said = {"scenario": plan.name, "changes": plan.changes, "runs": runs}
    return json.dumps(_finite(said), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """The value with words for what is infinite, which JSON has no number for."""
    match value:
        case dict():
            return {key: _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case float() if not isfinite(value):
            return BEYOND if value == inf else None
    return value

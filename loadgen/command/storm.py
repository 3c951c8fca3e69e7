"""`flowguard storm`: load for any MQTT broker."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeAlias

import trio
import typer
from rich.console import Console
from rich.text import Text

from flowguard.address import Address
from flowguard.cli.descriptors import require_descriptors
from flowguard.cli.signals import on_signals
from flowguard.errors import ConfigError
from flowguard.types import MQTT_5, MQTT_311
from loadgen.command import options as options
from loadgen.command.access import access_of
from loadgen.command.kit import compare as compare_reports
from loadgen.command.kit import experiments_of, require_processes, run_kit
from loadgen.command.options import StormKind, Version
from loadgen.command.results import STDOUT, require_writable, write
from loadgen.command.storm_view import show_result, watch
from loadgen.kit import Kit, KitPlan
from loadgen.storm import Crowd, CrowdPlan, RetryMode, RetryPolicy, Target, Traffic, TrafficPlan
from loadgen.storm.access import ClientAccess

GetAccess: TypeAlias = Callable[[str], tuple[Address, ClientAccess]]
"""Reads an address, with the options of access."""
KNOCK_S = 5.0
CONNECT_S = 60.0
LEVELS = {Version.V311: MQTT_311, Version.V5: MQTT_5}


def storm(
    words: options.Words,
    kit: options.IsKit = False,
    compare: options.IsComparison = False,
    only: options.Only = "",
    restart_command: options.RestartCommand = None,
    name: options.Name = "",
    pid: options.Pid = None,
    clients: options.Clients = 1000,
    pairs: options.Pairs = 100,
    version: options.Speak = None,
    retry: options.RetryKind = RetryMode.BACKOFF,
    retry_first: options.RetryFirst = 1.0,
    retry_max: options.RetryMax = 60.0,
    timeout: options.Timeout = 10.0,
    connect_seconds: options.ConnectSeconds = None,
    hold: options.Hold = 1.0,
    durable: options.Durable = False,
    user: options.UserName = None,
    password_file: options.PasswordFile = None,
    users: options.UsersFile = None,
    cafile: options.CaFile = None,
    cert: options.Cert = None,
    key: options.Key = None,
    seconds: options.Seconds = 10.0,
    qos: options.Qos = 1,
    payload: options.Payload = 64,
    outstanding: options.Outstanding = 10,
    backlog: options.Backlog = 200,
    rate: options.Rate = None,
    slow: options.Slow = 1,
    slow_rate: options.SlowRate = 0,
    catch_up: options.CatchUp = 30.0,
    json_to: options.JsonTo = None,
    html_to: options.HtmlTo = None,
    seed: options.Seed = 0,
) -> None:
    """Put load on a broker, and report the results of its clients.

    Ctrl-C ends a storm early and prints its result.

    The exit code is 1 if clients could not connect, an acknowledged message was lost or no message
    arrived; with --kit, if an experiment failed or had no clear result.
    """
    of_kit = {"--only": only, "--restart-command": restart_command, "--name": name, "--pid": pid}
    _require_results(kit, compare, of_kit, json_to, html_to)
    if compare:
        compare_reports(words, html_to)
    access = partial(access_of, user, password_file, users, cafile, cert, key)
    if kit:
        pids = pid or []
        of_plan = (version, clients, connect_seconds, restart_command, only, pids, access)
        plan = _kit_plan(words, *of_plan)
        tried = Kit(plan, name or words[0], pids=pids, fall_back=version is None)
        run_kit(tried, json_to, html_to)
    address, scenario = _address_and_scenario(words)
    traffic = None
    if scenario is not StormKind.CONNECT:
        shape = _shape(scenario, clients, pairs)
        traffic = TrafficPlan(*shape, qos, payload, outstanding, backlog, rate, seconds)
        if scenario is StormKind.SLOW_SUBSCRIBER:
            traffic = replace(traffic, backlog=None, late_s=catch_up, slow=min(slow, clients))
            traffic = replace(traffic, slow_bytes_per_s=slow_rate)
    count = clients if traffic is None else traffic.clients
    policy = RetryPolicy(retry, retry_first, retry_max)
    seconds_max = connect_seconds or CONNECT_S
    crowd = CrowdPlan(count, policy, timeout, seconds_max, hold, durable=durable, seed=seed)
    _storm(address, scenario, version or Version.V5, crowd, traffic, access, json_to)


def _storm(
    address: str,
    scenario: StormKind,
    version: Version,
    crowd: CrowdPlan,
    traffic: TrafficPlan | None,
    access: GetAccess,
    json_to: Path | None,
) -> NoReturn:
    """Run a storm, show and write its result, and exit with its code."""
    messages = Console(stderr=True)
    target = _resolve(address, access, crowd.clients, LEVELS[version], messages)
    title = f"{scenario} storm at {address}, MQTT {version}"
    finished = trio.run(_run, target, crowd, traffic, title, messages)
    to_stdout = json_to == STDOUT
    show_result(finished, title, messages if to_stdout else Console())
    setting = {"scenario": str(scenario), "target": address, "version": str(version)}
    result = {**setting, **finished.result()}
    write(json_to, json.dumps(result, indent=None if to_stdout else 2) + "\n")
    raise typer.Exit(_exit_code(finished))


def _require_results(
    kit: bool,
    compare: bool,
    of_kit: Mapping[str, object],
    json_to: Path | None,
    html_to: Path | None,
) -> None:
    """Reject options without effect, and files that cannot be written, before any work begins."""
    without = [option for option, value in of_kit.items() if value and not kit]
    if without:
        raise typer.BadParameter(f"{', '.join(without)}: only with --kit")
    if html_to is not None and not (kit or compare):
        raise typer.BadParameter("--html needs --kit or --compare; for a storm use --json")
    if json_to is not None and compare:
        raise typer.BadParameter(
            "--json cannot be used with --compare: its inputs are JSON already"
        )
    try:
        require_writable(json_to, html_to)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def _address_and_scenario(words: Sequence[str]) -> tuple[str, StormKind]:
    if len(words) == 2 and words[1] in tuple(StormKind):
        return words[0], StormKind(words[1])
    raise typer.BadParameter(
        f"expected HOST:PORT SCENARIO, where SCENARIO is one of {', '.join(StormKind)}; "
        "or --kit HOST:PORT"
    )


def _kit_plan(
    words: Sequence[str],
    version: Version | None,
    clients: int,
    connect_s: float | None,
    restart_command: str | None,
    only: str,
    pids: Sequence[int],
    access: GetAccess,
) -> KitPlan:
    if len(words) != 1:
        raise typer.BadParameter("--kit takes one broker, HOST:PORT, and no scenario")
    try:
        chosen = experiments_of(only, restart_command)
        require_processes(pids)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    messages = Console(stderr=True)
    # A retry storm has twice as many clients.
    level = LEVELS[version or Version.V5]
    target = _resolve(words[0], access, 2 * clients, level, messages)
    plan = KitPlan(
        target, trio.current_time, clients, restart_command=restart_command, chosen=chosen
    )
    return replace(plan, connect_s=connect_s or plan.connect_s)


def _shape(scenario: StormKind, clients: int, pairs: int) -> tuple[int, int, int]:
    """Return the number of groups, and of publishers and subscribers of each group."""
    match scenario:
        case StormKind.PAIRS:
            return pairs, 1, 1
        case StormKind.FANOUT | StormKind.SLOW_SUBSCRIBER:
            return 1, 1, clients
        case _:
            return 1, clients, 1


def _resolve(
    address: str, get_access: GetAccess, connections: int, version: int, messages: Console
) -> Target:
    """Return the broker's address. Exits with an error if a requirement of the storm is missing."""
    try:
        place, access = get_access(address)
        assert place.port is not None
        require_descriptors(connections)
        # A crowd keeps on trying, but a mistyped port should be reported at once.
        found = Target.knock(place.host, place.port, version, KNOCK_S)
        return replace(found, access=access)
    except ConnectionRefusedError:
        why = f"no broker listens on {address}; start one, for example with: make serve"
    except ConfigError as error:
        why = str(error)
    except OSError as error:
        why = f"{address}: {error.strerror or error}"
    except UnicodeError:
        why = f"{address}: {place.host} is no name of a machine"
    messages.print(Text.assemble(("no storm", "red"), f": {why}"))
    raise typer.Exit(2)


async def _run(
    target: Target, crowd: CrowdPlan, plan: TrafficPlan | None, title: str, console: Console
) -> Crowd | Traffic:
    running: Crowd | Traffic
    if plan is None:
        running = Crowd(target, crowd, trio.current_time)
    else:
        running = Traffic(target, plan, crowd, trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(on_signals, running.stop)
        nursery.start_soon(watch, running, title, console)
        await running.run()
        nursery.cancel_scope.cancel()
    return running


def _exit_code(finished: Crowd | Traffic) -> int:
    if isinstance(finished, Traffic):
        tally = finished.crowd.tally
        is_bad = finished.tally.acknowledged_lost > 0 or finished.tally.received == 0
    else:
        tally, is_bad = finished.tally, False
    return 1 if is_bad or tally.gave_up or tally.trying or tally.lost else 0

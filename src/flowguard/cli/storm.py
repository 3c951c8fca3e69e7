"""`flowguard storm`: load for any MQTT broker."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import trio
import typer
from rich.console import Console

from flowguard.cli.descriptors import require_descriptors
from flowguard.cli.settings import parse_address
from flowguard.cli.signals import on_signals
from flowguard.cli.storm_view import show_result, watch
from flowguard.errors import ConfigError
from flowguard.storm import Crowd, CrowdPlan, Retry, RetryPolicy, Target, Traffic, TrafficPlan
from flowguard.types import MQTT_5, MQTT_311


class Scenario(StrEnum):
    """What a storm does."""

    CONNECT = "connect"
    PAIRS = "pairs"
    FANOUT = "fanout"
    FANIN = "fanin"


class Version(StrEnum):
    """The protocol that clients speak."""

    V311 = "3.1.1"
    V5 = "5.0"


LEVELS = {Version.V311: MQTT_311, Version.V5: MQTT_5}
CROWD, MESSAGES, RESULT = "Clients", "Messages (pairs, fanout, fanin)", "Result"


def storm(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="A broker.")],
    scenario: Annotated[
        Scenario,
        typer.Argument(
            help="connect: clients come all at once and stay. pairs: one publisher to one "
            "subscriber, many times. fanout: one to many. fanin: many to one."
        ),
    ],
    clients: Annotated[
        int,
        typer.Option(
            min=1,
            rich_help_panel=CROWD,
            help="Of connect; the many of fanout (subscribers) and fanin (publishers).",
        ),
    ] = 1000,
    pairs: Annotated[int, typer.Option(min=1, rich_help_panel=CROWD, help="Of pairs.")] = 100,
    version: Annotated[
        Version, typer.Option(rich_help_panel=CROWD, help="MQTT version.")
    ] = Version.V5,
    retry: Annotated[
        Retry, typer.Option(rich_help_panel=CROWD, help="What a client does after a failure.")
    ] = Retry.BACKOFF,
    retry_first: Annotated[
        float, typer.Option(min=0.001, rich_help_panel=CROWD, help="First wait, seconds.")
    ] = 1.0,
    retry_max: Annotated[
        float, typer.Option(min=0.001, rich_help_panel=CROWD, help="Longest wait, seconds.")
    ] = 60.0,
    timeout: Annotated[
        float, typer.Option(min=0.01, rich_help_panel=CROWD, help="For a CONNACK, seconds.")
    ] = 10.0,
    connect_seconds: Annotated[
        float, typer.Option(min=0.1, rich_help_panel=CROWD, help="How long clients try, at most.")
    ] = 60.0,
    hold: Annotated[
        float,
        typer.Option(
            min=0.0,
            rich_help_panel=CROWD,
            help="connect: how long connections stay when nobody tries any more, seconds.",
        ),
    ] = 1.0,
    durable: Annotated[
        bool,
        typer.Option("--durable", rich_help_panel=CROWD, help="Sessions that the broker stores."),
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=0.1, rich_help_panel=MESSAGES, help="How long they publish.")
    ] = 10.0,
    qos: Annotated[int, typer.Option(min=0, max=2, rich_help_panel=MESSAGES, help="QoS.")] = 1,
    payload: Annotated[
        int, typer.Option(min=16, max=1_000_000, rich_help_panel=MESSAGES, help="Bytes.")
    ] = 64,
    outstanding: Annotated[
        int,
        typer.Option(
            min=1,
            max=65_535,
            rich_help_panel=MESSAGES,
            help="Unacknowledged messages of a publisher, QoS 1 and 2.",
        ),
    ] = 10,
    backlog: Annotated[
        int,
        typer.Option(
            min=1, rich_help_panel=MESSAGES, help="Messages on their way to a subscriber, any QoS."
        ),
    ] = 200,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            rich_help_panel=MESSAGES,
            help="Messages per second of a publisher; otherwise as fast as the bounds allow.",
        ),
    ] = None,
    json_to: Annotated[
        Path | None,
        typer.Option("--json", rich_help_panel=RESULT, help="Write the result; -: to stdout."),
    ] = None,
    seed: Annotated[int, typer.Option(rich_help_panel=RESULT, help="Of the retry jitter.")] = 0,
) -> None:
    """Put load on a broker, and say what its clients saw.

    Ctrl-C ends a storm early and still gives its result.

    The exit code is 1 if clients did not get in or an acknowledged message was lost.
    """
    traffic = _traffic_plan(
        scenario, clients, pairs, qos, payload, outstanding, backlog, rate, seconds
    )
    count = clients if traffic is None else traffic.clients
    policy = RetryPolicy(retry, retry_first, retry_max)
    crowd = CrowdPlan(count, policy, timeout, connect_seconds, hold, durable, seed)
    messages = Console(stderr=True)
    try:
        host, port = parse_address(address)
        require_descriptors(count)
        target = Target.resolve(host, port, LEVELS[version])
    except ConfigError as error:
        messages.print(f"[red]no storm[/red]\n{error}", highlight=False)
        raise typer.Exit(2) from error
    except OSError as error:
        messages.print(f"[red]no storm[/red]: {address}: {error.strerror}", highlight=False)
        raise typer.Exit(2) from error
    title = f"{scenario} storm at {address}, MQTT {version}"
    finished = trio.run(_run, target, crowd, traffic, title, messages)
    setting = {"scenario": str(scenario), "target": address, "version": str(version)}
    result = {**setting, **finished.result()}
    to_stdout = json_to == Path("-")
    show_result(finished, title, messages if to_stdout else Console())
    if to_stdout:
        sys.stdout.write(json.dumps(result) + "\n")
    elif json_to is not None:
        json_to.write_text(json.dumps(result, indent=2) + "\n")
    raise typer.Exit(_exit_code(finished))


def _traffic_plan(
    scenario: Scenario,
    clients: int,
    pairs: int,
    qos: int,
    payload: int,
    outstanding: int,
    backlog: int,
    rate: float | None,
    seconds: float,
) -> TrafficPlan | None:
    match scenario:
        case Scenario.CONNECT:
            return None
        case Scenario.PAIRS:
            shape = (pairs, 1, 1)
        case Scenario.FANOUT:
            shape = (1, 1, clients)
        case Scenario.FANIN:
            shape = (1, clients, 1)
    return TrafficPlan(*shape, qos, payload, outstanding, backlog, rate, seconds)


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
        lost = finished.tally.acknowledged_lost
    else:
        tally, lost = finished.tally, 0
    return 1 if lost or tally.gave_up or tally.trying or tally.lost else 0

"""`flowguard serve`: a broker in the foreground."""

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import trio
import typer

from flowguard.address import KAFKA, Address, parse_address
from flowguard.app.broker import BrokerParts, build_broker
from flowguard.app.failures import EXIT_CONFIG, StartError, end_of
from flowguard.app.http_front import HttpPort
from flowguard.app.workers.shares import workers_of
from flowguard.broker.clock import unix_clock
from flowguard.broker.logs.output_lines import STDOUT
from flowguard.broker.server import Running
from flowguard.cli import serve_options as options
from flowguard.cli.console import refused
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.log_lines import log_ignored, log_to_stderr
from flowguard.cli.serve_options import HTTP_HOST, HTTP_PORT
from flowguard.cli.settings import read_limits
from flowguard.cli.signals import on_signals, start_signals
from flowguard.cli.sources import Sources, shadow_of
from flowguard.cli.systemd import StandingBy, systemd_socket, tell_systemd
from flowguard.config import LogSettings, Settings
from flowguard.errors import ConfigError
from flowguard.network_settings import HTTP_NONE
from flowguard.ops.condition import condition_of
from flowguard.ops.status import status_of

if TYPE_CHECKING:
    from flowguard.app.workers.supervisor import Supervisor


def serve(
    listen_on: options.Listen = None,
    cert: options.Cert = None,
    key: options.Key = None,
    client_ca: options.ClientCa = None,
    password_file: options.PasswordFile = None,
    token_keys: options.TokenKeys = None,
    token_audience: options.TokenAudience = None,
    acl: options.Acl = None,
    allow_all_topics: options.AllowAllTopics = False,
    allow_anonymous: options.AllowAnonymous = False,
    allow_plaintext: options.AllowPlaintext = False,
    data: options.Data = None,
    config: options.Config = None,
    limits: options.LimitsFile = None,
    workers: options.Workers = None,
    cluster: options.ClusterAddress = None,
    store: options.StoreName = None,
    redis_url: options.RedisUrl = None,
    takeover: options.Takeover = False,
    kafka_servers: options.KafkaServers = None,
    policy: options.PolicyOption = None,
    shadow_policy: options.ShadowPolicy = None,
    shadow: options.ShadowFile = None,
    record: options.Record = None,
    http: options.Http = None,
) -> None:
    """Run the broker.

    SIGTERM or Ctrl-C finishes the work in process and ends it.
    """
    log_to_stderr(LogSettings())
    given = {
        "flow.policy": ("--policy", policy),
        "flow.shadow_policy": ("--shadow-policy", shadow_policy),
        "network.listeners": ("--listen", listen_on),
        "network.cert": ("--cert", cert),
        "network.key": ("--key", key),
        "network.client_ca": ("--client-ca", client_ca),
        "network.password_file": ("--password-file", password_file),
        "network.token_keys": ("--token-keys", token_keys),
        "network.token_audience": ("--token-audience", token_audience),
        "network.acl_file": ("--acl", acl),
        "network.allow_all_topics": ("--allow-all-topics", allow_all_topics or None),
        "network.allow_anonymous": ("--allow-anonymous", allow_anonymous or None),
        "network.allow_plaintext": ("--allow-plaintext", allow_plaintext or None),
        "http.address": ("--http", http),
        "node.workers": ("--workers", workers),
        "store.data_dir": ("--data", data),
        "cluster.address": ("--cluster", cluster),
        "store.kind": ("--store", store),
        "store.application_store": ("--kafka-servers", kafka_servers and "kafka"),
        "redis.url": ("--redis-url", redis_url),
        "redis.takeover": ("--takeover", takeover or None),
        "kafka.servers": ("--kafka-servers", kafka_servers),
        _record_setting(record): ("--record", record),
    }
    chosen = {name: option for name, option in given.items() if option[1] is not None}
    sources = Sources(chosen, config, limits, shadow)
    with start_signals():
        broker = _build(sources)
    try:
        if isinstance(broker, BrokerParts):
            trio.run(run_broker, broker, _present)
            return
        trio.run(run_supervisor, broker)
    except BaseExceptionGroup as group:
        raise refused(*end_of(group)) from group
    if broker.exit_code:
        raise typer.Exit(broker.exit_code)


def _build(sources: Sources) -> "BrokerParts | Supervisor":
    """Read the settings and open all parts; print the reason and exit if one fails."""
    try:
        shadow = read_limits(sources.shadow)
        loaded = sources.load()
        settings = loaded.bounds.settings
        log_to_stderr(settings.log)
        use_all_descriptors()
        sources.log_limits(loaded, shadow)
        count = workers_of(settings)
        port, data = http_port(settings), settings.store.data_dir
        if count > 1 or settings.cluster.address is not None:
            # Imported on demand, because a single worker needs none of it.
            from flowguard.app.workers.supervisor import build_supervisor

            return build_supervisor(loaded.bounds, count, data, port, sources.as_json())
        listener = systemd_socket(os.environ, os.getpid()) if settings.redis.takeover else None
        with nullcontext() if listener is None else closing(listener):
            return build_broker(
                loaded.bounds,
                data=data,
                shadow=shadow_of(shadow, settings),
                http=port,
                read_settings=lambda: sources.load().settings,
                origins=loaded.origins,
                own_process=True,
                on_wait=StandingBy(listener, unix_clock()),
            )
    except ConfigError as error:
        raise refused("flowguard cannot start", str(error), EXIT_CONFIG) from error
    except StartError as error:
        raise refused(error.what, error.hint, error.exit_code) from error


def _record_setting(record: str | None) -> str:
    is_topic = record is not None and record.startswith(KAFKA)
    return "telemetry.record_topic" if is_topic else "telemetry.record_dir"


def http_port(settings: Settings) -> HttpPort | None:
    """Return the address for HTTP, or None without HTTP."""
    address = settings.http.address
    if address == HTTP_NONE:
        return None
    if address is not None:
        return HttpPort(*parse_address(address), is_required=True)
    ports = [Address.parse(listener.address).port for listener in settings.network.listeners]
    # A broker on a free port may be one of several on this machine.
    return HttpPort(HTTP_HOST, 0 if 0 in ports else HTTP_PORT, is_required=False)


async def run_broker(
    broker: BrokerParts,
    present: Callable[[Running, trio.Nursery], None],
    *,
    is_worker: bool = False,
) -> None:
    """Run a broker until a signal; `present` reports that it has started."""
    async with trio.open_nursery() as nursery:
        started: list[Running] = []
        has_started = trio.Event()

        def stop() -> None:
            if started:
                started[0].stop.set()
            else:
                nursery.cancel_scope.cancel()

        async def reload_started() -> None:
            await has_started.wait()
            await broker.files.reload_on_signal(started[0].node)

        reload = partial(nursery.start_soon, reload_started)
        await nursery.start(partial(on_signals, stop, reload, is_worker=is_worker))
        nursery.start_soon(log_ignored)
        running: Running = await nursery.start(_run, broker, nursery.cancel_scope)
        started.append(running)
        has_started.set()
        # Otherwise the collector's first run, in the first crowd, would include all objects so far.
        gc.freeze()
        present(running, nursery)


def _present(running: Running, nursery: trio.Nursery) -> None:
    """Print the addresses, and report to systemd."""
    announce(running.addresses, running.http)
    nursery.start_soon(tell_systemd, running.stop, partial(_sentence, running))


def _sentence(running: Running) -> str:
    return condition_of(status_of(running.node, running.clock()))[1]


async def _run(
    broker: BrokerParts, process: trio.CancelScope, task_status: trio.TaskStatus[Running]
) -> None:
    """Run the broker, then end the process."""
    await broker.run(alone=True, task_status=task_status)
    process.cancel()


async def run_supervisor(supervisor: "Supervisor") -> None:
    """Run several workers until a signal."""
    async with trio.open_nursery() as nursery:
        reload = partial(nursery.start_soon, supervisor.reload_on_signal)
        await nursery.start(on_signals, supervisor.stop.set, reload)
        nursery.start_soon(log_ignored)
        http = await nursery.start(supervisor.run)
        if not supervisor.stop.is_set():
            announce(supervisor.addresses, http)
        nursery.start_soon(tell_systemd, supervisor.stop, supervisor.sentence)
        await supervisor.ended.wait()
        nursery.cancel_scope.cancel()


def announce(addresses: Sequence[Address], http: tuple[str, int] | None) -> None:
    for address in addresses:
        STDOUT.write(f"listening on {address.place} {address.scheme}\n")
    if http is not None:
        host, port = http
        STDOUT.write(f"http on http://{f'[{host}]' if ':' in host else host}:{port}/\n")

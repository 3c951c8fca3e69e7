"""`flowguard serve`: a broker in the foreground."""

import gc
import os
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import structlog
import trio

from flowguard.address import KAFKA, Address, parse_address
from flowguard.app.broker import BrokerParts, HttpPort, build_broker
from flowguard.app.failures import EXIT_CONFIG, StartError, end_of
from flowguard.broker.clock import unix_clock
from flowguard.broker.logs.output_lines import STDOUT
from flowguard.broker.server import Running
from flowguard.cli import serve_options as options
from flowguard.cli.console import refused
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.log_lines import log_ignored, log_to_stderr
from flowguard.cli.serve_options import HTTP_HOST, HTTP_NONE, HTTP_PORT
from flowguard.cli.settings import Given, Limits, LoadedSettings, load, read_limits, with_limits
from flowguard.cli.signals import on_signals, start_signals
from flowguard.cli.systemd import StandingBy, systemd_socket, tell_systemd
from flowguard.config import LogSettings
from flowguard.errors import ConfigError
from flowguard.flow.policies import MINDED
from flowguard.network_settings import NetworkSettings

log = structlog.get_logger()


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
    data: options.Data = Path("flowguard-data"),
    config: options.Config = None,
    limits: options.LimitsFile = None,
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
    """Run the broker; SIGTERM or Ctrl-C finishes the work in process and ends it."""
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
        "store.kind": ("--store", store),
        "store.application_store": ("--kafka-servers", kafka_servers and "kafka"),
        "redis.url": ("--redis-url", redis_url),
        "redis.takeover": ("--takeover", takeover or None),
        "kafka.servers": ("--kafka-servers", kafka_servers),
        _record_setting(record): ("--record", record),
    }
    chosen = {name: option for name, option in given.items() if option[1] is not None}
    with start_signals():
        broker = _build(chosen, config, data, limits, shadow, http)
    try:
        trio.run(_main, broker)
    except BaseExceptionGroup as group:
        raise refused(*end_of(group)) from group


def _build(
    given: Given,
    config: Path | None,
    data: Path,
    limits: Path | None,
    shadow: Path | None,
    http: str | None,
) -> BrokerParts:
    """Read the settings and open all parts; print the reason and exit if one fails."""
    try:
        shadow_limits = read_limits(shadow)

        def read() -> LoadedSettings:
            return load(config, os.environ, read_limits(limits), given)

        loaded = read()
        settings = loaded.bounds.settings
        log_to_stderr(settings.log)
        use_all_descriptors()
        if limits is not None:
            log.info("limits", file=str(limits), in_force=_in_force(limits, loaded))
        if shadow_limits is not None:
            log.info("shadow", file=str(shadow), **_judged(shadow_limits))
        listener = systemd_socket(os.environ, os.getpid()) if settings.redis.takeover else None
        with nullcontext() if listener is None else closing(listener):
            return build_broker(
                loaded.bounds,
                data=data,
                shadow=None if shadow_limits is None else with_limits(settings, shadow_limits),
                http=_http_port(http, settings.network),
                read_settings=lambda: read().settings,
                on_wait=StandingBy(listener, unix_clock()),
            )
    except ConfigError as error:
        raise refused("flowguard cannot start", str(error), EXIT_CONFIG) from error
    except StartError as error:
        raise refused(error.what, error.hint, error.exit_code) from error


def _record_setting(record: str | None) -> str:
    is_topic = record is not None and record.startswith(KAFKA)
    return "telemetry.record_topic" if is_topic else "telemetry.record_dir"


def _http_port(http: str | None, network: NetworkSettings) -> HttpPort | None:
    """Where HTTP is served; None: nowhere. Raises ConfigError."""
    if http == HTTP_NONE:
        return None
    if http is not None:
        return HttpPort(*parse_address(http), is_required=True)
    ports = [Address.parse(listener.address).port for listener in network.listeners]
    # A broker on a free port may be one of many on this machine.
    return HttpPort(HTTP_HOST, 0 if 0 in ports else HTTP_PORT, is_required=False)


def _in_force(limits: Path, loaded: LoadedSettings) -> dict[str, object]:
    """The values of a file of limits, except those that a variable or an option overrides."""
    values = loaded.settings.flow.model_dump()
    keys = [key for key, origin in loaded.origins.items() if origin == str(limits)]
    return {key: values[key] for key in (key.partition(".")[2] for key in keys)}


def _judged(limits: Limits) -> dict[str, object]:
    """The values that a shadow judges by, and the keys that no policy looks at."""
    judged = {key: value for key, value in limits.values.items() if key in MINDED}
    return {"judged": judged, "not_judged": sorted(limits.values.keys() - judged.keys())}


async def _main(broker: BrokerParts) -> None:
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

        await nursery.start(on_signals, stop, partial(nursery.start_soon, reload_started))
        nursery.start_soon(log_ignored)
        running: Running = await nursery.start(_run, broker, nursery.cancel_scope)
        started.append(running)
        has_started.set()
        # Else the collector's first look, in the first crowd, takes in what was made last here.
        gc.freeze()
        for address in running.addresses:
            _announce("listening", f"{address.place} {address.scheme}")
        if running.http is not None:
            _announce("http", _shown(running.http))
        nursery.start_soon(tell_systemd, running, running.clock)


def _announce(what: str, place: str) -> None:
    STDOUT.write(f"{what} on {place}\n")


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _run(
    broker: BrokerParts, process: trio.CancelScope, task_status: trio.TaskStatus[Running]
) -> None:
    """Run the broker; with it the process ends."""
    await broker.run(alone=True, task_status=task_status)
    process.cancel()

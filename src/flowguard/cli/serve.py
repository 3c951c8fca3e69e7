"""`flowguard serve`: a broker in the foreground."""

import errno
import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import trio
import typer

from flowguard.address import KAFKA, Address, KafkaTopic, parse_address
from flowguard.bounds import Bounds
from flowguard.broker.descriptors import Descriptors, descriptors_for, shortfalls
from flowguard.broker.doorway import Doorway, open_doorways
from flowguard.broker.output_lines import STDOUT
from flowguard.broker.server import Running, unix_clock
from flowguard.broker.server import serve as serve_broker
from flowguard.broker.stores import open_store
from flowguard.cli import serve_options as options
from flowguard.cli.console import SALVAGE, refused
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.doors import Doors, checks_of, read_token, rules_of, warn_of_expired
from flowguard.cli.log_lines import log_ignored, log_to_stderr
from flowguard.cli.plugins import needs_extra
from flowguard.cli.serve_options import HTTP_HOST, HTTP_NONE, HTTP_PORT
from flowguard.cli.settings import Given, Limits, LoadedSettings, load, read_limits, with_limits
from flowguard.cli.signals import on_signals, start_signals
from flowguard.cli.systemd import StandingBy, systemd_socket, tell_systemd
from flowguard.config import FlowSettings, LogSettings, Settings
from flowguard.errors import (
    ConfigError,
    CorruptionError,
    DataLostError,
    FlowguardError,
    LockedError,
    NoSpaceError,
    RemovedError,
    StoreError,
    SyncError,
)
from flowguard.flow.policies import MINDED
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.authentication import Hooks
from flowguard.stores import Store

if TYPE_CHECKING:
    from flowguard.telemetry.runs import RunsKept

EXIT_STORE = 73
"""The store cannot be opened, or failed later."""
REMOVED = "Start on a backup: flowguard serve --data COPY"
DAMAGED = f"{REMOVED}; or {SALVAGE}"
SUCCEEDED = (
    "No durable work was acknowledged since. To stand by for the store: flowguard serve --takeover"
)
FULL = "Free space on its disk, then start again. No acknowledged message is lost."
LOST = "Check the Redis server first; on restart the broker continues with the data it finds."
ADVICE: Final[dict[type[StoreError], str]] = {
    CorruptionError: DAMAGED,
    RemovedError: REMOVED,
    LockedError: SUCCEEDED,
    DataLostError: LOST,
    StoreError: "Nothing was acknowledged that is not stored. Look at the disk, then start again.",
}
EXIT_SYNC = 74
"""The disk failed to sync: nobody knows what is on it."""
E = TypeVar("E", bound=FlowguardError)

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
    """Run the broker until SIGTERM or Ctrl-C, then drain."""
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
        start = _prepare(chosen, config, data, limits, shadow, http)
    try:
        trio.run(_main, start)
    except BaseExceptionGroup as group:
        raise _ended(group) from group


def _prepare(
    given: Given,
    config: Path | None,
    data: Path,
    limits: Path | None,
    shadow: Path | None,
    http: str | None,
) -> "_Start":
    """Read the settings, listen, and open the store; print the reason and exit if one fails."""
    try:
        shadow_limits = read_limits(shadow)
        read = partial(_read, config, os.environ, limits, given)
        loaded = read()
        settings = loaded.bounds.settings
        log_to_stderr(settings.log)
        watching = None if shadow_limits is None else with_limits(settings, shadow_limits)
        http_address = _http_address(http, settings.network)
        use_all_descriptors()
        descriptors = descriptors_for(settings, on_disk=settings.store.kind == "rocks")
        runs = _open_runs(settings)
        checks, rules = checks_of(settings.network), rules_of(settings.network)
        token = read_token(settings.http.token_file)
        # Who stands by listens when its turn has come: until then its clients are another's.
        succeeded = _open(settings, data) if _stands_by(settings) else None
        doorways = _listen(settings.network)
    except ConfigError as error:
        raise refused("flowguard cannot start", str(error), 2) from error
    _warn(loaded, descriptors)
    http_listener = _listen_http(http_address, wanted=http is not None)
    if limits is not None:
        log.info("limits", file=str(limits), in_force=_in_force(limits, loaded))
    if shadow_limits is not None:
        log.info("shadow", file=str(shadow), **_judged(shadow_limits))
    try:
        opened = succeeded or _open(settings, data)
    except BaseException:
        for doorway in doorways:
            doorway.close()  # The file of a Unix socket goes, too.
        raise
    doors = Doors(loaded.settings, doorways, checks, rules, lambda: read().settings)
    http_port = None if http_listener is None else (http_listener, token)
    return _Start(loaded.bounds, watching, opened, doors, http_port, runs, descriptors)


def _read(
    config: Path | None, environ: Mapping[str, str], limits: Path | None, given: Given
) -> LoadedSettings:
    """Read the settings as they are now; raises ConfigError."""
    return load(config, environ, read_limits(limits), given)


def _warn(loaded: LoadedSettings, descriptors: Descriptors) -> None:
    """Log what was asked for and cannot be."""
    for why in shortfalls(loaded.settings, loaded.bounds, descriptors):
        log.warning("capacity lacking", why=why)
    warn_of_expired(loaded.settings.network)


def _listen(network: NetworkSettings) -> list[Doorway]:
    """Listen wherever the settings say, or say why not and exit; raises ConfigError."""
    try:
        return open_doorways(network)
    except OSError as error:
        raise refused(
            f"flowguard cannot listen on {error.filename}: {error.strerror}",
            "Is another broker running? A free port is chosen with --listen 127.0.0.1:0"
            if error.errno == errno.EADDRINUSE
            else "The address must be one of this machine's, for example 127.0.0.1:1883",
            1,
        ) from error


def _ended(group: BaseExceptionGroup[BaseException]) -> typer.Exit:
    """Say why it ended, as an exit; an error of another kind among them is raised."""
    unfit, others = group.split(ConfigError)
    if unfit is not None and others is None:
        return refused("flowguard cannot start", str(next(_leaves(unfit))), 2)
    failed, others = group.split(StoreError)
    if failed is None or others is not None:
        raise group
    cause = next(_leaves(failed))
    return refused(
        f"flowguard ends: its store failed: {cause}",
        next(what for kind, what in ADVICE.items() if isinstance(cause, kind)),
        EXIT_SYNC if isinstance(cause, SyncError) else EXIT_STORE,
    )


def _leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _stands_by(settings: Settings) -> bool:
    return settings.store.kind == "redis" and settings.redis.takeover


def _open(settings: Settings, data: Path) -> Store:
    """The store of the settings, in `data`; if it cannot be opened, say why and exit."""
    try:
        listener = systemd_socket(os.environ, os.getpid()) if _stands_by(settings) else None
        with nullcontext() if listener is None else closing(listener):
            return open_store(settings, data, StandingBy(listener, unix_clock()))
    except ConfigError as error:
        raise refused("flowguard cannot start", str(error), 2) from error
    except OSError as error:
        raise refused(
            f"flowguard cannot use {data}: {error.strerror}",
            "Choose another directory: --data DIRECTORY",
            1,
        ) from error
    except CorruptionError as error:
        raise refused(f"flowguard cannot use {data}: {error}", DAMAGED, EXIT_STORE) from error
    except NoSpaceError as error:
        raise refused(f"flowguard cannot use its store: {error}", FULL, EXIT_STORE) from error
    except StoreError as error:
        is_here = settings.store.kind == "rocks"
        what = f"{data} (--data)" if is_here else f"its store in {settings.store.kind}"
        if settings.store.application_store == "kafka":
            what = f"{what} with Kafka at {settings.kafka.servers}"
        raise refused(f"flowguard cannot use {what}", str(error), EXIT_STORE) from error


def _record_setting(record: str | None) -> str:
    is_topic = record is not None and record.startswith(KAFKA)
    return "telemetry.record_topic" if is_topic else "telemetry.record_dir"


def _open_runs(settings: Settings) -> "RunsKept | None":
    """Where the broker records itself; None: it does not. Raises ConfigError, StoreError."""
    directory, topic = settings.telemetry.record_dir, settings.telemetry.record_topic
    if directory is None and topic is None:
        return None
    try:
        # Here, because it needs pyarrow and aiokafka, which only who records has to have.
        if topic is not None:
            from flowguard.stores.kafka.connection.access import access_of
            from flowguard.telemetry.topic import RunsInTopic

            return RunsInTopic(KafkaTopic.parse(topic), access_of(settings.kafka))
        from flowguard.telemetry.runs import Runs
    except ModuleNotFoundError as error:
        typer.echo(needs_extra("telemetry" if topic is None else "telemetry,kafka"), err=True)
        raise typer.Exit(2) from error
    except StoreError as error:
        raise refused(f"flowguard cannot record in {topic}", str(error), 1) from error
    assert directory is not None
    try:
        return Runs(directory, settings.telemetry)
    except OSError as error:
        raise refused(
            f"flowguard cannot record in {directory}: {error.strerror}",
            "Choose another directory: --record DIRECTORY",
            1,
        ) from error


def _http_address(http: str | None, network: NetworkSettings) -> tuple[str, int] | None:
    """Where HTTP is served; None: nowhere. Raises ConfigError."""
    if http == HTTP_NONE:
        return None
    if http is not None:
        return parse_address(http)
    ports = [Address.parse(listener.address).port for listener in network.listeners]
    return HTTP_HOST, 0 if 0 in ports else HTTP_PORT  # Who asks for a free one may run many.


def _listen_http(address: tuple[str, int] | None, *, wanted: bool) -> socket | None:
    """The listener, or None where the port is taken: only who asked for HTTP is refused then."""
    if address is None:
        return None
    # Here, because it takes a tenth of a second that --help does not need.
    from flowguard.ops.http import listen as listen_http

    try:
        return listen_http(*address)
    except OSError as error:
        what = f"cannot serve HTTP on {_shown(address)}: {error.strerror}"
        hint = (
            f"Another address: --http {HTTP_HOST}:0 chooses a free port, --http none does without"
        )
        if wanted:
            raise refused(f"flowguard {what}", hint, 1) from error
        log.warning(f"{what}; running without it. {hint}")
        return None


def _in_force(limits: Path, loaded: LoadedSettings) -> dict[str, object]:
    """The values of a file of limits, except those that a variable or an option overrides."""
    values = loaded.settings.flow.model_dump()
    keys = [key for key, origin in loaded.origins.items() if origin == str(limits)]
    return {key: values[key] for key in (key.partition(".")[2] for key in keys)}


def _judged(limits: Limits) -> dict[str, object]:
    """The values that a shadow judges by, and the keys that no policy looks at."""
    judged = {key: value for key, value in limits.values.items() if key in MINDED}
    return {"judged": judged, "not_judged": sorted(limits.values.keys() - judged.keys())}


@dataclass(frozen=True, slots=True)
class _Start:
    """The parts that a broker is made of."""

    bounds: Bounds
    shadow: FlowSettings | None
    store: Store
    doors: Doors
    http: tuple[socket, bytes | None] | None
    """Its listener, and the token that other machines have to say; None: there is none."""
    runs: "RunsKept | None"
    descriptors: Descriptors


async def _main(start: _Start) -> None:
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
            await start.doors.reload_on_signal(started[0].node)

        await nursery.start(on_signals, stop, partial(nursery.start_soon, reload_started))
        nursery.start_soon(log_ignored)
        running: Running = await nursery.start(_serve, start, nursery.cancel_scope)
        started.append(running)
        has_started.set()
        progress = None
        if start.runs is not None:
            from flowguard.telemetry.recorder import Recorder

            recorder = Recorder(running, running.clock, start.runs)
            await nursery.start(recorder.run)
            progress = recorder.progress
        # Else the collector's first look, in the first crowd, takes in what was made last here.
        gc.freeze()
        for address in running.addresses:
            _announce("listening", f"{address.place} {address.scheme}")
        if start.http is not None:
            from flowguard.ops.http import serve_http

            listener, token = start.http
            seen = (running.node, running.clock, listener, running.backup, progress)
            reload = partial(start.doors.reload, running.node)
            serve_port = partial(serve_http, *seen, reload, token)
            _announce("http", _shown(await nursery.start(serve_port)))
        nursery.start_soon(tell_systemd, running, running.clock)


def _announce(what: str, place: str) -> None:
    STDOUT.write(f"{what} on {place}\n")


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _serve(
    start: _Start, process: trio.CancelScope, task_status: trio.TaskStatus[Running]
) -> None:
    """The broker, with whose end the process ends."""
    await serve_broker(
        start.bounds,
        start.store,
        start.doors.doorways,
        hooks=Hooks(rules=start.doors.rules),
        checks=start.doors.checks,
        shadow=start.shadow,
        descriptors=start.descriptors,
        alone=True,
        task_status=task_status,
    )
    process.cancel()

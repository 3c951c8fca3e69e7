"""`flowguard serve`: a broker in the foreground."""

import errno
import gc
import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Annotated, TextIO, TypeVar, cast

import structlog
import trio
import typer
from rich.console import Console

from flowguard.bounds import Bounds
from flowguard.broker.descriptors import Descriptors, descriptors_for
from flowguard.broker.server import Running, listen, unix_clock
from flowguard.broker.server import serve as serve_broker
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.log_lines import LogLines
from flowguard.cli.plugins import needs_extra
from flowguard.cli.settings import (
    Limits,
    LoadedSettings,
    load,
    parse_address,
    read_limits,
    with_limits,
)
from flowguard.cli.signals import on_signals
from flowguard.cli.store import SALVAGE
from flowguard.config import FlowSettings, Settings
from flowguard.errors import (
    ConfigError,
    CorruptionError,
    FlowguardError,
    RemovedError,
    StoreError,
    SyncError,
)
from flowguard.flow.policies import MINDED
from flowguard.stores import MemoryStore, Store

if TYPE_CHECKING:
    from flowguard.telemetry.runs import Runs

HTTP_HOST = "127.0.0.1"
HTTP_PORT = 9883
HTTP_NONE = "none"
EXIT_STORE = 73
"""The store cannot be opened, or failed later."""
REMOVED = "Start on a backup: flowguard serve --data COPY"
DAMAGED = f"{REMOVED}; or {SALVAGE}"
EXIT_SYNC = 74
"""The disk failed to sync: nobody knows what is on it."""
GC_THRESHOLDS = (100_000, 50, 100)
"""Conversations make no garbage cycles to speak of; scanning a million of them is a pause."""

E = TypeVar("E", bound=FlowguardError)

log = structlog.get_logger()


def serve(
    listen_on: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address; port 0: a free one.")
    ] = "127.0.0.1:1883",
    data: Annotated[Path, typer.Option(help="Directory for what must survive.")] = Path(
        "flowguard-data"
    ),
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    limits: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with limits, section flow of the settings: goes before --config."
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Where sessions live, rocks or memory: store.kind.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Whose law protects: flow.policy of the settings.")
    ] = None,
    shadow_policy: Annotated[
        str | None, typer.Option(help="Whose law watches, without effect: flow.shadow_policy.")
    ] = None,
    shadow: Annotated[
        Path | None, typer.Option(help="TOML file with limits that watch, without effect.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Directory to record runs in, for analyze: telemetry.record_dir."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Metrics, status and health; port 0: a free one; none: nothing of it. "
            f"[default: {HTTP_HOST}:{HTTP_PORT}, or a free port where --listen has port 0]",
        ),
    ] = None,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C, then drain."""
    _log_to_stderr()
    said = {"FLOW__POLICY": policy, "FLOW__SHADOW_POLICY": shadow_policy, "STORE__KIND": store}
    said["TELEMETRY__RECORD_DIR"] = None if record is None else str(record)
    chosen = {f"FLOWGUARD_{key}": name for key, name in said.items() if name is not None}
    try:
        shadow_limits = read_limits(shadow)
        loaded = load(config, os.environ | chosen, read_limits(limits))
        settings = loaded.bounds.settings
        watching = None if shadow_limits is None else with_limits(settings, shadow_limits)
        host, port = parse_address(listen_on)
        http_address = _http_address(http, port)
        use_all_descriptors()
        descriptors = descriptors_for(settings, on_disk=settings.store.kind != "memory")
    except ConfigError as error:
        raise _refused("flowguard cannot start", str(error), 2) from error
    runs = _open_runs(settings)
    listener = _listen(host, port)
    http_listener = _listen_http(http_address, wanted=http is not None)
    if limits is not None:
        log.info("limits", file=str(limits), in_force=_in_force(limits, loaded))
    if shadow_limits is not None:
        log.info("shadow", file=str(shadow), **_judged(shadow_limits))
    opened = _open(settings, data)
    start = _Start(loaded.bounds, watching, opened, listener, http_listener, runs, descriptors)
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        trio.run(_main, start)
    except BaseExceptionGroup as group:
        raise _ended(group) from group


def _log_to_stderr() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LogLines())),
    )


def _listen(host: str, port: int) -> socket:
    try:
        return listen(host, port)
    except OSError as error:
        raise _refused(
            f"flowguard cannot listen on {_shown((host, port))}: {error.strerror}",
            "Is another broker running? A free port is chosen with --listen 127.0.0.1:0"
            if error.errno == errno.EADDRINUSE
            else "The address must be one of this machine's, for example 127.0.0.1:1883",
            1,
        ) from error


def _ended(group: BaseExceptionGroup[BaseException]) -> typer.Exit:
    """Say why it ended, as an exit; an error of another kind among them is raised."""
    unfit, others = group.split(ConfigError)
    if unfit is not None and others is None:
        return _refused("flowguard cannot start", str(next(_leaves(unfit))), 2)
    failed, others = group.split(StoreError)
    if failed is None or others is not None:
        raise group
    cause = next(_leaves(failed))
    what = "Nothing was acknowledged that is not stored. Look at the disk, then start again."
    if isinstance(cause, CorruptionError):
        what = DAMAGED
    elif isinstance(cause, RemovedError):
        what = REMOVED
    return _refused(
        f"flowguard ends: its store failed: {cause}",
        what,
        EXIT_SYNC if isinstance(cause, SyncError) else EXIT_STORE,
    )


def _leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _open(settings: Settings, data: Path) -> Store:
    """The store of the settings, in `data`; if it cannot be opened, say why and exit."""
    if settings.store.kind == "memory":
        return MemoryStore()
    # Here, because the engine is loaded only where it is used.
    from flowguard.stores.rocks import RocksStore

    try:
        data.mkdir(parents=True, exist_ok=True)
        return RocksStore(
            data, settings.store, wall_s=time.time, random_node=partial(secrets.randbits, 32)
        )
    except OSError as error:
        raise _refused(
            f"flowguard cannot use {data}: {error.strerror}",
            "Choose another directory: --data DIRECTORY",
            1,
        ) from error
    except CorruptionError as error:
        raise _refused(f"flowguard cannot use {data}: {error}", DAMAGED, EXIT_STORE) from error
    except StoreError as error:
        raise _refused(f"flowguard cannot use {data}", str(error), EXIT_STORE) from error


def _open_runs(settings: Settings) -> "Runs | None":
    """Where the broker records itself; None: it does not."""
    directory = settings.telemetry.record_dir
    if directory is None:
        return None
    try:
        # Here, because it needs pyarrow, which only who records has to have.
        from flowguard.telemetry.runs import Runs
    except ModuleNotFoundError as error:
        typer.echo(needs_extra("telemetry"), err=True)
        raise typer.Exit(2) from error
    try:
        return Runs(directory, settings.telemetry)
    except OSError as error:
        raise _refused(
            f"flowguard cannot record in {directory}: {error.strerror}",
            "Choose another directory: --record DIRECTORY",
            1,
        ) from error


def _http_address(http: str | None, port: int) -> tuple[str, int] | None:
    """Where HTTP is served; None: nowhere. Raises ConfigError."""
    if http == HTTP_NONE:
        return None
    if http is not None:
        return parse_address(http)
    return HTTP_HOST, HTTP_PORT if port else 0  # Who asks for a free port may run many brokers.


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
            raise _refused(f"flowguard {what}", hint, 1) from error
        log.warning(f"{what}; running without it. {hint}")
        return None


def _refused(what: str, why: str, code: int) -> typer.Exit:
    """Complain; the texts may hold brackets, which are no markup here."""
    errors = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
    errors.print(what, style="red")
    errors.print(why)
    return typer.Exit(code)


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
    listener: socket
    http_listener: socket | None
    runs: "Runs | None"
    descriptors: Descriptors


async def _main(start: _Start) -> None:
    async with trio.open_nursery() as nursery:
        running: Running = await nursery.start(_serve, start, nursery.cancel_scope)
        await nursery.start(on_signals, running.stop.set, _on_hang_up)
        progress = None
        if start.runs is not None:
            from flowguard.telemetry.recorder import Recorder

            recorder = Recorder(running, unix_clock(), start.runs)
            await nursery.start(recorder.run)
            progress = recorder.progress
        _announce("listening", running.address)
        if start.http_listener is not None:
            from flowguard.ops.http import serve_http

            seen = (running.node, unix_clock(), start.http_listener, running.backup, progress)
            _announce("http", await nursery.start(partial(serve_http, *seen)))


def _on_hang_up() -> None:
    """Log that SIGHUP does nothing: daemons are asked by it to read their settings again."""
    log.warning("SIGHUP changes nothing: settings are read at the start; SIGTERM ends the broker")


def _announce(what: str, address: tuple[str, int]) -> None:
    """Print a line that scripts wait for."""
    sys.stdout.write(f"{what} on {_shown(address)}\n")
    sys.stdout.flush()


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
        start.listener,
        shadow=start.shadow,
        descriptors=start.descriptors,
        task_status=task_status,
    )
    process.cancel()

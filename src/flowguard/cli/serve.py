"""`flowguard serve`: a broker in the foreground."""

import errno
import gc
import sys
from pathlib import Path
from socket import socket
from typing import Annotated

import structlog
import trio
import typer
from rich.console import Console

from flowguard.broker.server import Running, listen
from flowguard.broker.server import serve as serve_broker
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.settings import load_settings, parse_address
from flowguard.cli.signals import on_signals
from flowguard.config import Settings
from flowguard.errors import ConfigError
from flowguard.stores import MemoryStore

GC_THRESHOLDS = (100_000, 50, 100)
"""Conversations make no garbage cycles to speak of; scanning a million of them is a pause."""


def serve(
    listen_on: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address; port 0: a free one.")
    ] = "127.0.0.1:1883",
    data: Annotated[Path, typer.Option(help="Directory for what must survive.")] = Path(
        "flowguard-data"
    ),
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    store: Annotated[str, typer.Option(help="Where sessions live: memory.")] = "memory",
) -> None:
    """Run the broker until SIGTERM or Ctrl-C, then drain."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        settings = load_settings(config)
        host, port = parse_address(listen_on)
        if store != "memory":
            raise ConfigError(f"--store {store}: this version has the store 'memory' only")
    except ConfigError as error:
        raise _refused("flowguard cannot start", str(error), 2) from error
    try:
        listener = listen(host, port)
    except OSError as error:
        raise _refused(
            f"flowguard cannot listen on {listen_on}: {error.strerror}",
            "Is another broker running? A free port is chosen with --listen 127.0.0.1:0"
            if error.errno == errno.EADDRINUSE
            else "The address must be one of this machine's, for example 127.0.0.1:1883",
            1,
        ) from error
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(
            f"flowguard cannot use {data}: {error.strerror}",
            "Choose another directory: --data DIRECTORY",
            1,
        ) from error
    use_all_descriptors()
    gc.set_threshold(*GC_THRESHOLDS)
    trio.run(_main, settings, listener)


def _refused(what: str, why: str, code: int) -> typer.Exit:
    """Complain; the texts may hold brackets, which are no markup."""
    errors = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
    errors.print(what, style="red")
    errors.print(why)
    return typer.Exit(code)


async def _main(settings: Settings, listener: socket) -> None:
    async with trio.open_nursery() as nursery:
        running: Running = await nursery.start(_serve, settings, listener, nursery.cancel_scope)
        await nursery.start(on_signals, running.stop.set)
        host, port = running.address
        # The one machine-readable line: scripts wait for it.
        sys.stdout.write(f"listening on {f'[{host}]' if ':' in host else host}:{port}\n")
        sys.stdout.flush()


async def _serve(
    settings: Settings,
    listener: socket,
    process: trio.CancelScope,
    task_status: trio.TaskStatus[Running],
) -> None:
    """The broker, with whose end the process ends."""
    await serve_broker(settings, MemoryStore(), listener, task_status=task_status)
    process.cancel()

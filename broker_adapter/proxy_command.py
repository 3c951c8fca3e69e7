"""`flowguard proxy`: overload protection in front of somebody else's broker."""

import gc
import os
import resource
import secrets
import socket
import sys
from pathlib import Path
from time import monotonic
from typing import Annotated, TextIO, cast

import structlog
import trio
import typer

from broker_adapter.proxy_core import ProxyCore
from broker_adapter.proxy_loop import ProxyLoop
from flowguard.address import parse_address
from flowguard.broker.server import listen
from flowguard.cli.descriptors import OWN_DESCRIPTORS, use_all_descriptors
from flowguard.cli.log_lines import LogLines
from flowguard.cli.settings import load, read_limits
from flowguard.cli.signals import on_signals
from flowguard.errors import ConfigError

GC_THRESHOLDS = (100_000, 50, 100)
"""Pairs make no garbage cycles to speak of."""
DESCRIPTORS = 2
"""Of a pair: its client's socket, and the upstream's."""

log = structlog.get_logger()


def proxy(
    upstream: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The broker to protect, plain TCP.")
    ],
    listen_on: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address; port 0: a free one.")
    ] = "127.0.0.1:1883",
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings, of which section flow counts.")
    ] = None,
    limits: Annotated[
        Path | None, typer.Option(help="TOML file with limits: goes before --config.")
    ] = None,
) -> None:
    """Stand in front of an MQTT 3.1.1 or 5.0 broker, and protect it from crowds.

    Few CONNECTs at once, windows for what is published, 137 with a time to come back beyond them;
    all else passes as it is.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LogLines())),
    )
    try:
        bounds = load(config, os.environ, read_limits(limits)).bounds
        family, address = _resolved(upstream)
        host, port = parse_address(listen_on)
    except ConfigError as error:
        raise _refused(str(error), 2) from error
    try:
        listener = listen(host, port)
    except OSError as error:
        hint = "a free port is chosen with --listen 127.0.0.1:0"
        raise _refused(f"cannot listen on {listen_on}: {error.strerror}; {hint}", 1) from error
    use_all_descriptors()
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    core = ProxyCore(bounds.settings.flow, bounds.memory_bytes, draw=secrets.SystemRandom().random)
    places = (most - OWN_DESCRIPTORS) // DESCRIPTORS
    loop = ProxyLoop(core, listener, (family, address), monotonic, places)
    gc.set_threshold(*GC_THRESHOLDS)
    trio.run(_main, loop, listener.getsockname()[:2])


def _resolved(upstream: str) -> tuple[int, tuple[str, int]]:
    """Family and address; the name is asked for once."""
    host, port = parse_address(upstream)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--upstream {upstream}: {error.strerror}") from error
    family, _, _, _, address = found[0]
    return family, cast(tuple[str, int], address)


def _refused(why: str, code: int) -> typer.Exit:
    typer.echo(f"flowguard proxy cannot start: {why}", err=True)
    return typer.Exit(code)


async def _main(loop: ProxyLoop, address: tuple[str, int]) -> None:
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(on_signals, stop.set)
        nursery.start_soon(loop.run)
        host, port = address
        sys.stdout.write(f"listening on {f'[{host}]' if ':' in host else host}:{port}\n")
        sys.stdout.flush()
        await stop.wait()
        log.info("ending")
        await loop.drain()
        nursery.cancel_scope.cancel()

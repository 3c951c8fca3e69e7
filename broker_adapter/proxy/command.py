"""`flowguard proxy`: overload protection in front of another broker."""

import errno
import os
import secrets
import socket
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, cast

import structlog
import trio
import typer

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.reactor import ProxyReactor
from broker_adapter.proxy.upstream import Upstream
from flowguard.address import Address
from flowguard.bounds import Bounds
from flowguard.broker.logs.error_log import BoundedLog, ErrorLog, FaultLog
from flowguard.broker.logs.output_lines import STDOUT
from flowguard.broker.sockets.descriptors import widen_table
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.broker.sockets.socket_set import LINGER_S
from flowguard.cli import serve_options as options
from flowguard.cli.descriptors import OWN_DESCRIPTORS, use_all_descriptors
from flowguard.cli.log_lines import log_ignored, log_to_stderr
from flowguard.cli.settings import load, read_limits
from flowguard.cli.signals import on_signals, start_signals
from flowguard.config import FlowSettings, LogSettings
from flowguard.errors import ConfigError
from flowguard.flow.load.signals import TICK_S

UPSTREAM_CONNECTS = 64
"""CONNECTs in process at once per upstream. Mosquitto and amqtt keep 100 unaccepted connections;
TCP repeats a further one after a second."""

log = structlog.get_logger()


def proxy(
    upstream: Annotated[
        list[str],
        typer.Option(
            metavar="ADDRESS",
            help="A broker to protect, HOST:PORT or mqtts://HOST:PORT; repeatable.",
        ),
    ],
    listen_on: options.Listen = None,
    cert: options.Cert = None,
    key: options.Key = None,
    client_ca: options.ClientCa = None,
    allow_plaintext: options.AllowPlaintext = False,
    upstream_ca: Annotated[
        Path | None,
        typer.Option(help="Authorities of the upstreams' certificates, PEM; else the system's."),
    ] = None,
    proxy_protocol: Annotated[
        bool,
        typer.Option(
            "--proxy-protocol", help="Tell upstreams each client's address, by PROXY protocol v2."
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with settings; only sections flow and network are used."),
    ] = None,
    limits: Annotated[
        Path | None, typer.Option(help="TOML file with limits; overrides --config.")
    ] = None,
) -> None:
    """Run a proxy that protects MQTT 3.1.1 or 5.0 brokers from overload.

    It limits the CONNECTs in process and the unfinished PUBLISH packets of each client. A rejected
    client gets CONNACK 0x89 (Server busy) with a time to retry. Other packets pass unchanged.
    """
    log_to_stderr(LogSettings())
    said: dict[str, object] = {
        "LISTENERS": ",".join(listen_on) if listen_on else None,
        "CERT": cert,
        "KEY": key,
        "CLIENT_CA": client_ca,
        "ALLOW_PLAINTEXT": allow_plaintext or None,
        "ALLOW_ANONYMOUS": True,  # The upstream authenticates clients.
    }
    chosen = {f"FLOWGUARD_NETWORK__{key}": str(it) for key, it in said.items() if it is not None}
    with start_signals():
        named = [(text, upstream_ca) for text in upstream]
        bounds, upstreams, doorways = _opened(config, chosen, limits, named)
    errors, faults = ErrorLog("connection failed"), FaultLog("transport failed")
    core = ProxyCore(
        gated(bounds.settings.flow, len(upstreams)),
        bounds.memory_bytes,
        upstreams,
        draw=secrets.SystemRandom().random,
        on_error=errors,
    )
    core.door.log_fault = faults
    reactor = ProxyReactor(core, monotonic, says_address=proxy_protocol)
    widen_table(descriptors := use_all_descriptors())
    for doorway in doorways:
        reactor.sockets.listen(doorway, descriptors - OWN_DESCRIPTORS)
    trio.run(_main, core, reactor, doorways, (errors, faults))


def _opened(
    config: Path | None,
    chosen: Mapping[str, str],
    limits: Path | None,
    named: list[tuple[str, Path | None]],
) -> tuple[Bounds, list[Upstream], list[Doorway]]:
    """Read the settings, resolve the upstreams, and listen, or exit with the reason."""
    try:
        bounds = load(config, os.environ | chosen, read_limits(limits)).bounds
        return bounds, [resolved(*each) for each in named], open_doorways(bounds.settings.network)
    except ConfigError as error:
        raise _refused(str(error), 2) from error
    except OSError as error:
        hint = "a free port is chosen with --listen 127.0.0.1:0"
        if error.errno != errno.EADDRINUSE:
            hint = "listen on an address that this machine has"
        raise _refused(f"cannot listen on {error.filename}: {error.strerror}; {hint}", 1) from error


def gated(flow: FlowSettings, upstream_count: int) -> FlowSettings:
    """Return the effective settings. By default, CONNECTs in process at once are limited to what
    fits into the upstreams' listen backlogs."""
    if "connects_in_process_max" in flow.model_fields_set:
        return flow
    return flow.model_copy(update={"connects_in_process_max": UPSTREAM_CONNECTS * upstream_count})


def resolved(text: str, ca: Path | None) -> Upstream:
    """Return an upstream with all addresses of its name, resolved once. Raises ConfigError."""
    address = Address.parse(text)
    if address.scheme.has_websocket:
        raise ConfigError(f"--upstream {text}: expected mqtt:// or mqtts://")
    tls = _tls(ca) if address.scheme.has_tls else None
    if address.port is None:
        raise ConfigError(f"--upstream {text}: expected HOST:PORT")
    if address.port == 0:
        raise ConfigError(f"--upstream {text}: port 0 is no address; name the port of the broker")
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--upstream {text}: {error.strerror}") from error
    places = [(int(family), cast(tuple[str, int], place)) for family, _, _, _, place in found]
    return Upstream(text, places, address.host, tls)


def _tls(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--upstream-ca {ca}: {error.strerror or error}") from error


def _refused(why: str, code: int) -> typer.Exit:
    typer.echo(f"flowguard proxy cannot start: {why}", err=True)
    return typer.Exit(code)


async def _main(
    core: ProxyCore,
    reactor: ProxyReactor,
    doorways: list[Doorway],
    logs: tuple[BoundedLog, ...],
) -> None:
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            reload_soon = partial(nursery.start_soon, reload, doorways, trio.Lock())
            await nursery.start(on_signals, stop.set, reload_soon)
            nursery.start_soon(log_ignored)
            nursery.start_soon(reactor.run)
            for each in logs:
                nursery.start_soon(each.run)
            nursery.start_soon(keep_house, core, reactor)
            for address in (doorway.address for doorway in doorways):
                STDOUT.write(f"listening on {address.place} {address.scheme}\n")
            await stop.wait()
            log.info("ending")
            reactor.drain(monotonic())
            with trio.move_on_after(LINGER_S + TICK_S):
                while not reactor.is_empty:  # noqa: ASYNC110
                    await trio.sleep(TICK_S / 10)
            nursery.cancel_scope.cancel()
    finally:
        reactor.close()


async def reload(doorways: list[Doorway], in_order: trio.Lock) -> None:
    """Read the certificates of listeners again; after an error nothing changes.

    Under `in_order`, so that the files read last are those in use.
    """
    keepers = [doorway.tls for doorway in doorways if doorway.tls]
    read = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
    async with in_order:
        try:
            contexts = [await read(keeper.read) for keeper in keepers]
        except ConfigError as error:
            log.error("reload failed; nothing has changed", why=str(error))
            return
        for keeper, context in zip(keepers, contexts, strict=True):
            keeper.use(context)
    log.info("reloaded certificates; other settings need a restart", certificates=len(keepers))


async def keep_house(core: ProxyCore, reactor: ProxyReactor) -> None:
    """Every 100 ms, until cancelled: adapt the windows and check the upstreams."""
    were_up = {upstream: upstream.is_up for upstream in core.upstreams}
    while True:
        try:
            reactor.tick(monotonic())
        except Exception as error:
            core.broke(error)
        for upstream, was_up in were_up.items():
            if upstream.is_up is not was_up:
                were_up[upstream] = upstream.is_up
                log.warning(
                    "upstream unavailable" if was_up else "upstream available again",
                    at=upstream.name,
                )
        await trio.sleep(TICK_S)

"""`flowguard proxy`: overload protection in front of another broker."""

import errno
import secrets
import socket
import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import trio
import typer

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.reactor import ProxyReactor
from broker_adapter.proxy.run import ProxyRun
from broker_adapter.proxy.upstream import Upstream
from broker_adapter.proxy.watch.face import Face
from broker_adapter.proxy.watch.reload import Reloads
from flowguard.address import Address
from flowguard.app.failures import StartError
from flowguard.app.http_front import listen_http
from flowguard.app.reloadable_files import read_token, warn_of_expired
from flowguard.bounds import Bounds
from flowguard.broker.clock import unix_clock
from flowguard.broker.logs.error_log import BoundedLog, show_fault
from flowguard.broker.sockets.descriptors import widen_table
from flowguard.broker.sockets.listening import open_doorways
from flowguard.cli import serve_options as options
from flowguard.cli.descriptors import OWN_DESCRIPTORS, use_all_descriptors
from flowguard.cli.log_lines import log_to_stderr
from flowguard.cli.serve import http_port
from flowguard.cli.signals import start_signals
from flowguard.cli.sources import Sources
from flowguard.config import FlowSettings, LogSettings
from flowguard.errors import ConfigError

UPSTREAM_CONNECTS = 64
"""CONNECTs in process at once per upstream. Mosquitto and amqtt keep 100 unaccepted connections;
TCP repeats a further one after a second."""


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
        typer.Option(
            help="TOML file with settings; sections flow, http, log and network are used, and "
            "node.drain_over_s."
        ),
    ] = None,
    limits: Annotated[
        Path | None, typer.Option(help="TOML file with limits; overrides --config.")
    ] = None,
    http: options.Http = None,
) -> None:
    """Run a proxy that protects MQTT brokers from overload.

    The brokers speak MQTT 3.1.1 or 5.0. It limits the CONNECTs in process and the unfinished
    PUBLISH packets of each client. A rejected client gets CONNACK 0x89 (Server busy) with a time to
    retry. Other packets pass unchanged.
    """
    log_to_stderr(LogSettings())
    given: dict[str, tuple[str, object]] = {
        "network.listeners": ("--listen", listen_on),
        "network.cert": ("--cert", cert),
        "network.key": ("--key", key),
        "network.client_ca": ("--client-ca", client_ca),
        "http.address": ("--http", http),
        "network.allow_plaintext": ("--allow-plaintext", allow_plaintext or None),
        # The upstream authenticates clients.
        "network.allow_anonymous": ("flowguard proxy", True),
    }
    chosen = {name: option for name, option in given.items() if option[1] is not None}
    sources = Sources(chosen, config, limits, None)
    with start_signals():
        proxy = _built(sources, [(text, upstream_ca) for text in upstream], proxy_protocol)
    trio.run(proxy.run)


def _built(sources: Sources, named: list[tuple[str, Path | None]], says_address: bool) -> ProxyRun:
    """Read the settings, resolve the upstreams, and listen, or exit with the reason."""
    clock = unix_clock()
    try:
        loaded = sources.load()
        settings = loaded.bounds.settings
        log_to_stderr(settings.log)
        warn_of_expired(settings.network)
        token = read_token(settings.http.token_file)
        upstreams = [resolved(*each) for each in named]
        port = http_port(settings)
        doorways = open_doorways(settings.network)
        listener = None if port is None else listen_http(port)
    except ConfigError as error:
        raise _refused(str(error), 2) from error
    except StartError as error:
        raise _refused(f"{error.what}; {error.hint}", error.exit_code) from error
    except OSError as error:
        hint = "a free port is chosen with --listen 127.0.0.1:0"
        if error.errno != errno.EADDRINUSE:
            hint = "listen on an address that this machine has"
        raise _refused(f"cannot listen on {error.filename}: {error.strerror}; {hint}", 1) from error
    count = len(upstreams)
    errors = BoundedLog("connection failed", "error")
    faults = BoundedLog("transport failed", kind="transport")
    bounds = with_gate(loaded.bounds, count)
    core = ProxyCore(
        bounds.settings.flow,
        bounds.memory_bytes,
        upstreams,
        draw=secrets.SystemRandom().random,
        on_error=errors.raised,
    )
    core.door.log_fault = partial(show_fault, faults)
    reactor = ProxyReactor(core, clock, says_address=says_address)
    widen_table(descriptors := use_all_descriptors())
    for doorway in doorways:
        reactor.sockets.listen(doorway, descriptors - OWN_DESCRIPTORS)
    face = Face(core, bounds, clock, clock(), reactor.sockets.links)
    reloads = Reloads(face, doorways, lambda: with_gate(sources.load().bounds, count))
    return ProxyRun(
        face,
        reactor,
        doorways,
        reloads,
        (errors, faults),
        listener,
        token,
        loaded.origins,
        settings.node.drain_over_s,
    )


def with_gate(bounds: Bounds, upstream_count: int) -> Bounds:
    """Return the bounds with the effective settings of section `flow`."""
    flow = gated(bounds.settings.flow, upstream_count)
    return replace(bounds, settings=bounds.settings.model_copy(update={"flow": flow}))


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

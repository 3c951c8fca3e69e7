"""`flowguard capacity`: how many clients this machine can serve, and which resource ends first."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flowguard.app.broker import process_bytes
from flowguard.app.stores import check_store
from flowguard.app.workers.shares import check_shares, workers_of
from flowguard.bounds import SESSION_BYTES
from flowguard.broker.memory import require_memory
from flowguard.broker.sockets.descriptors import descriptors_for
from flowguard.cli.capacity import measure
from flowguard.cli.capacity.estimate import Capacity, Rates, capacity_of
from flowguard.cli.console import AsJson, plain, refused
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.settings import load
from flowguard.errors import ConfigError


def capacity(
    config: Annotated[Path | None, typer.Option(help="As `serve --config`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how many clients this machine can serve.

    It takes a few seconds. It starts a small broker of its own on a free port, and needs no running
    one. It counts what the settings allow, and measures with their certificate and users.
    """
    try:
        found = _measured(config)
    except ConfigError as error:
        raise refused("flowguard capacity: a broker could not start", str(error), 2) from error
    if as_json:
        typer.echo(json.dumps(found.as_json()))
        return
    console = Console(highlight=False)
    console.print(_table(found))
    plain().print(found.sentence)


def _measured(config: Path | None) -> Capacity:
    """Read the settings and measure; progress goes to standard error. Raises ConfigError."""
    loaded = load(config, os.environ)
    settings, bounds = loaded.settings, loaded.bounds
    memory_bytes, workers = bounds.memory_bytes, workers_of(settings)
    if workers > 1:
        bounds = check_shares(settings, workers, memory_bytes)
    check_store(settings)
    require_memory(bounds, process_bytes())
    use_all_descriptors()
    descriptors = descriptors_for(settings, on_disk=settings.store.kind == "rocks")
    files, users = measure.tls_files_of(settings.network), settings.network.password_file
    with Console(stderr=True).status("measuring TLS handshakes ...") as progress:
        handshakes = measure.handshakes_per_s(files)
        progress.update("measuring CONNECTs ...")
        connects = measure.connects_per_s()
        progress.update("measuring passwords ...")
        passwords = None if users is None else measure.passwords_per_s(users)
    return capacity_of(
        bounds,
        descriptors,
        Rates(connects, handshakes, passwords),
        memory_bytes=memory_bytes,
        workers=workers,
        cores=len(os.sched_getaffinity(0)),
        has_tls=files is not None,
    )


def _table(found: Capacity) -> Table:
    table = Table("resource", "here", "clients")
    limit = f"{found.descriptors_limit:,} open files"
    each = f", {found.workers} processes" if found.workers > 1 else ""
    table.add_row("descriptors", limit + each, f"{found.descriptors_clients:,}")
    for name, clients, bytes_each, unit in (
        (found.memory_key, found.memory_clients, found.client_bytes, "idle client"),
        ("durable sessions", found.durable_clients, SESSION_BYTES, "session"),
    ):
        share = f"{clients * bytes_each / 2**20:,.0f} of {found.memory_bytes / 2**20:,.0f} MiB"
        table.add_row(name, f"{share}, {bytes_each / 1024:,.1f} KiB per {unit}", f"{clients:,}")
    rates = found.rates
    for name, rate in (
        ("TLS handshakes", rates.handshakes),
        ("CONNECTs", rates.connects),
        *([("passwords", rates.passwords)] if rates.passwords is not None else []),
    ):
        said = "not measured" if rate is None else f"{rate:,.0f} per second and core"
        table.add_row(name, said, "")
    return table

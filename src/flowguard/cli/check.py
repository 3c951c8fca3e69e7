"""`flowguard check`: would a broker start with this configuration?"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from flowguard.app.reloadable_files import checks_of, read_token, rules_of
from flowguard.app.stores import check_store
from flowguard.app.workers.shares import check_shares, workers_of
from flowguard.broker.layers.certificates import expired
from flowguard.broker.memory import missing_memory, require_memory
from flowguard.broker.sockets.descriptors import descriptors_for, shortfalls
from flowguard.broker.sockets.listening import check_doorways
from flowguard.cli.console import refused
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.plugins import needs
from flowguard.cli.settings import LoadedSettings, load, read_limits
from flowguard.config import Settings
from flowguard.errors import ConfigError, UnreadyError
from flowguard.lines import count


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="As `serve --config`.")],
    limits: Annotated[Path | None, typer.Option(help="As `serve --limits`.")] = None,
) -> None:
    """Check settings, certificates, users, keys and rules as `serve --config CONFIG` would.

    It opens no listener and no store. The exit code is 2 if something is wrong: a setting, a file,
    an expired certificate, a missing extra, or too few descriptors or too little memory.
    """
    listeners_count, lacking = 0, list[str]()
    try:
        loaded = load(config, os.environ, read_limits(limits))
        settings = loaded.settings
        network = settings.network
        with _collected(lacking):
            listeners_count = check_doorways(network)
        with _collected(lacking):
            checks_of(network)
        workers_count = workers_of(settings)
        rules = rules_of(network, workers_count)
        read_token(settings.http.token_file)
        with _collected(lacking):
            _check_extras(settings)
        with _collected(lacking):
            lacking += _lacking_capacity(loaded, workers_count)
        lacking += expired(network, time.time())
    except ConfigError as error:
        raise refused(f"{config} is wrong", str(error), 2) from error
    if lacking:
        raise refused(
            f"{config} is good, but this machine is not ready for it", "\n".join(lacking), 2
        )
    roles = "no rules" if rules is None else count(len(rules), "role")
    typer.echo(f"{config} is good: {count(listeners_count, 'listener')}, {roles}")


def _lacking_capacity(loaded: LoadedSettings, workers_count: int) -> list[str]:
    """Return a sentence for each capacity that is configured and cannot be had here.

    Raises ConfigError; with workers the part of each worker counts, and descriptors are per worker.
    """
    settings, bounds = loaded.settings, loaded.bounds
    if workers_count > 1:
        bounds = check_shares(settings, workers_count, bounds.memory_bytes)
    require_memory(bounds)
    use_all_descriptors()
    descriptors = descriptors_for(settings, on_disk=settings.store.kind == "rocks")
    of_each = f"each of {workers_count} workers: " if workers_count > 1 else ""
    found = [of_each + why for why in shortfalls(bounds, descriptors)]
    return found + missing_memory(settings.flow.memory_max_bytes)


@contextmanager
def _collected(lacking: list[str]) -> Iterator[None]:
    """Continue if this machine lacks something, and add a description to `lacking`."""
    try:
        yield
    except UnreadyError as error:
        lacking.append(str(error))


def _check_extras(settings: Settings) -> None:
    """Import the extras that some stores and recordings need; raises ConfigError."""
    telemetry = settings.telemetry
    try:
        check_store(settings)
        if telemetry.record_dir is not None:
            from flowguard.telemetry import runs  # noqa: F401
        elif telemetry.record_topic is not None:
            from flowguard.telemetry import topic  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnreadyError(needs(error) or str(error)) from error

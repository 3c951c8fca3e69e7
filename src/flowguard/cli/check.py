"""`flowguard check`: would a broker start with this configuration?"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from flowguard.app.broker import process_bytes
from flowguard.app.reloadable_files import checks_of, read_token, rules_of
from flowguard.app.stores import check_store
from flowguard.app.workers.shares import check_shares, workers_of
from flowguard.broker.layers.certificates import expired
from flowguard.broker.memory import missing_memory, require_memory
from flowguard.broker.sockets.descriptors import descriptors_for, shortfalls
from flowguard.broker.sockets.listening import check_doorways
from flowguard.broker.workers.node_tls import node_tls_of
from flowguard.cli.console import AsJson, refused
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.plugins import needs
from flowguard.cli.settings import LoadedSettings, load, read_limits
from flowguard.config import Settings
from flowguard.errors import ConfigError, UnreadyError
from flowguard.lines import count

DEFAULT_CONFIG: Final = Path("flowguard.toml")


@dataclass
class Checked:
    """The outcome of a check, as `--json` prints it."""

    config: str
    listeners: int = 0
    roles: int | None = None
    """Number of roles in the rules, or None without rules."""
    wrong: list[str] = field(default_factory=list)
    """Errors of settings and files."""
    lacking: list[str] = field(default_factory=list)
    """Requirements of these settings that the machine does not meet."""

    @property
    def is_good(self) -> bool:
        return not (self.wrong or self.lacking)


def check(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="As `serve --config`.")
    ] = DEFAULT_CONFIG,
    limits: Annotated[Path | None, typer.Option(help="As `serve --limits`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check settings, certificates, users, keys and rules.

    It reads them as `serve --config CONFIG` would, but opens no listener and no store. The exit
    code is 2 if something is wrong: a setting, a file, an expired certificate, a missing extra, or
    too few descriptors or too little memory.
    """
    if config == DEFAULT_CONFIG and not config.exists():
        raise refused(
            f"flowguard check: there is no {config} in this directory",
            "Name another file: flowguard check CONFIG. "
            f"`flowguard settings > {config}` makes one with all defaults.",
            2,
        )
    found = Checked(str(config))
    try:
        _check(config, limits, found)
    except ConfigError as error:
        found.wrong += str(error).splitlines()
    if as_json:
        typer.echo(json.dumps({"good": found.is_good, **asdict(found)}))
        raise typer.Exit(0 if found.is_good else 2)
    if found.wrong:
        raise refused(f"{config} is wrong", "\n".join(found.wrong), 2)
    if found.lacking:
        raise refused(
            f"{config} is good, but this machine is not ready for it", "\n".join(found.lacking), 2
        )
    roles = "no rules" if found.roles is None else count(found.roles, "role")
    typer.echo(f"{config} is good: {count(found.listeners, 'listener')}, {roles}")


def _check(config: Path, limits: Path | None, found: Checked) -> None:
    """Read everything, and complete `found`. Raises ConfigError."""
    loaded = load(config, os.environ, read_limits(limits))
    settings = loaded.settings
    network = settings.network
    with _collected(found.lacking):
        found.listeners = check_doorways(network)
    with _collected(found.lacking):
        checks_of(network)
    node_tls_of(settings.cluster)
    workers_count = workers_of(settings)
    rules = rules_of(network, workers_count)
    found.roles = None if rules is None else len(rules)
    read_token(settings.http.token_file)
    with _collected(found.lacking):
        _check_extras(settings)
    with _collected(found.lacking):
        found.lacking += _lacking_capacity(loaded, workers_count)
    found.lacking += expired(network, time.time(), settings.cluster)


def _lacking_capacity(loaded: LoadedSettings, workers_count: int) -> list[str]:
    """Return a sentence for each capacity that is configured and cannot be had here.

    Raises ConfigError; with workers the part of each worker counts, and descriptors are per worker.
    """
    settings, bounds = loaded.settings, loaded.bounds
    if workers_count > 1:
        bounds = check_shares(settings, workers_count, bounds.memory_bytes)
    require_memory(bounds, process_bytes())
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

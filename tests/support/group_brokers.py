"""Brokers that have shared subscriptions together: each a process with its own data directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.broker import Broker, running_broker
from tests.support.kafka import Kafka


@contextmanager
def broker_of(
    folder: Path,
    server: Kafka,
    groups: str,
    name: str,
    exit_code: int = 0,
    *,
    shares: bool = True,
    replicas: int = 1,
) -> Iterator[Broker]:
    """One of those that share the groups below a prefix; a client `app-...` is an application."""
    place = folder / name
    place.mkdir(exist_ok=True)
    file = place / "config.toml"
    file.write_text(
        '[session]\napplication_client_ids = ["app-*"]\n'
        f'[kafka]\nprefix = "{groups}-{name}"\nreplicas = {replicas}\n'
        + (f'groups_prefix = "{groups}"\n' if shares else "")
    )
    words = ("--config", str(file), "--kafka-servers", server.servers)
    with running_broker(place, *words, exit_code=exit_code) as broker:
        yield broker

"""Topics of applications: their servers, names and settings."""

import base64
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from flowguard.stores.kafka.connection.access import NOBODY, KafkaAccess

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum size of a batch in a topic; servers accept requests of 100 MiB."""


@dataclass(slots=True)
class KafkaPlace:
    """The servers that have the topics of applications, and the settings of new topics."""

    servers: str
    prefix: str = "fg1"
    replicas: int = 3
    min_in_sync: int | None = None
    """Number of replicas that must have a message, or None for `max(1, replicas - 1)`."""
    configs: dict[str, str] = field(default_factory=dict)
    """Settings of a new topic."""
    wait_s: float = 5.0
    access: KafkaAccess = NOBODY
    groups_prefix: str = ""
    """Prefix of the topics of shared subscriptions that several brokers have; "" to disable."""
    groups_partitions: int = 12
    groups_bytes_max: int = 64 * 1024 * 1024
    """Maximum size of the unsettled messages of all groups in memory."""

    @property
    def topic_configs(self) -> dict[str, str]:
        min_in_sync = max(1, self.replicas - 1) if self.min_in_sync is None else self.min_in_sync
        own = {
            "min.insync.replicas": str(min_in_sync),
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
        }
        return {**own, **self.configs}


def topic_of(prefix: str, client_id: str) -> str:
    """Return a client's topic without its number. A hash, because any text may be a client id."""
    digest = blake2b(client_id.encode(), digest_size=16).digest()
    return f"{prefix}.app.{base64.b32encode(digest).decode().rstrip('=').lower()}"

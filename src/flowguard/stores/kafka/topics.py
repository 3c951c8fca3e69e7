"""Topics of applications: where they are, what they are called, how they are made."""

import base64
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from flowguard.stores.kafka.connection.access import NOBODY, KafkaAccess

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size of a batch of one message that a topic takes; servers take requests of 100 MiB."""


@dataclass(slots=True)
class KafkaPlace:
    """Where topics of applications are, and how they are made."""

    servers: str
    prefix: str = "fg1"
    replicas: int = 3
    min_in_sync: int | None = None
    """Replicas that must have a message; None: one less than there are, one at least."""
    configs: dict[str, str] = field(default_factory=dict)
    """Settings of a new topic."""
    wait_s: float = 5.0
    access: KafkaAccess = NOBODY
    groups_prefix: str = ""
    """Of the topics of shared subscriptions that brokers have together; empty: there are none."""
    groups_partitions: int = 12
    groups_bytes_max: int = 64 * 1024 * 1024
    """Their messages that are here and not settled, of all of them."""

    @property
    def topic_configs(self) -> dict[str, str]:
        min_in_sync = max(1, self.replicas - 1) if self.min_in_sync is None else self.min_in_sync
        own = {
            "min.insync.replicas": str(min_in_sync),
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
        }
        return {**own, **self.configs}


def topic_of(prefix: str, client_id: str) -> str:
    """The topic of a client without its number: a hash, because any text may be a client id."""
    digest = blake2b(client_id.encode(), digest_size=16).digest()
    return f"{prefix}.app.{base64.b32encode(digest).decode().rstrip('=').lower()}"

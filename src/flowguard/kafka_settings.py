"""Section `kafka` of the settings: where queues of applications may be, and how it is spoken to."""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from flowguard.section import Section

PORTS: Final = 65_536
OWNER_FILE: Final = "kafka-owner"
"""In the data directory, where Kafka has its applications' queues: the name it goes by there. Empty
in a copy, which is not the owner."""


class KafkaSettings(Section):
    """The cluster in which queues of applications are with `store.application_store = "kafka"`
    (docs/kafka.md). The defaults are for one server on the same machine. How it is spoken to, and
    as whom, holds for that of `telemetry.record_topic`, too."""

    servers: str = "127.0.0.1:9092"
    """Some of its nodes, which know the others: HOST:PORT,HOST:PORT."""
    prefix: str = Field("fg1", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=100)
    """The first part of the names of all topics; one data directory has it."""
    groups_prefix: str = Field("", pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$", max_length=100)
    """The first part of the names of topics that brokers have together: shared subscriptions of
    applications are those of all brokers that say the same; empty: each has its own."""
    groups_partitions: int = Field(12, ge=1, le=1_000)
    """A new shared subscription of that kind may be consumed by so many brokers."""
    groups_bytes_max: int | None = Field(None, ge=1024 * 1024)
    """Messages of all of that kind that are on this broker and not acknowledged; absent: its share,
    bytes."""
    replicas: int = Field(1, ge=1, le=100)
    """Nodes that have each new topic; with three of them: 3."""
    min_in_sync: int | None = Field(None, ge=1, le=100)
    """Of those: how many must have a message before its publisher is acknowledged; absent: one
    less than there are, and one at least."""
    retention_s: float = Field(604_800.0, ge=1)
    """A new topic keeps messages for this time, whoever has not read them, seconds."""
    timeout_s: float = Field(5.0, gt=0)
    """An answer that takes longer is asked for again; at the start 30 may pass, seconds."""
    tls: bool = False
    """Whether it is spoken to with TLS; its certificates have to be for the names in `servers`, and
    those of the nodes that it names."""
    tls_authority_file: Path | None = None
    """Certificates of who signs its own; absent: those that the system trusts."""
    tls_cert_file: Path | None = None
    """Our certificate, where it asks for one."""
    tls_key_file: Path | None = None
    """The key of that; absent: in the same file."""
    user: str | None = Field(None, min_length=1)
    """Whom we log in as (SASL)."""
    password_file: Path | None = None
    """Its first line is the password."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """How the password is shown; `PLAIN` shows it to the server, and needs TLS."""

    @field_validator("servers")
    @classmethod
    def _addresses(cls, servers: str) -> str:
        for server in servers.split(","):
            host, _, port = server.rpartition(":")
            if not host.strip() or not port.isdigit() or not 0 < int(port) < PORTS:
                raise ValueError(f"{server!r}: expected HOST:PORT,HOST:PORT")
        return servers

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.min_in_sync is not None and self.min_in_sync > self.replicas:
            raise ValueError("kafka.min_in_sync is above kafka.replicas: no message could be taken")
        return self

    @model_validator(mode="after")
    def _access(self) -> Self:
        if not self.tls and (self.tls_authority_file or self.tls_cert_file):
            raise ValueError("kafka has files for TLS, which is off: set kafka.tls")
        if self.tls_key_file and not self.tls_cert_file:
            raise ValueError("kafka.tls_key_file needs kafka.tls_cert_file")
        if (self.user is None) != (self.password_file is None):
            raise ValueError("kafka.user and kafka.password_file need each other")
        if self.user is not None and self.mechanism == "PLAIN" and not self.tls:
            raise ValueError("kafka.mechanism PLAIN without kafka.tls shows the password to all")
        return self

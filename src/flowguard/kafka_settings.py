"""Section `kafka` of the settings: the cluster for queues of applications, and its connection."""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from flowguard.section import Section

PORTS: Final = 65_536
OWNER_FILE: Final = "kafka-owner"
"""File in the data directory with the name that it has in Kafka, if Kafka has its applications'
queues. Empty in a copy, which is not the owner."""


class KafkaSettings(Section):
    """The cluster in which queues of applications are with `store.application_store = "kafka"`
    (docs/operate/kafka.md). The defaults are for one server on the same machine. TLS and SASL also
    apply to the cluster of `telemetry.record_topic`."""

    servers: str = "127.0.0.1:9092"
    """Some nodes of the cluster, as HOST:PORT,HOST:PORT; the broker discovers the others."""
    prefix: str = Field("fg1", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=100)
    """First part of all topic names; only one data directory uses it."""
    groups_prefix: str = Field("", pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$", max_length=100)
    """First part of the names of topics that brokers share. Brokers with the same value share the
    shared subscriptions of applications. If empty, each broker has its own."""
    groups_partitions: int = Field(12, ge=1, le=1_000)
    """Maximum number of brokers that consume a new shared subscription of this kind."""
    groups_bytes_max: int | None = Field(None, ge=1024 * 1024)
    """Maximum size of unacknowledged messages of this kind on this broker; if absent, its share,
    bytes."""
    replicas: int = Field(1, ge=1, le=100)
    """Number of nodes that store each new topic; use 3 with three nodes."""
    min_in_sync: int | None = Field(None, ge=1, le=100)
    """Number of these nodes that must have a message before its publisher is acknowledged. If
    absent, one less than `replicas`, but at least one."""
    retention_s: float = Field(604_800.0, ge=1)
    """Time that a new topic keeps messages, read or unread, seconds."""
    timeout_s: float = Field(5.0, gt=0)
    """Maximum wait for an answer before the request is repeated; at start, up to 30 are allowed,
    seconds."""
    tls: bool = False
    """Use TLS. Certificates must match the names in `servers` and the names of the nodes that Kafka
    returns."""
    tls_authority_file: Path | None = None
    """Certificates of the authorities that signed Kafka's certificates; if absent, the system's
    authorities."""
    tls_cert_file: Path | None = None
    """Client certificate of the broker, if Kafka requires one."""
    tls_key_file: Path | None = None
    """Key of the client certificate; if absent, in the same file."""
    user: str | None = Field(None, min_length=1)
    """User name for SASL."""
    password_file: Path | None = None
    """File whose first line is the password."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """SASL mechanism; `PLAIN` sends the password to the server, and needs TLS."""

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

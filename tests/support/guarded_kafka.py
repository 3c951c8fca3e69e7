"""A real Kafka of a test's own with one more listener, which requires a certificate and a
password."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import free_ports
from flowguard.kafka_settings import KafkaSettings
from tests.support.authority import Authority, Pair
from tests.support.kafka import Kafka, needs_kafka

MODULES = "org.apache.kafka.common.security"
PASSWORD = "se cret"


@dataclass(frozen=True)
class Guarded:
    """The server, the address of that listener, and what it asks for."""

    server: Kafka
    address: str
    authority: Authority
    pair: Pair
    password_file: Path

    def settings(self, **changed: object) -> KafkaSettings:
        values: dict[str, object] = {
            "servers": self.address,
            "tls": True,
            "tls_authority_file": self.authority.cert,
            "tls_cert_file": self.pair.cert,
            "tls_key_file": self.pair.key,
            "user": "flowguard",
            "password_file": self.password_file,
            "mechanism": "PLAIN",
        }
        return KafkaSettings.model_validate(values | changed)


@contextmanager
def guarded_kafka(folder: Path, more: dict[str, str] | None = None) -> Iterator[Guarded]:
    """Started; killed at the end. `more`: properties."""
    needs_kafka()
    authority = Authority(folder)
    own, ours = authority.issue("127.0.0.1"), authority.issue("flowguard")
    store = folder / "own.pem"
    store.write_text(own.key.read_text() + own.cert.read_text())
    (port,) = free_ports(1)
    server = Kafka(folder / "kafka")
    properties, listener = server.nodes[0].properties, f"GUARDED://127.0.0.1:{port}"
    for name in ("listeners", "advertised.listeners"):
        properties[name] += f",{listener}"
    properties["listener.security.protocol.map"] += ",GUARDED:SASL_SSL"
    own_name = "listener.name.guarded"
    properties |= {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        f"{own_name}.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
        f'user_flowguard="{PASSWORD}";',
        f"{own_name}.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.cert),
        f"{own_name}.ssl.client.auth": "required",
        **(more or {}),
    }
    password_file = folder / "password"
    password_file.write_text(f"{PASSWORD}\n")
    try:
        server.start()
        yield Guarded(server, f"127.0.0.1:{port}", authority, ours, password_file)
    finally:
        server.remove()

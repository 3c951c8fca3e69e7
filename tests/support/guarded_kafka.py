"""A real Kafka with one more listener, which requires a certificate and a password.

It decides by access rules, and makes topics by itself.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.brokers import free_ports
from flowguard.kafka_settings import KafkaSettings
from tests.support.authority import Authority, Pair
from tests.support.kafka import NEVER_FENCED, Kafka, jvm, shared
from tests.support.kafka_rules import RULES

MODULES = "org.apache.kafka.common.security"
PASSWORD = "se cret"


@dataclass(frozen=True)
class Guarded:
    """The server, the address of that listener, and what it asks for."""

    server: Kafka
    address: str
    authority_file: Path
    pair: Pair
    password_file: Path

    def settings(self, **changed: object) -> KafkaSettings:
        values: dict[str, object] = {
            "servers": self.address,
            "tls": True,
            "tls_authority_file": self.authority_file,
            "tls_cert_file": self.pair.cert,
            "tls_key_file": self.pair.key,
            "user": "flowguard",
            "password_file": self.password_file,
            "mechanism": "PLAIN",
        }
        return KafkaSettings.model_validate(values | changed)


@cache
def guarded_kafka() -> Guarded:
    """Return one node for all processes of a run of tests, started by the first one."""
    return shared("guarded-kafka", _start)


def _start(folder: Path) -> Guarded:
    authority = Authority(folder)
    own, ours = authority.issue("127.0.0.1"), authority.issue("flowguard")
    store = folder / "own.pem"
    store.write_text(own.key.read_text() + own.cert.read_text())
    (port,) = free_ports(1)
    server = Kafka(folder / "kafka", jvm=jvm())
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
        "auto.create.topics.enable": "true",
        **RULES,
        **NEVER_FENCED,
    }
    password_file = folder / "password"
    password_file.write_text(f"{PASSWORD}\n")
    server.start()
    for node in server.nodes:
        node.leave()
    return Guarded(server, f"127.0.0.1:{port}", authority.cert, ours, password_file)

"""Kafka with TLS on both sides and passwords: a real node decides which clients may connect."""

import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.kafka.servers import JARS, java
from flowguard.address import KafkaTopic
from flowguard.config import Settings
from flowguard.errors import ConfigError
from flowguard.kafka_settings import KafkaSettings
from flowguard.records import PutSession
from flowguard.stores import MemoryStore
from tests.support.authority import Authority
from tests.support.guarded_kafka import PASSWORD, Guarded, guarded_kafka
from tests.support.kafka import Kafka, jvm
from tests.support.patience import HANG_S

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from flowguard.stores.kafka.connection.access import access_of
from flowguard.stores.kafka.connection.link import KafkaLink, KafkaMessage
from flowguard.telemetry.topic import RunsInTopic
from tests.flowguard.stores.kafka.benches import new_prefix, open_link, open_store, place_on
from tests.flowguard.stores.kafka.test_store import appends, commit_at_last, positions

pytestmark = pytest.mark.slow


@pytest.fixture
def guarded() -> Guarded:
    return guarded_kafka()


def add_user(server: Kafka) -> None:
    """For SCRAM: what the server keeps of a password."""
    words = [java(), *jvm(), "-cp", f"{JARS}/*", "kafka.admin.ConfigCommand"]
    words += ["--bootstrap-server", server.servers, "--alter", "--entity-type", "users"]
    words += ["--entity-name", "flowguard"]
    words += ["--add-config", f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"]
    subprocess.run(words, check=True, capture_output=True)


def works(settings: KafkaSettings, wait_s: float = HANG_S) -> None:
    link = KafkaLink(settings.servers, wait_s=wait_s, access=access_of(settings))
    try:
        topic = new_prefix()
        link.create_topic(topic, 1, 1, {})
        link.append({(topic, 0): [KafkaMessage(None, b"x")]})
    finally:
        link.close()


def test_queues_of_applications_are_in_a_kafka_that_asks_for_certificate_and_password(
    guarded: Guarded,
) -> None:
    base, place = MemoryStore(), place_on(guarded.server, new_prefix())
    place.servers, place.access = guarded.address, access_of(guarded.settings())
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 4)])
    store.close()
    again = open_store(base, place)
    assert positions(again) == [1, 2, 3, 4]
    again.close()


def test_a_broker_records_itself_there(guarded: Guarded) -> None:
    topic = new_prefix()
    where = KafkaTopic.parse(f"kafka://{guarded.address}/{topic}")
    runs = RunsInTopic(where, access_of(guarded.settings()))
    runs.close()
    link = open_link(guarded.server)
    assert link.topic_seen(topic).partitions


def test_a_password_may_be_proved_without_being_shown(guarded: Guarded) -> None:
    add_user(guarded.server)
    deadline_s = time.monotonic() + HANG_S
    while True:
        try:
            works(guarded.settings(mechanism="SCRAM-SHA-512"))
            return
        except ConfigError:  # The server has written it down, and does not know it yet.
            assert time.monotonic() < deadline_s


def test_who_is_not_let_in_is_told(guarded: Guarded, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("something else")
    stranger = Authority(tmp_path, "stranger")
    for changed in (
        {"password_file": wrong},
        {"tls_cert_file": None, "tls_key_file": None},
        {"tls_authority_file": stranger.cert},
        {"tls": False, "user": None, "password_file": None}
        | dict.fromkeys(("tls_authority_file", "tls_cert_file", "tls_key_file")),
    ):
        with pytest.raises(ConfigError, match="no Kafka answers at"):
            works(guarded.settings(**changed), wait_s=20.0)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"tls_cert_file": "x"}, "set kafka.tls"),
        ({"tls": True, "tls_key_file": "x"}, "needs kafka.tls_cert_file"),
        ({"user": "x"}, "need each other"),
        ({"user": "x", "password_file": "y", "mechanism": "PLAIN"}, "shows the password"),
    ],
)
def test_settings_that_would_not_do_what_they_say_are_refused(
    values: dict[str, object], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Settings.model_validate({"kafka": values})


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.write_text("\n")
    for values, why in (
        ({"user": "x", "password_file": missing}, "kafka.password_file: cannot read"),
        ({"user": "x", "password_file": empty}, "has to begin with the password"),
        ({"tls": True, "tls_authority_file": empty}, "kafka.tls_authority_file: cannot use"),
        ({"tls": True, "tls_cert_file": empty}, "kafka.tls_cert_file: cannot use"),
    ):
        with pytest.raises(ConfigError, match=why):
            access_of(KafkaSettings.model_validate(values))

"""The owner of the topics of a prefix, without a Kafka."""

import os
from pathlib import Path
from typing import Any, cast

from flowguard.stores.kafka.connection.link import KafkaLink
from flowguard.stores.kafka.owner import claim
from flowguard.stores.kafka.topics import KafkaPlace


class Topics:
    """A link to a Kafka that has them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def topics(self, prefix: str) -> list[str]:
        return [name for name in self.names if name.startswith(prefix)]

    def create_topic(self, name: str, *more: Any) -> None:
        if name not in self.names:
            self.names.append(name)


def test_the_file_with_the_name_is_written_once(tmp_path: Path) -> None:
    """A crash between emptying and filling it would take the prefix from its owner."""
    file, link = tmp_path / "kafka-owner", cast("KafkaLink", Topics())
    place = KafkaPlace("localhost:9092", "p", 1, 1, {})
    file.touch()
    name = claim(link, place, file)
    assert file.read_text() == name
    os.utime(file, ns=(0, 0))
    assert claim(link, place, file) == name
    assert file.stat().st_mtime_ns == 0

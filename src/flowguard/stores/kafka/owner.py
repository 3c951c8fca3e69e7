"""The owner of the topics below a prefix: a data directory, which has its name in a file.

A topic without records, `PREFIX.of.NAME`, marks the owner in Kafka. If two brokers shared topics,
one would delete or fill those of the other, and messages would be lost.
"""

import secrets
from pathlib import Path
from typing import Final

from flowguard.errors import ConfigError
from flowguard.stores.kafka.connection.link import KafkaLink
from flowguard.stores.kafka.topics import KafkaPlace

NAME_BYTES: Final = 8


def check_nodes(link: KafkaLink, place: KafkaPlace) -> None:
    """Raises ConfigError if there are fewer nodes than replicas."""
    there = link.nodes_count()
    if there < place.replicas:
        raise ConfigError(
            f"Kafka at {place.servers} has {there} nodes for {place.replicas} replicas: start more "
            "of them, or ask for fewer (kafka.replicas)"
        )


def claim(link: KafkaLink, place: KafkaPlace, file: Path) -> str:
    """Claim the prefix; return the name of the directory. Raises ConfigError if it has an owner."""
    mark = f"{place.prefix}.of."
    known = file.read_text() if file.exists() else ""  # Empty in a copy of a directory.
    name = known or secrets.token_hex(NAME_BYTES)
    for topic in link.topics(mark):
        if topic != mark + name:
            raise ConfigError(
                f"topics of kafka.prefix {place.prefix} are those of another data directory: "
                f"choose another prefix, or take them over by deleting the topic {topic}"
            )
    if not known:
        # The file is first, so that a broker that crashes next still recognises its topic.
        file.write_text(name)
    link.create_topic(mark + name, 1, place.replicas, {})
    return name

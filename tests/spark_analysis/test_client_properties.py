"""Properties of a Kafka client, as Java reads them."""

from pathlib import Path

import pytest

from spark_analysis.runs.client_properties import client_properties
from spark_analysis.terminal import JobFailed

PROPERTIES = r"""
# Whom it is spoken to as.
! And this is a comment, too.
security.protocol=SASL_SSL
  sasl.mechanism : PLAIN
sasl.jaas.config = org.example.Module required \
    user="a=b" \
    password="se\\cret";
ssl.truststore.type PEM
empty=
ssl.truststore.certificates=BEGIN\nxy=\u003d
a\=b=c
the end=1 \
"""


def test_all_that_java_takes_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(PROPERTIES)
    assert client_properties(file) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": r'org.example.Module required user="a=b" password="se\cret";',
        "ssl.truststore.type": "PEM",
        "empty": "",
        "ssl.truststore.certificates": "BEGIN\nxy==",
        "a=b": "c",
        "the": "end=1 ",
    }


def test_a_line_that_is_none_is_named_and_its_secret_not(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("a=1\n\n=secret\n")
    with pytest.raises(JobFailed, match="line 3: expected KEY=VALUE") as found:
        client_properties(file)
    assert "secret" not in str(found.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="nowhere"):
        client_properties(tmp_path / "nowhere")

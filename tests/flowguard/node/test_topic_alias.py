"""Topic aliases, both ways: numbers for topics, valid for one connection and one direction."""

from tests.support.stage import Client, Stage

ALIASES = {"session": {"topic_alias_maximum": 3}}


def witness_of(stage: Stage) -> Client:
    witness = stage.connect("witness")
    witness.subscribe("#", qos=1)
    return witness


# --- from the client -------------------------------------------------------------------------


def test_a_message_published_by_alias_is_retained_under_its_topic() -> None:
    stage = Stage(ALIASES)
    client = stage.connect("c")
    client.publish("t", topic_alias=1)
    client.publish("", b"kept", topic_alias=1, retain=True)
    assert [message.topic for message in witness_of(stage).publishes()] == ["t"]

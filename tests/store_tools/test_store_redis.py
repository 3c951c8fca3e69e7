"""`flowguard store info` and `verify` on a Redis URL: they look, and change nothing."""

import pytest
from typer.testing import CliRunner

from flowguard.records import NEVER_S, Append, PutRetained, PutSession, SinkKind, key_of
from flowguard.types import Publish
from store_tools.command.store import store as commands
from tests.flowguard.stores.redis.benches import new_prefix, open_store, shared_server
from tests.flowguard.stores.test_contract import delivery

GROUP = key_of(SinkKind.SHARED, "$share/g/t")


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(commands, list(words))
    return done.exit_code, done.output


@pytest.fixture
def prefix() -> str:
    prefix = new_prefix()
    store = open_store(shared_server(), prefix, name="the broker")
    store.commit([PutSession(name, 3_600, None) for name in ("[red]", "quiet", GROUP)])
    store.commit([Append("[red]", pos, delivery(b"x" * 100)) for pos in range(1, 301)])
    store.commit([PutRetained(Publish("r", b"x", 0, True), NEVER_S)])
    store.close()
    return prefix


def at(prefix: str) -> tuple[str, ...]:
    return "--redis-url", shared_server().unix_url, "--redis-prefix", prefix


def test_info_counts_what_is_there_and_says_whose_it_is(prefix: str) -> None:
    code, text = run("info", *at(prefix))
    assert code == 0
    for word in ("the broker, which has left", "layout stream", "300 messages", "[red]", "1 subs"):
        assert word in text, text


def test_verify_reads_everything_and_takes_nothing_over(prefix: str) -> None:
    working = open_store(shared_server(), prefix, name="at work")
    code, text = run("verify", *at(prefix))
    assert (code, "3 sessions and queues, 300 queued messages, 1 retained" in text) == (0, True)
    assert "The store is consistent" in text
    assert not working.commit([Append("quiet", 1, delivery())])
    working.close()


@pytest.mark.parametrize("damage", ["entry", "bytes", "state", "session", "position", "retained"])
def test_verify_names_what_does_not_fit(prefix: str, damage: str) -> None:
    from flowguard.stores.redis.keys import KeyNames, bucket_of

    names = KeyNames(prefix)
    session, queue, released = names.session(b"quiet")
    with shared_server().client() as client:
        match damage:
            case "entry":
                client.setrange(names.state(b"quiet"), 16, (10).to_bytes(8))
                client.xadd(queue, {"a": b"\1\0"}, id="5-0")
            case "bytes":
                client.setrange(names.state(b"quiet"), 8, (17).to_bytes(8))
            case "state":
                client.delete(names.state(b"quiet"))
            case "session":
                client.delete(session)
            case "position":
                client.hset(released, "99", "1")
            case "retained":
                client.hset(names.bucket(bucket_of(b"r"))[2], "r", b"\1")
    code, text = run("verify", *at(prefix))
    assert code == 1
    assert "1 problem" in text
    assert ("retained 'r'" if damage == "retained" else "session 'quiet'") in text


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_store_of_an_older_format_is_named_and_not_read(prefix: str, command: str) -> None:
    with shared_server().client() as client:
        client.hset(f"{prefix}:meta", "format", "1")
    code, text = run(command, *at(prefix))
    assert code == 1
    assert "format 1" in text
    assert "store copy" in " ".join(text.split())


def test_where_no_store_is_that_is_said() -> None:
    code, text = run("info", *at("nothing"))
    assert code == 1
    assert "there is no store nothing: in unix://" in text

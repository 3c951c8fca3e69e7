"""`flowguard serve --store redis` as processes: what is refused, what a dead broker leaves."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack, Puback, Suback, Subscribe
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.flowguard.cli.test_serve import refused
from tests.interop.broker import PATIENCE_S, Broker, running_broker, start
from tests.support.caller import Caller
from tests.support.patience import HANG_S
from tests.support.redis_server import ALWAYS, RedisServer, redis_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), ALWAYS) as server:
        yield server


def on(server: RedisServer, prefix: str, lease_s: float = 0.5) -> dict[str, str]:
    return {
        "FLOWGUARD_REDIS__LEASE_S": str(lease_s),
        "FLOWGUARD_REDIS__PREFIX": prefix,
        "FLOWGUARD_REDIS__URL": server.url,
    }


def subscriber(broker: Broker) -> Caller:
    """The client `me` with a session that survives."""
    caller = Caller(
        broker,
        client_id="me",
        clean_start=False,
        properties=Properties(session_expiry_interval=1_000),
    )
    assert isinstance(caller.read(), Connack)
    return caller


def leave_a_message(broker: Broker) -> None:
    with subscriber(broker) as me:
        me.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
        assert isinstance(me.read(), Suback)
    with Caller(broker, client_id="p") as publisher:
        assert isinstance(publisher.read(), Connack)
        publisher.send(Publish("t", b"still here", 1, packet_id=1))
        answer = publisher.read()
        assert isinstance(answer, Puback)
        assert answer.reason_code == 0


def find_it(broker: Broker) -> None:
    with subscriber(broker) as me:
        message = me.read()
        assert isinstance(message, Publish)
        assert message.payload == b"still here"


def test_what_a_killed_broker_had_acknowledged_another_one_anywhere_has(
    server: RedisServer, tmp_path: Path
) -> None:
    environment = on(server, "killed")
    folder = tmp_path / "first"
    with running_broker(
        folder, "--store", "redis", environment=environment, exit_code=-signal.SIGKILL
    ) as first:
        leave_a_message(first)
        first.process.kill()
        first.process.wait(PATIENCE_S)
    assert not (folder / "data").exists()
    with running_broker(tmp_path / "2", "--store", "redis", environment=environment) as second:
        find_it(second)


def test_who_stands_by_takes_over_when_the_first_one_dies(
    server: RedisServer, tmp_path: Path
) -> None:
    environment = on(server, "standby", lease_s=2 * HANG_S)
    with running_broker(
        tmp_path, "--store", "redis", environment=environment, exit_code=-signal.SIGKILL
    ) as first:
        # On the same port: it listens when the other one does not any more.
        address = f"127.0.0.1:{first.port}"
        words = ("serve", "--listen", address, "--http", "none", "--store", "redis", "--takeover")
        standby = start(*words, environment=environment)
        assert standby.stderr is not None
        try:
            leave_a_message(first)
            while "standby: starts" not in (line := standby.stderr.readline()):
                assert line
            standby.send_signal(signal.SIGHUP)
            assert "SIGHUP deferred until the start is complete" in standby.stderr.readline()
            first.process.kill()
            first.process.wait(PATIENCE_S)
            with server.client() as client:
                client.hset("standby:meta", "beat", 1)  # The lease ends.
            assert standby.stdout is not None
            assert standby.stdout.readline().startswith(f"listening on {address} ")
            find_it(Broker(standby, "127.0.0.1", first.port, tmp_path))
            standby.send_signal(signal.SIGTERM)
            assert standby.wait(PATIENCE_S) == 0
        finally:
            standby.kill()
            standby.communicate()


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def asked(address: str, path: str) -> tuple[int, str]:
    """Return the code and the body of an answer over HTTP."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_standby_is_alive_and_not_ready_and_says_when_redis_is_unavailable(
    server: RedisServer, tmp_path: Path
) -> None:
    environment = on(server, "probed", lease_s=10)
    words = ("serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--takeover")
    with running_broker(tmp_path, "--store", "redis", environment=environment) as first:
        short = {
            **environment,
            "FLOWGUARD_REDIS__TIMEOUT_S": "0.3",
            "FLOWGUARD_LOG__FORMAT": "json",
        }
        standby = start(*words, "--store", "redis", environment=short)
        assert standby.stderr is not None
        try:
            while "standby: http listens" not in (line := standby.stderr.readline()):
                assert line
            address = f"127.0.0.1:{json.loads(line)['port']}"
            while "standby: starts" not in (line := standby.stderr.readline()):
                assert line
            assert asked(address, "/health") == (200, "alive\n")
            until(lambda: asked(address, "/ready") == (503, "not ready: standby\n"))
            assert "flowguard_standby 1\n" in asked(address, "/metrics")[1]
            code, status = asked(address, "/status")
            assert (code, f"process {first.process.pid} has probed" in status) == (503, True)
            server.pause()
            until(lambda: "standby; Redis has not answered for" in asked(address, "/ready")[1])
            server.resume()
            until(lambda: asked(address, "/ready") == (503, "not ready: standby\n"))
            assert first.terminate() == 0
            assert standby.stdout is not None
            assert standby.stdout.readline().startswith("listening on ")
            assert standby.stdout.readline() == f"http on http://{address}/\n"
            assert asked(address, "/ready") == (200, "ready\n")
        finally:
            server.resume()
            standby.kill()
            standby.communicate()


def test_who_was_paused_and_succeeded_acknowledges_nothing_any_more(
    server: RedisServer, tmp_path: Path
) -> None:
    environment = on(server, "paused")
    words = ("--store", "redis")
    with running_broker(tmp_path / "1", *words, environment=environment, exit_code=73) as first:
        leave_a_message(first)
        publisher = Caller(first, client_id="late")
        assert isinstance(publisher.read(), Connack)
        first.process.send_signal(signal.SIGSTOP)
        try:
            with running_broker(
                tmp_path / "2", *words, "--takeover", environment=environment
            ) as second:
                # The one needs a commit of the first broker; of the other only the second knows.
                publisher.send(Publish("t", b"too late", 1, packet_id=1))
                publisher.send(Publish("new", b"for nobody here", 1, packet_id=2))
                first.process.send_signal(signal.SIGCONT)
                with publisher:
                    try:
                        answer = publisher.read()
                    except ConnectionError:
                        answer = None
                assert answer is None
                assert first.process.wait(PATIENCE_S) == 73
                assert f"process {second.process.pid} has taken over" in first.log.read_text()
                find_it(second)
        finally:
            first.process.send_signal(signal.SIGCONT)


def test_a_second_broker_is_refused_by_the_name_of_the_first_one(
    server: RedisServer, tmp_path: Path
) -> None:
    environment = on(server, "second", lease_s=15)  # The first one has to renew it in time.
    with running_broker(tmp_path, "--store", "redis", environment=environment) as first:
        address = ("--listen", "127.0.0.1:0")
        code, complaint = refused(*address, "--store", "redis", environment=environment)
        assert code == 73
        assert f"process {first.process.pid} has second:meta" in complaint
        assert "--takeover" in complaint


@pytest.mark.parametrize("url", ["redis://me:secret@h:99999", "http://me:secret@h", "redis:secret"])
def test_what_is_no_address_is_not_shown(url: str) -> None:
    code, complaint = refused("--listen", "127.0.0.1:0", "--store", "redis", "--redis-url", url)
    assert code == 2
    assert "redis.url is no address" in complaint
    assert "secret" not in complaint


def test_a_server_that_is_not_there_is_named(tmp_path: Path, server: RedisServer) -> None:
    url = f"unix://{tmp_path}/nobody.sock"
    code, complaint = refused("--listen", "127.0.0.1:0", "--store", "redis", "--redis-url", url)
    assert code == 73
    assert url in complaint
    assert "No such file or directory. Is it running" in complaint


def test_a_server_that_cannot_keep_the_promise_is_refused(
    server: RedisServer, tmp_path: Path
) -> None:
    with redis_server(tmp_path) as forgetful:
        words = ("--listen", "127.0.0.1:0", "--store", "redis", "--redis-url", forgetful.url)
        code, complaint = refused(*words)
    assert code == 2
    assert "set appendonly yes" in complaint

"""A server that cannot keep the promise is refused by the name of what is missing."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from flowguard.errors import ConfigError, FormatError, StallError, StoreError
from flowguard.records import Durability, PutLogPlace, PutSession
from flowguard.stores.redis.connection.link import RedisLink
from flowguard.stores.redis.connection.server import check_address
from tests.flowguard.stores.redis.benches import new_prefix, open_store, settings_for, shared_server
from tests.flowguard.stores.test_contract import session_of
from tests.support.patience import HANG_S
from tests.support.redis_server import EVERY_SECOND, RedisServer, redis_server


@contextmanager
def configured(server: RedisServer, **settings: str) -> Iterator[None]:
    """Other settings of the server, for a while."""
    with server.client() as client:
        before = {}
        for key, value in settings.items():
            name = key.replace("_", "-")
            before |= {name: client.config_get(name)[name]}
            client.config_set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                client.config_set(name, value)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), EVERY_SECOND) as server:
        yield server


def refused(server: RedisServer, error: type[StoreError | ConfigError], **more: Any) -> str:
    with pytest.raises(error) as caught:
        open_store(server, more.pop("prefix", new_prefix()), **more)
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:1/secret@127.0.0.1:6379/0",
        "redis://127.0.0.1:6379/secret",
        "redis://127.0.0.1:6379/1/2",
        "redis+cluster://me:1/secret@127.0.0.1:6379",
        "redis+sentinel://127.0.0.1:6379/primary/secret",
    ],
)
def test_what_is_no_database_is_refused_and_not_shown(url: str) -> None:
    """The driver takes database 0 for it, or 12 for 1/2."""
    with pytest.raises(ConfigError, match="in a user or password / is written %2F") as caught:
        check_address(url)
    assert "secret" not in str(caught.value)


def test_a_cluster_has_no_database_to_name() -> None:
    with pytest.raises(ConfigError, match="a Redis Cluster has but one"):
        check_address("redis+cluster://127.0.0.1:6379/3")


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1",
        "redis://127.0.0.1:6379/",
        "rediss://me:p%2Fw@h/12",
        "unix:///run/redis/redis.sock",
        "redis+cluster://h:1,h:2",
        "redis+sentinel://h:1/primary",
        "redis+sentinel://h:1/primary/3",
    ],
)
def test_addresses_that_are_good(url: str) -> None:
    check_address(url)


def test_a_server_that_evicts_keys(server: RedisServer) -> None:
    with configured(server, maxmemory_policy="allkeys-lru"):
        assert "set maxmemory-policy noeviction" in refused(server, ConfigError)


@pytest.mark.parametrize("durability", ["os", "fsync", "fsync+replicated"])
def test_a_server_without_an_append_only_file(server: RedisServer, durability: str) -> None:
    with configured(server, appendonly="no"):
        assert "set appendonly yes" in refused(server, ConfigError, durability=durability)
        open_store(server, new_prefix(), durability="memory").close()


@pytest.mark.parametrize("appendfsync", ["everysec", "no"])
def test_a_server_that_does_not_sync_each_write(server: RedisServer, appendfsync: str) -> None:
    with configured(server, appendfsync=appendfsync):
        complaint = refused(server, ConfigError, durability="fsync")
        assert f"appendfsync {appendfsync}" in complaint
        assert "appendfsync always" in complaint
    with configured(server, appendfsync="always"):
        store = open_store(server, new_prefix(), durability="fsync")
        assert store.durability is Durability.FSYNC
        store.close()


def test_a_server_with_too_few_replicas(server: RedisServer) -> None:
    complaint = refused(server, StoreError, durability="replicated", replicas=2)
    assert "0 replicas connected" in complaint
    assert "redis.replicas" in complaint


def test_a_replica(server: RedisServer, tmp_path: Path) -> None:
    settings = {**EVERY_SECOND, "replicaof": f"127.0.0.1 {server.port}"}
    with redis_server(tmp_path / "replica", settings) as replica:
        assert "name its primary" in refused(replica, StoreError)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    shared_server()  # Skips without a client.
    gone = RedisServer(tmp_path)
    complaint = refused(gone, StoreError)
    assert str(gone.socket_path) in complaint
    assert "Is it running" in complaint
    gone.remove()


def test_keys_that_are_not_ours(server: RedisServer) -> None:
    prefix = new_prefix()
    with server.client() as client:
        client.set(f"{prefix}:somebody:else", 1)
        complaint = refused(server, FormatError, prefix=prefix)
        assert f"{prefix}:somebody:else" in complaint
        assert "redis.prefix" in complaint
        client.delete(f"{prefix}:somebody:else")
    open_store(server, prefix).close()


def test_a_prefix_that_is_the_beginning_of_another_one(server: RedisServer) -> None:
    """Nor are characters of a prefix taken for a pattern."""
    prefix = new_prefix()
    longer = open_store(server, f"{prefix}*")
    longer.commit([PutSession("c", 10, None)])
    shorter = open_store(server, prefix)
    assert list(shorter.sessions()) == []
    shorter.close()
    assert session_of(longer).expiry_interval_s == 10
    longer.close()


def test_a_store_of_another_layout(server: RedisServer) -> None:
    prefix = new_prefix()
    open_store(server, prefix).close()
    with server.client() as client:
        client.hset(f"{prefix}:meta", "layout", "other")
    assert "'layout': 'other'" in refused(server, FormatError, prefix=prefix)


def test_a_store_of_an_older_format_is_refused_and_stays_as_it_is(server: RedisServer) -> None:
    prefix = new_prefix()
    open_store(server, prefix).close()
    with server.client() as client:
        client.hset(f"{prefix}:meta", "format", "1")
        before = client.hgetall(f"{prefix}:meta")
        complaint = refused(server, FormatError, prefix=prefix)
        assert f"{prefix}: in " in complaint
        assert "format 1, and this version of flowguard reads format 2" in complaint
        assert "store copy" in complaint
        assert client.hgetall(f"{prefix}:meta") == before


def test_a_user_who_may_not_enough_and_one_who_may(server: RedisServer) -> None:
    from flowguard.stores.redis.connection.link import PERMISSIONS

    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@connection")
        rules = PERMISSIONS.split()
        client.execute_command("ACL", "SETUSER", "rich", "on", ">secret", "~p:*", *rules)
    url = f"redis://{{}}:secret@127.0.0.1:{server.port}"
    complaint = refused(server, StoreError, url=url.format("poor"))
    assert PERMISSIONS in complaint
    assert "secret" not in complaint
    store = open_store(server, "p", url=url.format("rich"))
    assert not store.commit([PutSession("c", 10, None)])
    store.close()


def test_a_wrong_password_is_named_and_not_shown(server: RedisServer) -> None:
    url = f"redis://somebody:secret@127.0.0.1:{server.port}"
    complaint = refused(server, StoreError, url=url)
    assert "denies it" in complaint
    assert "secret" not in complaint


@pytest.mark.parametrize("url", ["http://a", "127.0.0.1:6379", "redis://h:port", "unix://"])
def test_an_address_that_is_none(server: RedisServer, url: str) -> None:
    with pytest.raises(ConfigError, match=r"redis\.url"):
        open_store(server, new_prefix(), url=url)


def test_replicas_without_redis_are_refused() -> None:
    from pydantic import ValidationError

    from flowguard.config import Settings

    with pytest.raises(ValidationError, match=r"needs store\.kind redis"):
        Settings.model_validate({"store": {"durability": "replicated"}})
    settings_for(shared_server(), "x", durability="replicated")


def test_memory_that_is_nearly_used_up_makes_it_read_only_in_time(server: RedisServer) -> None:
    """A reserve is kept for accepted messages, and for work that frees memory."""
    store = open_store(server, new_prefix(), lease_s=0.5)
    store.commit([PutSession("c", 10, None)])
    assert not store.load().read_only
    with server.client() as client:
        used_bytes = client.info("memory")["used_memory"]
    with configured(server, maxmemory=str(used_bytes + 100_000)):
        again = open_store(server, new_prefix())
        load = again.load()
        assert load.read_only
        assert load.free_bytes is not None
        assert load.reserve_bytes == (used_bytes + 100_000) // 8
        assert not again.commit([PutSession("c", 10, None)])
        again.close()
        # A busy broker notices it in one of its commits, because `maintain` does not run under
        # load.
        expiry_s = 0
        while not store.load().read_only:
            expiry_s += 1
            store.commit([PutSession("c", expiry_s, None)])
    while store.load().read_only:
        expiry_s += 1
        store.commit([PutSession("c", expiry_s, None)])
    store.close()


def test_what_redis_does_not_keep_is_refused_and_not_dropped() -> None:
    store = open_store(shared_server(), new_prefix())
    store.commit([PutSession("c", 10, None)])
    with pytest.raises(StoreError, match="Redis does not keep a PutLogPlace"):
        store.commit([PutLogPlace("c", b"place")])
    store.close()


def test_child_that_writes_a_snapshot_ends_with_its_killed_server(tmp_path: Path) -> None:
    """Until it runs for the first time, it has the listening socket, too."""
    with redis_server(tmp_path, {"rdb-key-save-delay": "60000000"}) as server:
        with server.client() as client:
            client.set("key", "value")
            client.bgsave()
        assert server.processes_count() == 2
        server.kill()
        assert server.processes_count() == 0


def test_server_that_closes_each_connection_is_unavailable() -> None:
    """A proxy in front of a dead server accepts connections, and closes them."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def close_each() -> None:
            with suppress(OSError):
                while True:
                    proxy.accept()[0].close()

        closing = Thread(target=close_each)
        closing.start()

        def greet(link: RedisLink) -> None:
            link.memory()

        url = f"redis://127.0.0.1:{proxy.getsockname()[1]}/0"
        with pytest.raises(StallError):
            RedisLink(url, HANG_S, greet).memory()
        proxy.shutdown(socket.SHUT_RDWR)
        closing.join()


def test_two_brokers_may_begin_one_prefix_at_once(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = new_prefix()

    def other_begins(link: RedisLink, prefix: str) -> str:
        monkeypatch.undo()
        open_store(server, prefix).close()
        return f"{prefix}:meta"

    monkeypatch.setattr("flowguard.stores.redis.connection.server._any_key", other_begins)
    open_store(server, prefix).close()

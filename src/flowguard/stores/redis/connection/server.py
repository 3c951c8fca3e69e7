"""Checks on every new connection that a server can provide the configured durability."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from flowguard.errors import ConfigError, FormatError, StallError, StoreError
from flowguard.records import Durability
from flowguard.stores.redis.connection.cluster import RedisCluster, is_cluster, seeds_of
from flowguard.stores.redis.connection.link import RedisLink, check_url, values_of
from flowguard.stores.redis.connection.sentinel import check_names, is_sentinel
from flowguard.stores.redis.keys import BUCKETS, KeyNames

VERSION_MIN: Final = (7, 0)
FORMAT: Final = "2"
SCAN_KEYS: Final = 1_000
REWRITE_LOOK_S: Final = 0.02
"""Interval of checks of a rewrite of the append-only file."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Promise:
    """The durability level as conditions that a commit waits for."""

    durability: Durability
    needs_fsync: bool = False
    replicas: int = 0
    """Number of replicas that must confirm a commit."""


def check_address(url: str) -> None:
    """Raises `ConfigError` if `url` is no address of a server, a cluster or Sentinels."""
    if is_sentinel(url):
        check_names(url)
    elif is_cluster(url):
        seeds_of(url)
    else:
        check_url(url)


def promise_of(durability: str, replicas: int) -> Promise:
    match durability:
        case "memory":
            return Promise(Durability.MEMORY)
        case "os":
            return Promise(Durability.OS)
        case "fsync":
            return Promise(Durability.FSYNC, needs_fsync=True)
        case "replicated":
            return Promise(Durability.REPLICATED, replicas=replicas)
    assert durability == "fsync+replicated"
    return Promise(Durability.REPLICATED, needs_fsync=True, replicas=replicas)


def info(link: RedisLink, *sections: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for answer in link.ask([("INFO", section) for section in sections]):
        found |= values_of(answer)
    return found


def check_primary(link: RedisLink, facts: dict[str, str]) -> None:
    """Raises `StallError` if the server is a replica, according to its INFO."""
    if facts.get("role") != "master":
        raise StallError(f"{link.where} is a replica, which takes no writes: name its primary")


def check_server(link: RedisLink, promise: Promise, *, in_cluster: bool = False) -> None:
    """Raises `ConfigError` if the server does not fit, `StallError` if it is not ready yet."""
    facts = info(link, "server", "memory", "persistence", "replication")
    where = link.where
    version = facts.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < VERSION_MIN:
        raise ConfigError(f"{where} is Redis {version}: 7.0 or newer is needed, for functions")
    if (facts.get("redis_mode") == "cluster") != in_cluster:
        raise ConfigError(
            f"{where} is no part of a Redis Cluster: redis://HOST:PORT names a single server"
            if in_cluster
            else f"{where} is part of a Redis Cluster: its address is redis+cluster://HOST:PORT"
        )
    if facts.get("loading", "0") != "0":
        raise StallError(f"{where} is loading its data")
    check_primary(link, facts)
    policy = facts.get("maxmemory_policy")
    if policy != "noeviction":
        raise ConfigError(
            f"{where} has maxmemory-policy {policy}: it would delete what was acknowledged; "
            "set maxmemory-policy noeviction"
        )
    _check_persistence(link, promise, facts)


def _check_persistence(link: RedisLink, promise: Promise, facts: dict[str, str]) -> None:
    where, level = link.where, promise.durability
    if (level is Durability.OS or promise.needs_fsync) and facts.get("aof_enabled") != "1":
        raise ConfigError(
            f"{where} writes no append-only file: set appendonly yes, or choose another "
            "store.durability (memory, replicated)"
        )
    if promise.needs_fsync:
        (answer,) = link.ask([("CONFIG", "GET", "appendfsync")])
        found = answer[1].decode() if len(answer) == 2 else "unknown"
        if found != "always":
            raise ConfigError(
                f"{where} has appendfsync {found}: store.durability fsync needs appendfsync "
                "always; set it there, or choose another level (os, replicated)"
            )
    if promise.replicas and int(facts.get("connected_slaves", "0")) < promise.replicas:
        raise StallError(
            f"{where} has {facts.get('connected_slaves', '0')} replicas connected, and "
            f"{promise.replicas} must confirm each commit (redis.replicas)"
        )


def run_ids(servers: Sequence[RedisLink]) -> dict[str, RedisLink]:
    """Return the servers by run id, which changes with each start of a server."""
    return {info(server, "server")["run_id"]: server for server in servers}


def end_torn_commit(link: RedisLink, sleep: Callable[[float], None]) -> None:
    """Remove the rest of a commit during which the server was killed.

    A commit is a transaction in the append-only file. If the file ends within one, Redis (7.0.15)
    skips it, but cuts off only its last command. So the next start would execute the rest together
    with later commits (valkey-io/valkey#4342). Rewriting the file removes it. Raises `StoreError`.
    """
    facts = info(link, "persistence")
    if facts.get("aof_enabled") != "1":
        return
    log.info("rewriting the append-only file: a commit may have been cut off", at=link.where)
    _wait_for_rewrite(link, sleep)  # An earlier rewrite proves nothing.
    link.ask([(b"BGREWRITEAOF",)])
    facts = _wait_for_rewrite(link, sleep)
    if facts.get("aof_last_bgrewrite_status") != "ok":
        raise StoreError(
            f"{link.where} cannot rewrite its append-only file, which may end with half of a "
            "commit (BGREWRITEAOF; see the log of that server)"
        )


def _wait_for_rewrite(link: RedisLink, sleep: Callable[[float], None]) -> dict[str, str]:
    """Wait until no rewrite is under way. Return the persistence section of INFO."""
    while True:
        facts = info(link, "persistence")
        if "1" not in (facts["aof_rewrite_in_progress"], facts["aof_rewrite_scheduled"]):
            return facts
        sleep(REWRITE_LOOK_S)


def check_version(found: str, where: str) -> None:
    """Raises `FormatError` for a store of another format, which only its own version can read."""
    if found != FORMAT:
        raise FormatError(
            f"{where} is a store of format {found}, and this version of flowguard reads format "
            f"{FORMAT}: copy it to a directory with the version that wrote it (flowguard store "
            "copy), and from there to a new redis.prefix with this one"
        )


def check_format(
    link: RedisLink | RedisCluster,
    servers: Sequence[RedisLink],
    names: KeyNames,
    prefix: str,
    layout: str,
) -> None:
    """Raises `FormatError` if the prefix has other keys than those of a store of this layout.

    `servers` are all servers that have some of its keys."""
    expected = {"format": FORMAT, "layout": layout, "buckets": str(BUCKETS)}
    found = _format_of(link, names, expected)
    if found == list(expected.values()):
        return
    if found[0] is not None:
        check_version(found[0], f"{prefix}: in {link.where}")
    if any(value is not None for value in found):
        there = dict(zip(expected, found, strict=True))
        raise FormatError(
            f"{link.where} has a store with {there} below {prefix}:, and this is for {expected}: "
            "choose another redis.prefix, or redis.layout"
        )
    for server in servers:
        key = _any_key(server, prefix)
        if key is None or _format_of(link, names, expected) == list(expected.values()):
            continue  # If there is a format now, another broker has begun meanwhile.
        raise FormatError(
            f"{link.where} has foreign keys below {prefix}:, {key!r} is one of them: "
            "choose another redis.prefix"
        )
    link.ask([("HSETNX", names.meta, key, value) for key, value in expected.items()])


def _format_of(
    link: RedisLink | RedisCluster, names: KeyNames, expected: Iterable[str]
) -> list[str | None]:
    (answer,) = link.ask([("HMGET", names.meta, *expected)])
    return [None if value is None else value.decode() for value in answer]


def literal(text: bytes) -> bytes:
    """Return a Redis pattern that matches only this text."""
    return re.sub(rb"[*?\[\]\\^-]", rb"\\\g<0>", text)


def _any_key(link: RedisLink, prefix: str) -> str | None:
    """Return a key below the prefix, or None. O(all keys of the server)."""
    pattern = literal(prefix.encode()) + b":*"
    cursor = b"0"
    while True:
        (answer,) = link.ask([("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_KEYS)])
        cursor, keys = answer
        if keys:
            name: str = keys[0].decode(errors="replace")
            return name
        if cursor == b"0":
            return None

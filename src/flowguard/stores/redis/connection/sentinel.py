"""Asks Sentinels for the primary, before every new connection."""

from contextlib import closing
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from flowguard.errors import ConfigError, StallError
from flowguard.stores.redis.connection.link import RedisLink, check_database

SCHEMES: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}


def is_sentinel(url: str) -> bool:
    return urlsplit(url).scheme in SCHEMES


def check_names(url: str) -> None:
    """Raises `ConfigError` if `url` names no Sentinel or no primary."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    if not hosts or not parts.path.strip("/").partition("/")[0]:
        raise ConfigError(
            f"redis.url has no {'name of a primary' if hosts else 'Sentinel'}: it is "
            "redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB"
        )
    check_database(parts.path.strip("/").partition("/")[2])


def find_primary(url: str, timeout_s: float) -> str:
    """Return the URL of the primary that the first answering Sentinel names.

    User, password and TLS of the address are for the servers, not for the Sentinels. Raises
    `ConfigError` if `url` is no address, `StallError` if no Sentinel has the primary.
    """
    check_names(url)
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    trouble: list[str] = []
    for host in hosts.split(","):
        sentinel = RedisLink(f"redis://{host}", timeout_s)
        try:
            with closing(sentinel):
                (found,) = sentinel.ask([(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name)])
        except StallError as error:
            trouble.append(str(error))
            continue
        if found:
            there, port = (each.decode() for each in found)
            there = f"[{there}]" if ":" in there else there
            server = f"{user}{at}{there}:{port}"
            return urlunsplit((SCHEMES[parts.scheme], server, f"/{database or 0}", "", ""))
        trouble.append(f"{sentinel.where} knows no primary {name!r}")
    raise StallError("; ".join(trouble))

"""RedisLink: one connection to one server, which reconnects after a failure.

The only user of redis-py. It takes addresses, TLS and AUTH from redis-py's connection, and sends
commands and reads replies there itself, because pipelines and their objects are not needed.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, final
from urllib.parse import urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from flowguard.errors import ConfigError, FormatError, StallError, StoreError
from flowguard.stores.redis.connection.packing import Words, pack
from flowguard.stores.redis.lua.functions import LIBRARY

Call = tuple[Sequence[bytes], Words]
"""Keys and arguments of a function."""

INFO_MEMORY: Final = (b"INFO", b"memory")

SCHEMES: Final = ("redis", "rediss", "unix")
_PASSING: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.AskError,  # The base class of MovedError.
    OSError,
)
"""Temporary errors, after which a retry may succeed."""
_PASSING_TEXTS: Final = ("NOREPLICAS", "MISCONF", "BUSY", "UNKILLABLE")
_DENIED: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.NoPermissionError,
)
PERMISSIONS: Final = (
    "+@read +@write +@connection +fcall +function|load +info +config|get +wait +time "
    "+bgrewriteaof +cluster|slots +cluster|info"
)
"""Permissions that the user needs if Redis has an ACL, for the keys below the prefix."""


def shown(url: str) -> str:
    """Return the address without user and password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"


def check_url(url: str) -> None:
    """Raises `ConfigError` if `url` is no address of a server."""
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.path) if parts.scheme == "unix" else "://" in url
        fits = parts.scheme in SCHEMES and is_whole
        _ = parts.port
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(
            "redis.url is no address: redis://HOST:PORT/0, rediss://USER:PASSWORD@HOST, "
            "unix:///path/to/redis.sock, redis+cluster://HOST:PORT,HOST:PORT, or "
            "redis+sentinel://HOST:PORT,HOST:PORT/NAME"
        )
    if parts.scheme != "unix":
        check_database(parts.path[1:])


def check_database(name: str) -> None:
    """Raises `ConfigError` if `name` is no number. The error does not show `name`, which may be a
    part of a password."""
    if not re.fullmatch("[0-9]*", name):
        raise ConfigError(
            "redis.url has no number of a database behind its first /, after the server; in a user "
            "or password / is written %2F, ? %3F, # %23, @ %40 and % %25"
        )


def is_passing(error: BaseException) -> bool:
    """Return True if an error of the driver or the server is temporary."""
    return isinstance(error, _PASSING) or str(error).startswith(_PASSING_TEXTS)


def failure(error: BaseException, where: str) -> StoreError:
    """Return an error of the driver or the server as one of flowguard; `StallError` if a retry may
    succeed."""
    text = str(error).rstrip(".") or error.__class__.__name__
    if isinstance(error, _DENIED):
        return StoreError(
            f"{where} denies it: {text}. The user needs: {PERMISSIONS}, and ~PREFIX:*"
        )
    if is_passing(error):
        return StallError(f"{where}: {text}")
    if text.startswith("WRONGTYPE") or "WRONGTYPE" in text:
        return FormatError(
            f"{where} has other keys under our names: choose another redis.prefix ({text})"
        )
    return StoreError(f"{where}: {text}")


@dataclass(frozen=True, slots=True)
class Redirection:
    """Another node of a Redis Cluster, which has the slot of a command."""

    slot: int
    host: str
    """Host of the node; "" for that of the node that answered."""
    port: int
    is_for_good: bool
    """True for MOVED, False for ASK, which applies once."""


def redirection_of(answer: Exception) -> Redirection | None:
    """Return the redirection in an answer, or None if it is another error."""
    if not isinstance(answer, exceptions.AskError):
        return None
    is_moved = isinstance(answer, exceptions.MovedError)
    return Redirection(answer.slot_id, answer.host, answer.port, is_moved)


def values_of(answer: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in answer.decode().splitlines())
    return {key: value for key, colon, value in pairs if colon}


def check_replicas(where: str, replicas: int, confirmed: Sequence[int]) -> None:
    """Raises `StallError` if fewer replicas than required have confirmed, according to WAIT."""
    if replicas and confirmed[-1] < replicas:
        raise StallError(
            f"{where}: {confirmed[-1]} of {replicas} replicas have confirmed the commit"
        )


@final
class RedisLink:
    """Call from one thread at a time. After a `StallError` the caller may retry, which reconnects.

    `greet` is called with the link first on every new connection; `ask` raises its errors. `find`,
    if given, returns the server's URL before every new connection.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        greet: Callable[["RedisLink"], None] = lambda link: None,
        find: Callable[[], str] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._greet = greet
        self._find = find
        self._connection: Any = None
        self._is_greeting = False
        self._go_to(url if find is None else find())

    def _go_to(self, url: str) -> None:
        check_url(url)
        self.where = shown(url)
        self._pool: Any = redis.ConnectionPool.from_url(
            url,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            client_name="flowguard",
            max_connections=2**31,  # It counts all connections ever made.
        )

    def ask(self, commands: Sequence[Words]) -> list[Any]:
        """Send the commands in one write, and return the answers in order.

        Raises `StallError` (also if it is unknown whether the commands were executed), or the
        `StoreError` of the first answer that is an error.
        """
        return self._checked(self._exchange_or_again(commands))

    def _checked(self, found: list[Any]) -> list[Any]:
        for answer in found:
            if isinstance(answer, Exception):
                raise failure(answer, self.where) from answer
        return found

    def call(self, function: bytes, keys: Sequence[bytes], words: Words, *then: Words) -> list[Any]:
        """Return the answer of a function of the library, then those of the commands `then`."""
        commands = [(b"FCALL", function, len(keys), *keys, *words), *then]
        found = self._exchange_or_again(commands)
        if isinstance(found[0], Exception) and "Function not found" in str(found[0]):
            self.load_functions()
            return self.ask(commands)
        return self._checked(found)

    def commit(
        self, function: bytes, calls: Sequence[Call], replicas: int, wait_ms: int
    ) -> list[Any]:
        """Return the answers to the calls when `replicas` have confirmed them. Raises
        `StallError`; then the caller may retry."""
        ((keys, words),) = calls
        waits = ((b"WAIT", replicas, wait_ms),) if replicas else ()
        answer, *confirmed = self.call(function, keys, words, *waits)
        check_replicas(self.where, replicas, confirmed)
        return [answer]

    def memory(self) -> dict[str, str]:
        """Return INFO memory of the server."""
        (answer,) = self.ask([INFO_MEMORY])
        return values_of(answer)

    def load_functions(self) -> None:
        """Load the library of functions into the server if it is missing there."""
        (answer,) = self._exchange([(b"FUNCTION", b"LOAD", LIBRARY)])
        if isinstance(answer, Exception) and "already exists" not in str(answer):
            raise failure(answer, self.where) from answer

    def close(self) -> None:
        """Close the connection; `ask` makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()

    def _connect(self) -> None:
        if self._find is not None:
            self._go_to(self._find())
        connection = self._pool.make_connection()
        try:
            connection.connect()
        except (exceptions.RedisError, OSError) as error:
            raise failure(error, self.where) from error
        self._connection = connection
        self._is_greeting = True
        try:
            self._greet(self)
        except BaseException:
            self.close()
            raise
        finally:
            self._is_greeting = False

    def _exchange_or_again(self, commands: Sequence[Words]) -> list[Any]:
        """Retry once if the connection has ended since its last use; commands may be repeated."""
        if self._connection is not None:
            try:
                return self._exchange(commands)
            except StallError as error:
                if self._is_greeting or isinstance(error.__cause__, exceptions.TimeoutError):
                    raise
        if self._connection is None:
            self._connect()
        return self._exchange(commands)

    def _exchange(self, commands: Sequence[Words]) -> list[Any]:
        """Return the answers, which may be errors. Raises if the connection has failed."""
        self._post(commands)
        return self.collect(len(commands))

    def post(self, commands: Sequence[Words]) -> None:
        """Send the commands, on a new connection if necessary; `collect` returns the answers."""
        if self._connection is None:
            self._connect()
        self._post(commands)

    def _post(self, commands: Sequence[Words]) -> None:
        connection = self._connection
        with self._ending():
            connection.send_packed_command([pack(commands)], check_health=False)

    def collect(self, count: int) -> list[Any]:
        """Return the answers to posted commands, which may be errors. Raises as `ask`."""
        connection = self._connection
        found: list[Any] = []
        with self._ending():
            for _ in range(count):
                try:
                    found.append(connection.read_response())
                except exceptions.ResponseError as answer:
                    found.append(answer)
        if self._find is not None and any(
            isinstance(answer, exceptions.ReadOnlyError) for answer in found
        ):
            self.close()  # Another server is the primary now.
        return found

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Close the connection after an error."""
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            self.close()
            raise failure(error, self.where) from error
        except BaseException:
            self.close()
            raise

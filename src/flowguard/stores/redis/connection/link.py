"""RedisLink: one connection to one server, made anew when it breaks; it alone knows redis-py.

Commands are packed and replies read on redis-py's own connection: addresses, TLS and AUTH are its
business, pipelines and their objects are not needed.
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
    exceptions.AskError,  # And MOVED, which is one.
    OSError,
)
"""Errors that end by themselves, or with the trouble that the server has."""
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
"""What the user of an ACL needs, for the keys below the prefix."""


def shown(url: str) -> str:
    """The address without user and password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"


def check_url(url: str) -> None:
    """Raise `ConfigError` where `url` is no address of a server."""
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
    """Raise `ConfigError` where `name` is no number; it is not shown, for it may be a secret."""
    if not re.fullmatch("[0-9]*", name):
        raise ConfigError(
            "redis.url has no number of a database behind its first /, after the server; in a user "
            "or password / is written %2F, ? %3F, # %23, @ %40 and % %25"
        )


def is_passing(error: BaseException) -> bool:
    """Whether an error of the driver or the server ends by itself."""
    return isinstance(error, _PASSING) or str(error).startswith(_PASSING_TEXTS)


def failure(error: BaseException, where: str) -> StoreError:
    """An error of the driver or the server, as one of ours; `StallError`: it may be tried again."""
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
    """Another node of a Redis Cluster, which has what was asked for."""

    slot: int
    host: str
    """Empty: as that of who said so."""
    port: int
    is_for_good: bool
    """MOVED; else ASK: this once."""


def redirection_of(answer: Exception) -> Redirection | None:
    """Where an answer sends us; None: it is another error."""
    if not isinstance(answer, exceptions.AskError):
        return None
    is_moved = isinstance(answer, exceptions.MovedError)
    return Redirection(answer.slot_id, answer.host, answer.port, is_moved)


def values_of(answer: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in answer.decode().splitlines())
    return {key: value for key, colon, value in pairs if colon}


def check_replicas(where: str, replicas: int, confirmed: Sequence[int]) -> None:
    """Raise `StallError` where fewer replicas than asked for have answered WAIT."""
    if replicas and confirmed[-1] < replicas:
        raise StallError(
            f"{where}: {confirmed[-1]} of {replicas} replicas have confirmed the commit"
        )


@final
class RedisLink:
    """Call from one thread at a time. Every `StallError` may be tried again, on a new connection.

    `greet` is called with the link whenever there is a new connection, before anything else; what
    it raises, `ask` raises. `find`, where there is one, says then which server it is to.
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
            max_connections=2**31,  # The pool counts all it ever made; we have one at a time.
        )

    def ask(self, commands: Sequence[Words]) -> list[Any]:
        """The answers, in order; one connection, one write.

        Raises `StallError` (also where nobody knows what was done), or the `StoreError` of the
        first answer that is an error.
        """
        return self._checked(self._exchange_or_again(commands))

    def _checked(self, found: list[Any]) -> list[Any]:
        for answer in found:
            if isinstance(answer, Exception):
                raise failure(answer, self.where) from answer
        return found

    def call(self, function: bytes, keys: Sequence[bytes], words: Words, *then: Words) -> list[Any]:
        """The answer of a function of the library, then those of other commands."""
        commands = [(b"FCALL", function, len(keys), *keys, *words), *then]
        found = self._exchange_or_again(commands)
        if isinstance(found[0], Exception) and "Function not found" in str(found[0]):
            self.load_functions()
            return self.ask(commands)
        return self._checked(found)

    def commit(
        self, function: bytes, calls: Sequence[Call], replicas: int, wait_ms: int
    ) -> list[Any]:
        """The answers to the calls, when so many replicas have them; `StallError`: try again."""
        ((keys, words),) = calls
        waits = ((b"WAIT", replicas, wait_ms),) if replicas else ()
        answer, *confirmed = self.call(function, keys, words, *waits)
        check_replicas(self.where, replicas, confirmed)
        return [answer]

    def memory(self) -> dict[str, str]:
        """The server's memory, as INFO has it."""
        (answer,) = self.ask([INFO_MEMORY])
        return values_of(answer)

    def load_functions(self) -> None:
        """Give the library to the server, where it has not got it yet."""
        (answer,) = self._exchange([(b"FUNCTION", b"LOAD", LIBRARY)])
        if isinstance(answer, Exception) and "already exists" not in str(answer):
            raise failure(answer, self.where) from answer

    def close(self) -> None:
        """Give up the connection; `ask` makes another one."""
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
        try:
            self._greet(self)
        except BaseException:
            self.close()
            raise

    def _exchange_or_again(self, commands: Sequence[Words]) -> list[Any]:
        """A connection may have ended since it was used last: all we ask may be asked twice."""
        if self._connection is not None:
            try:
                return self._exchange(commands)
            except StallError as error:
                if isinstance(error.__cause__, exceptions.TimeoutError):
                    raise
        if self._connection is None:
            self._connect()
        return self._exchange(commands)

    def _exchange(self, commands: Sequence[Words]) -> list[Any]:
        """Answers, errors among them; raises where the connection is of no use any more."""
        self._post(commands)
        return self.collect(len(commands))

    def post(self, commands: Sequence[Words]) -> None:
        """Send the commands, on a new connection if there is none; `collect` has the answers."""
        if self._connection is None:
            self._connect()
        self._post(commands)

    def _post(self, commands: Sequence[Words]) -> None:
        connection = self._connection
        with self._ending():
            connection.send_packed_command([pack(commands)], check_health=False)

    def collect(self, count: int) -> list[Any]:
        """The answers to what was posted, errors among them; raises as `ask`."""
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
            self.close()  # Another one is the primary now.
        return found

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """A connection that broke is given up."""
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            self.close()
            raise failure(error, self.where) from error
        except BaseException:
            self.close()
            raise

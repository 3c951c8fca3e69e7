"""The common interface of all foreign clients in the tests, with one adapter per client.

A `Peer` is a client library (or a pair of programs) that speaks one version of MQTT; it opens
`Connection`s.
"""

import abc
import itertools
import queue
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from tests.interop.broker import PATIENCE_S

EngineT = TypeVar("EngineT")

KEEP_ALIVE_S = 60
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Message:
    """A PUBLISH; `properties` in the words of the standard, without those that are absent."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subscription:
    """A filter with its options; all but `qos` are 5.0's."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    start_time: int | None = None
    """Milliseconds since the epoch, negative for a time before now, or None for now."""


@dataclass(frozen=True)
class Opening:
    """How a connection is opened."""

    client_id: str
    subscriptions: tuple[Subscription, ...] = ()
    clean: bool = True
    expiry_s: int = 0
    will: Message | None = None
    keep_alive_s: int = KEEP_ALIVE_S


class Connection(abc.ABC):
    """One network connection of a client. Messages that arrive wait in `inbox`."""

    def __init__(self) -> None:
        self.inbox: queue.Queue[Message] = queue.Queue()
        self.ended: queue.Queue[int | None] = queue.Queue()
        """Gets the reason of the server's DISCONNECT (None without one) at the end of the
        connection."""
        self.session_present: bool | None = None
        """True if the server had the session, or None if this client does not report it."""

    def receive(self) -> Message:
        """The next message."""
        return self.inbox.get(timeout=PATIENCE_S)

    def wait_ended(self) -> int | None:
        """Wait until the server ends the connection; its reason code."""
        return self.ended.get(timeout=PATIENCE_S)

    @abc.abstractmethod
    def publish(self, *messages: Message) -> None:
        """Send all, and wait until the broker has acknowledged those that it acknowledges."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """End in order."""

    @abc.abstractmethod
    def cut(self) -> None:
        """End without a word, as if the cable were cut."""

    def subscribe(self, *subscriptions: Subscription) -> list[int]:
        """Subscribe; the reason codes."""
        raise NotImplementedError

    def unsubscribe(self, filter: str) -> None:
        """Unsubscribe, and wait for UNSUBACK."""
        raise NotImplementedError


class Engines:
    """What connections run on and all tests share: a thread with an event loop, a process."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[type, Any] = {}

    def get(self, kind: type[EngineT]) -> EngineT:
        if kind not in self._running:
            self._running[kind] = self._stack.enter_context(kind())  # type: ignore[arg-type]
        engine: EngineT = self._running[kind]
        return engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


class Peer(abc.ABC):
    """A client that speaks one version."""

    resumes_silently: ClassVar[bool] = True
    """False: subscribes again whenever it connects."""

    def __init__(self, version: str, port: int, engines: Engines) -> None:
        self.version = version
        self.port = port
        self.ports: Iterator[int] = itertools.repeat(port)
        """The port of each next connection."""
        self.engines = engines
        self._open: list[Connection] = []

    def require(self) -> None:
        """Skip the test if a program is missing; a Python package is missed at its import."""
        return

    @property
    def notices_the_end(self) -> bool:
        """False: `Connection.wait_ended` would wait for ever."""
        return True

    @property
    def leaves_with_will(self) -> bool:
        """True: asks for its will when it disconnects."""
        return False

    def keeps_order(self, qos: int) -> bool:
        """False: each message comes from a client of its own, and MQTT orders those of one."""
        return True

    @property
    def is_5(self) -> bool:
        return self.version == "5.0"

    def open(
        self, *subscriptions: Subscription | str, client_id: str | None = None, **rest: Any
    ) -> Connection:
        """Connect and subscribe; a str is a filter with QoS 0. See `Opening`."""
        opening = Opening(
            f"c{next(_numbers)}" if client_id is None else client_id,
            tuple(Subscription(each) if isinstance(each, str) else each for each in subscriptions),
            **rest,
        )
        if not self.is_5:
            opening = replace(opening, expiry_s=0)
        self.port = next(self.ports)
        connection = self.connect(opening)
        if self.version == "3.1":
            connection.session_present = None  # A CONNACK of 3.1 has no such bit.
        self._open.append(connection)
        return connection

    @abc.abstractmethod
    def connect(self, opening: Opening) -> Connection:
        """A connection that has its CONNACK and all SUBACKs."""

    def close(self) -> None:
        """End what the test left open."""
        for connection in self._open:
            connection.cut()
        self._open.clear()

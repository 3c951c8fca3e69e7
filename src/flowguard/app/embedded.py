"""A broker inside a program on trio: `async with open_broker(settings) as broker`.

async with flowguard.open_broker({"flow": {"window_max": 50}}) as broker:
    print(broker.address)
    async with broker.client("me") as client:
        await client.subscribe("orders/#")
        await client.publish("orders/1", b"...", qos=1)
        async for message in client:
            ...
"""

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, final

import trio
from pydantic import ValidationError

from flowguard.app.broker import build_broker
from flowguard.app.failures import StartError
from flowguard.app.host_logs import to_the_host
from flowguard.broker.local.local_client import INBOX_MESSAGES, EndedError, LocalClient
from flowguard.broker.local.local_packets import connect_packet
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen
from flowguard.broker.sockets.listening import Doorway
from flowguard.codec.packets import Will
from flowguard.config import Settings
from flowguard.errors import ConfigError
from flowguard.node.connect.authentication import Hooks
from flowguard.section import Section, complaint
from flowguard.stores import MemoryStore, Store

Given = Settings | Mapping[str, Mapping[str, Any] | Section] | None
"""Settings, or their sections: `{"flow": {"window_max": 50}}`, or None for the defaults."""


@final
class EmbeddedBroker:
    """A broker that runs in this program, until the block of `open_broker` ends."""

    def __init__(self, running: Running, nursery: trio.Nursery) -> None:
        self.running = running
        """The broker's own parts: the node, backups, and the callbacks of each tick."""
        self._nursery = nursery

    @property
    def address(self) -> tuple[str, int]:
        """The address for clients of other processes: host and port."""
        return self.running.address

    @asynccontextmanager
    async def client(self, client_id: str = "", **options: Any) -> AsyncIterator[LocalClient]:
        """A client of this process until the block ends; see `connect` for the options."""
        client = await self.connect(client_id, **options)
        try:
            yield client
        finally:
            with trio.CancelScope(shield=True):
                await client.close()

    async def connect(
        self,
        client_id: str = "",
        *,
        clean_start: bool = True,
        session_expiry_s: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
    ) -> LocalClient:
        """A client of this process, to be closed by its owner.

        Raises TypeError and ValueError if an argument is wrong, `NotAcceptedError`, and
        `EndedError`: the broker has ended, or is about to.
        """
        packet = connect_packet(
            client_id,
            clean_start=clean_start,
            session_expiry_s=session_expiry_s,
            username=username,
            password=password,
            will=will,
            receive_maximum=INBOX_MESSAGES,
        )
        stream = self._open_stream()
        try:
            client = LocalClient(stream)
            await client.connect(packet)
            self._check_runs()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        self._nursery.start_soon(client.run)
        return client

    def _open_stream(self) -> trio.SocketStream:
        """The other end of a pair of sockets of which the broker has one."""
        self._check_runs()
        ours, theirs = socket.socketpair()
        try:
            self.running.adopt(theirs)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    def _check_runs(self) -> None:
        has_failed = self._nursery.cancel_scope.cancel_called
        if has_failed or self.running.stop.is_set():
            raise EndedError("the broker has ended")


@asynccontextmanager
async def open_broker(
    settings: Given = None,
    *,
    hooks: Hooks | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    data: str | os.PathLike[str] | None = None,
    store: Store | None = None,
) -> AsyncIterator[EmbeddedBroker]:
    """A broker until the block ends, which drains it.

    `port` 0: a free one; `data`: the directory for what must survive, None: nothing survives;
    `store`: one of your own instead, which is closed in the end.
    It logs to the logger `flowguard` of `logging`, or as the program configured structlog.
    Raises `ConfigError`, `StoreError` and `OSError` before the block begins. An error of the
    block is raised as it is; one of the broker ends the block, in an `ExceptionGroup`.
    """
    with to_the_host():
        async with _opened(settings, hooks, host, port, data, store) as broker:
            yield broker


@asynccontextmanager
async def _opened(
    settings: Given,
    hooks: Hooks | None,
    host: str,
    port: int,
    data: str | os.PathLike[str] | None,
    store: Store | None,
) -> AsyncIterator[EmbeddedBroker]:
    bounds = bounds_of(_checked(settings, durable=data is not None))
    _require_fit(bounds.asked)
    if store is None and data is None and bounds.settings.store.kind == "rocks":
        store = MemoryStore()
    try:
        listeners = [Doorway(listen(host, port))]
    except BaseException:
        if store is not None:
            store.close()
        raise
    place = Path() if data is None else Path(data)
    try:
        parts = build_broker(bounds, data=place, store=store, listeners=listeners, hooks=hooks)
    except StartError as error:
        raise error.cause from None
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            running = await nursery.start(parts.run)
        except Exception as error:
            failure = error
        else:
            try:
                yield EmbeddedBroker(running, nursery)
            except Exception as error:
                failure = error
            finally:
                running.stop.set()
    if failure is not None:
        raise failure


def _require_fit(settings: Settings) -> None:
    """Raise ConfigError for settings that a broker inside a program cannot follow."""
    if settings.node.workers != 1:
        raise ConfigError("node.workers: a broker inside a program has one worker")
    if "data_dir" in settings.store.model_fields_set:
        raise ConfigError("store.data_dir: open_broker(data=...) names this directory")


def _checked(settings: Given, *, durable: bool) -> Settings:
    if isinstance(settings, Settings):
        return settings
    if settings is None:
        settings = {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            "settings are expected to be Settings, or their sections as "
            f'{{"flow": {{"window_max": 50}}}}, not {type(settings).__name__}'
        )
    sections: dict[Any, Any] = {
        name: dict(values) if isinstance(values, Mapping) else values
        for name, values in settings.items()
    }
    if not durable and isinstance(store := sections.setdefault("store", {}), dict):
        store.setdefault("kind", "memory")
    try:
        return Settings.model_validate(sections)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        why = complaint(Settings, first)
        raise ConfigError(f"{key}: {why}" if key else why) from error

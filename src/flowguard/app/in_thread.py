"""A broker in a thread of its own, for programs without trio: `with run_broker() as broker`.

    with flowguard.run_broker() as broker, broker.client("me") as client:
        client.publish("orders/1", b"...", qos=1)

All calls block the thread that calls, and no other: on asyncio they belong into
`await asyncio.to_thread(client.publish, "orders/1", b"...", 1)`. Once the broker has ended they
raise `EndedError`; closing a client is no error then.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, final

import trio

from flowguard.app.embedded import EmbeddedBroker, Given, open_broker
from flowguard.broker.local.local_client import EndedError, LocalClient
from flowguard.types import Publish

T = TypeVar("T")


@final
class BlockingClient:
    """A `LocalClient` for threads that may wait."""

    def __init__(self, client: LocalClient, call: Callable[..., Any]) -> None:
        self._client = client
        self._call = call

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        """See `LocalClient.publish`."""
        self._call(partial(self._client.publish, topic, payload, qos, retain=retain))

    def subscribe(self, *filters: str, qos: int = 2) -> None:
        """See `LocalClient.subscribe`."""
        self._call(partial(self._client.subscribe, *filters, qos=qos))

    def unsubscribe(self, *filters: str) -> None:
        """See `LocalClient.unsubscribe`."""
        self._call(partial(self._client.unsubscribe, *filters))

    def receive(self) -> Publish:
        """See `LocalClient.receive`."""
        message: Publish = self._call(self._client.receive)
        return message

    def __iter__(self) -> Iterator[Publish]:
        """Messages until the connection ends."""
        while True:
            try:
                message = self.receive()
            except EndedError:
                return
            yield message

    def close(self) -> None:
        """See `LocalClient.close`."""
        with suppress(EndedError):  # With the broker its clients were closed.
            self._call(self._client.close)


@final
class BrokerThread:
    """A broker that runs beside this thread, until the block of `run_broker` ends."""

    def __init__(self, broker: EmbeddedBroker, stop: trio.Event) -> None:
        self._broker = broker
        self._stop = stop
        self._token = trio.lowlevel.current_trio_token()

    @property
    def address(self) -> tuple[str, int]:
        """The address for clients of other processes: host and port."""
        return self._broker.address

    @contextmanager
    def client(self, client_id: str = "", **options: Any) -> Iterator[BlockingClient]:
        """A client of this process until the block ends; options as `EmbeddedBroker.connect`."""
        client = self._call(partial(self._broker.connect, client_id, **options))
        blocking = BlockingClient(client, self._call)
        try:
            yield blocking
        finally:
            blocking.close()

    def _call(self, function: Callable[..., Any]) -> Any:
        try:
            return trio.from_thread.run(function, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise EndedError("the broker has ended") from None

    def stop(self) -> None:
        """Drain; the thread ends then. Safe to repeat."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)


@contextmanager
def run_broker(settings: Given = None, **options: Any) -> Iterator[BrokerThread]:
    """A broker in a thread until the block ends, which drains it; options as `open_broker`.

    Raises what `open_broker` raises; what ended the broker is raised at the end of the block.
    """
    started: Future[BrokerThread] = Future()
    ended: Future[None] = Future()

    async def main() -> None:
        async with open_broker(settings, **options) as broker:
            stop = trio.Event()
            started.set_result(BrokerThread(broker, stop))
            await stop.wait()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            ended.set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=run, name="flowguard")
    thread.start()
    broker = started.result()
    try:
        yield broker
    finally:
        broker.stop()
        thread.join()
    ended.result()

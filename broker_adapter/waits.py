"""AsyncGuard: a `HostGuard` for hosts that wait by `await`; the same under trio and asyncio.

    async with guard.connecting(client):           # a place at the gate
        ...                                        # authenticate, answer
    async with guard.packet(client, cost=1):       # a place in its window
        ...                                        # the work

Both wait for a slot, and raise `RefusedError` if they get none. A block frees its slot when it
ends, also after an error or a cancellation.

`flowguard.flow` returns overload as a value. A block has no value to check, so it raises an
exception.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Protocol, final

from broker_adapter.host_guard import GuardedClient, GuardedPacket, HostGuard
from flowguard.errors import FlowguardError
from flowguard.flow import Admission, Reason, Verdict


class RefusedError(FlowguardError):
    """The guard has rejected the work, which has not begun."""

    def __init__(self, reason: Reason | None, retry_after_s: float) -> None:
        self.reason = reason
        """Why, or None if the client has disconnected."""
        self.retry_after_s = retry_after_s
        """Retry-after hint, seconds, or 0 if a retry is useless."""
        super().__init__(f"refused ({reason or 'gone'}), come back in {retry_after_s:.1f} s")


class Bell(Protocol):
    """Wakes one task, from any thread."""

    def ring(self) -> None:
        """Wake the waiting task; safe to repeat."""

    async def wait(self) -> None:
        """Wait until it rings; return at once if it has."""


@final
class AsyncGuard:
    """Blocks over a guard that its host ticks (as `open_guard` does)."""

    __slots__ = ("_bell", "clock", "guard")

    def __init__(
        self, guard: HostGuard, clock: Callable[[], float], bell: Callable[[], Bell]
    ) -> None:
        """`clock`: monotonic, seconds, used for all calls; `bell`: makes one for the running
        task."""
        self.guard = guard
        self.clock = clock
        self._bell = bell

    def client(self, client_id: str = "", tenant: str = "") -> GuardedClient:
        """Return a client with its own window, see `HostGuard.client`."""
        return self.guard.client(client_id, tenant)

    @asynccontextmanager
    async def connecting(
        self, client: GuardedClient, size_bytes: int = 0
    ) -> AsyncIterator[GuardedClient]:
        """A block in which a client's CONNECT is in process; an error in it ends the client."""
        bell, decided = self._bell(), list[Admission]()

        def decide(admission: Admission) -> None:
            decided.append(admission)
            bell.ring()

        admission = self.guard.offer(client, self.clock(), size_bytes=size_bytes, decided=decide)
        with self._gone_on_error(client):
            if admission.verdict is Verdict.DELAY:
                await bell.wait()
                (admission,) = decided
        _go_on_if_admitted(admission)
        with self._gone_on_error(client):
            yield client
        self.guard.answered(client, self.clock())

    @contextmanager
    def _gone_on_error(self, client: GuardedClient) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.gone(client)
            raise

    def packet(self, client: GuardedClient, cost: int = 1, size_bytes: int = 0) -> "Starting":
        """Return a block in which a client's packet is in process."""
        return Starting(self, client, cost, size_bytes, self._bell)

    def gone(self, client: GuardedClient) -> None:
        """End a client's connection; its waiting blocks raise `RefusedError`."""
        self.guard.gone(client, self.clock())


@final
class Starting:
    """The block of `AsyncGuard.packet`."""

    __slots__ = ("_bell", "_client", "_cost", "_host", "_packet", "_size_bytes")

    def __init__(
        self,
        host: AsyncGuard,
        client: GuardedClient,
        cost: int,
        size_bytes: int,
        bell: Callable[[], Bell],
    ) -> None:
        self._host = host
        self._client = client
        self._cost = cost
        self._size_bytes = size_bytes
        self._bell = bell
        self._packet: GuardedPacket | None = None

    async def __aenter__(self) -> GuardedPacket:
        if self._packet is not None:
            raise RuntimeError("this block is entered already: ask `packet` for each")
        host, bell = self._host, self._bell()
        packet = self._packet = host.guard.start(
            self._client,
            host.clock(),
            cost=self._cost,
            size_bytes=self._size_bytes,
            told=lambda _: bell.ring(),
        )
        if packet.admission.verdict is Verdict.DELAY:
            try:
                await bell.wait()
            except BaseException:
                self._end()
                raise
        if packet.admission.verdict is not Verdict.ADMIT:
            self._packet = None
        _go_on_if_admitted(packet.admission)
        return packet

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        packet, self._packet = self._packet, None
        assert packet is not None
        self._host.guard.done(packet, self._host.clock())


def _go_on_if_admitted(admission: Admission) -> None:
    if admission.verdict is not Verdict.ADMIT:
        raise RefusedError(admission.reason, admission.retry_after_s)

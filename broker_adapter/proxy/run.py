"""ProxyRun: a proxy with all its tasks, from the first listener to the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from socket import socket
from typing import Final, final

import structlog
import trio

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.pair import ProxyPair, dismiss
from broker_adapter.proxy.reactor import ProxyReactor
from broker_adapter.proxy.states import CONNECTED
from broker_adapter.proxy.watch.face import Face
from broker_adapter.proxy.watch.life_log import ProxyLog
from broker_adapter.proxy.watch.probes import probe_all
from broker_adapter.proxy.watch.reload import Reloads
from flowguard import __version__, build
from flowguard.broker.leaving import Departures, leave
from flowguard.broker.logs.error_log import BoundedLog
from flowguard.broker.logs.overload_log import OverloadLog
from flowguard.broker.memory import memory_gauge
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.sockets.socket_set import LINGER_S
from flowguard.cli.log_lines import log_ignored
from flowguard.cli.serve import announce
from flowguard.cli.signals import on_signals
from flowguard.flow.load.signals import TICK_S
from flowguard.types import ReasonCode

END_S: Final = LINGER_S + TICK_S

log = structlog.get_logger()


@final
@dataclass(slots=True)
class ProxyRun:
    face: Face
    reactor: ProxyReactor
    doorways: Sequence[Doorway]
    reloads: Reloads
    logs: Sequence[BoundedLog]
    """Logs of the core that are to be run."""
    http: socket | None
    """The listening socket of the HTTP port, or None without it."""
    token: bytes | None
    origins: Mapping[str, str]
    over_s: float
    """Time over which clients are disconnected at the end, seconds; 0: all at once."""
    stop: trio.Event = field(default_factory=trio.Event)

    async def run(self) -> None:
        """Run until a signal or a drain."""
        face, reactor = self.face, self.reactor
        life_log = ProxyLog(face.core)
        try:
            async with trio.open_nursery() as nursery:
                reload_soon = partial(nursery.start_soon, self.reloads.on_signal)
                await nursery.start(on_signals, self.stop.set, reload_soon)
                for each in (*self.logs, *life_log.logs):
                    nursery.start_soon(each.run)
                overload_log = OverloadLog(face, face.clock())
                nursery.start_soon(log_ignored)
                nursery.start_soon(reactor.run)
                nursery.start_soon(keep_house, face.core, reactor, face.clock, overload_log)
                nursery.start_soon(probe_all, face.core, face.clock, reactor.wake)
                at = None if self.http is None else await nursery.start(self._serve, self.http)
                self._log_start()
                announce([doorway.address for doorway in self.doorways], at)
                await self.stop.wait()
                await self._end()
                overload_log.flush(face.clock())
                nursery.cancel_scope.cancel()
        finally:
            reactor.close()
            if self.http is not None:
                self.http.close()

    def drain(self, over_s: float) -> bool:
        """Disconnect the clients over a time in seconds, and end; False if it ends already."""
        if self.stop.is_set():
            return False
        self.over_s = over_s
        self.stop.set()
        return True

    async def _serve(
        self,
        listener: socket,
        *,
        task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        # Here, because it takes a tenth of a second that --help does not need.
        from broker_adapter.proxy.watch.clients import end_client, row_of
        from broker_adapter.proxy.watch.view import ProxyView
        from flowguard.ops.lists.clients import ClientListing
        from flowguard.ops.lists.flapping import FlappingListing
        from flowguard.ops.web.ask.changes import KICK
        from flowguard.ops.web.ask.lists import CLIENTS, FLAPPING
        from flowguard.ops.web.http import Site, serve_site

        face, here, lives = self.face, self.face.core.lives.clients, self.face.counters.lives
        with memory_gauge() as resident_bytes:
            site = Site(
                ProxyView(face, resident_bytes),
                {
                    CLIENTS: partial(ClientListing, here, row_of),
                    FLAPPING: partial(FlappingListing, lives, here, row_of, face.clock),
                },
                lambda _, client_id: end_client(face, self.reactor, client_id),
                self.drain,
                self.reloads.reload,
                (KICK,),
                {},
                {},
                self.token,
                self.origins,
            )
            await serve_site(site, listener, task_status=task_status)

    def _log_start(self) -> None:
        face = self.face
        log.info(
            "started",
            version=__version__,
            build=build.name(),
            listens_on=", ".join(str(each.address) for each in self.doorways),
            upstreams=", ".join(each.name for each in face.core.upstreams),
            connections_max=(face.door.places or 0) // 2,  # A client has two sockets.
        )

    async def _end(self) -> None:
        face, reactor = self.face, self.reactor
        face.door.leaving = True
        if self.over_s:
            reactor.sockets.listeners.close()
            began_s = face.clock()
            departures = Departures(face.core.pairs, _since, began_s, self.over_s)
            face.door.drain = departures.progress
            await leave(departures, self._dismiss, face.clock)
        log.info("ending")
        connected = face.counters.clients_connected
        reactor.sockets.listeners.close()
        self._dismiss(list(face.core.pairs))
        with trio.move_on_after(END_S):
            while not reactor.is_empty:  # noqa: ASYNC110
                await trio.sleep(TICK_S / 10)
        log.info("ended", clients_disconnected=connected)

    def _dismiss(self, pairs: list[ProxyPair]) -> None:
        now_s = self.face.clock()
        for pair in pairs:
            if pair.state is CONNECTED:
                dismiss(pair, ReasonCode.SERVER_SHUTTING_DOWN, now_s)
            else:
                pair.end(now_s)
        self.reactor.turns.end_slice(now_s)
        self.reactor.wake()


def _since(pair: ProxyPair) -> float:
    """Return when a client has connected, or sent its socket's first bytes."""
    return pair.life.connected_s or pair.opened_s


async def keep_house(
    core: ProxyCore,
    reactor: ProxyReactor,
    clock: Callable[[], float],
    overload_log: OverloadLog | None = None,
) -> None:
    """Every 100 ms, until cancelled: adapt the windows and check the upstreams."""
    were_up = {upstream: upstream.is_up for upstream in core.upstreams}
    while True:
        try:
            reactor.tick(clock())
            if overload_log is not None and core.is_up:  # Otherwise the log names the upstream.
                overload_log.tick(clock())
        except Exception as error:
            core.broke(error)
        for upstream, was_up in were_up.items():
            if upstream.is_up is was_up:
                continue
            were_up[upstream] = upstream.is_up
            if was_up:
                log.warning("upstream unavailable", at=upstream.name, why=upstream.why)
            else:
                away_s = round(clock() - upstream.away_since_s, 1)
                log.warning("upstream available again", at=upstream.name, away_s=away_s)
        await trio.sleep(TICK_S)

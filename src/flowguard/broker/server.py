"""A broker process: listeners, the nursery, and the way out."""

import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Final

import structlog
import trio

from flowguard import __version__, build
from flowguard.address import Address
from flowguard.bounds import Bounds
from flowguard.broker.clock import unix_clock
from flowguard.broker.commits.committer import Committer
from flowguard.broker.housekeeping import Onlooker, keep_house
from flowguard.broker.identity.hashers import Hashers, SpareTime
from flowguard.broker.leaving import Departures, leave
from flowguard.broker.logs.error_log import BoundedLog, PeerLog, show_fault, show_rejection
from flowguard.broker.logs.life_log import LifeLog
from flowguard.broker.logs.overload_log import OverloadLog
from flowguard.broker.memory import give_back_memory
from flowguard.broker.sockets.descriptors import (
    Descriptors,
    descriptors_for,
    places_for,
    widen_table,
)
from flowguard.broker.sockets.listening import Doorway, listen
from flowguard.broker.sockets.reactor import Reactor
from flowguard.broker.sockets.socket_set import LINGER_S
from flowguard.cluster import Members
from flowguard.config import FlowSettings
from flowguard.flow.policies import POLICIES
from flowguard.flow.shadow import ShadowReport
from flowguard.node.connect.authentication import Hooks
from flowguard.node.node import Node, Surroundings
from flowguard.node.upkeep.holdings import check_restored
from flowguard.session.connection import ServerConnection
from flowguard.stores import ApplicationStore, Store
from flowguard.types import ReasonCode

if TYPE_CHECKING:
    from flowguard.broker.identity.identity_checks import IdentityChecks

__all__ = ["Running", "listen", "serve", "unix_clock"]

QUIET_POLL_S = 0.01
FAREWELL_S = LINGER_S + 1.0
"""Time for peers to read our last packets and close, seconds; a reset would lose them."""
OTHER_POLICIES: Final = "simulations.baselines"
"""The package of other brokers' policies, by name: flowguard may not import from above."""

log = structlog.get_logger()


@dataclass(slots=True)
class Running:
    """A started broker as its embedder sees it."""

    node: Node
    addresses: list[Address]
    """All addresses."""
    stop: trio.Event
    """Set it to drain and end."""
    backup: Callable[[Path], Awaitable[None]]
    """Copy the store to a new folder; raises `StoreError` if that fails."""
    onlookers: list[Onlooker]
    """Callbacks that are called with every tick; they must never raise."""
    reactor: Reactor
    """The sockets of the broker."""
    clock: Callable[[], float]
    """The clock of the broker."""
    leave_over_s: float
    """Time over which clients are disconnected after `stop`, seconds; 0: all at once."""
    http: tuple[str, int] | None = None
    """The address of metrics, status and page, if they are served."""

    adopt: Callable[[socket.socket], None] = field(init=False)
    """Serve a client of this process, at the other end of a pair of sockets."""

    def __post_init__(self) -> None:
        self.adopt = self.reactor.adopt

    def drain(self, over_s: float) -> bool:
        """Disconnect the clients over a time in seconds, and end; False if it ends already."""
        if self.stop.is_set():
            return False
        self.leave_over_s = over_s
        self.stop.set()
        return True

    @property
    def address(self) -> tuple[str, int]:
        """The first TCP address for clients, host and port, or ("", 0) without one."""
        return next(((a.host, a.port) for a in self.addresses if a.port is not None), ("", 0))


StartServices = Callable[[Running, trio.Nursery], Awaitable[None]]
"""Starts the services of a running broker, in a nursery that ends after it."""


async def serve(
    bounds: Bounds,
    store: Store,
    listeners: socket.socket | Sequence[Doorway],
    *,
    hooks: Hooks | None = None,
    checks: "IdentityChecks | None" = None,
    shadow: FlowSettings | None = None,
    descriptors: Descriptors | None = None,
    alone: bool = False,
    members: Members | None = None,
    start_services: StartServices | None = None,
    task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until `Running.stop` is set; closes both store and listeners.

    `checks`: the identity checks of clients. `shadow`: limits that only watch. `alone`: this run
    of trio is the broker's own. `members`: the nodes of its cluster. Raises `ConfigError`.
    """
    doorways = [Doorway(listeners)] if isinstance(listeners, socket.socket) else list(listeners)
    _load_policies(bounds.settings.flow, shadow)
    clock = store.clock or unix_clock()
    errors = BoundedLog("connection failed", "error")
    tick_errors = BoundedLog("tick failed", "error")
    turned_away, draw = PeerLog(), secrets.SystemRandom().random
    node = Node(
        bounds,
        clock(),
        Surroundings(_random_id, draw, thread_time, errors.raised, turned_away),
        hooks=hooks if checks is None else _asked_by(checks, hooks or Hooks()),
        cluster=members,
        shadow=shadow,
        keeps_apart=isinstance(store, ApplicationStore),
    )
    logs = (errors, tick_errors, *turned_away.logs, *_logs_of(node))
    committer = Committer(node, store, clock)
    reactor = Reactor(node, store, clock, committer.notify, committer.presence, alone=alone)
    with _closing(store, doorways, reactor) as opened:
        descriptors = descriptors or descriptors_for(bounds.settings, on_disk=store.on_disk)
        sessions = node.recover(store, clock())
        _warn_of_open_listeners(doorways, hooks, checks)
        _listen(reactor, doorways, descriptors, node.bounds.sockets_max)
        _log_start(node, store, doorways, sessions, descriptors)
        addresses, stop = [doorway.address for doorway in doorways], trio.Event()
        over_s = bounds.settings.node.drain_over_s
        running = Running(node, addresses, stop, committer.backup, [], reactor, clock, over_s)
        overload_log = OverloadLog(node, clock())
        seen = (node, store, committer, reactor, clock, running.onlookers)
        tasks: list[Callable[[], Awaitable[None]]] = [
            partial(committer.run, reactor),
            partial(keep_house, *seen, overload_log, tick_errors.raised),
            partial(give_back_memory, node, lambda: reactor.idle_s),
            *(reactor.run, *(each.run for each in logs)),
            *_checking(checks, node, reactor, clock, errors.raised),
        ]
        # A service may end slowly: sockets and store are closed before it does.
        async with trio.open_nursery() as services:
            with opened.pop_all():
                async with trio.open_nursery() as nursery:
                    for run in tasks:
                        nursery.start_soon(run)
                    if start_services is not None:
                        await start_services(running, services)
                    task_status.started(running)
                    await running.stop.wait()
                    if running.leave_over_s:
                        await _leave(node, reactor, clock, running.leave_over_s)
                    await _drain(node, reactor, clock, overload_log, committer)
                    nursery.cancel_scope.cancel()
            services.cancel_scope.cancel()


def _closing(store: Store, doorways: list[Doorway], reactor: Reactor) -> ExitStack:
    opened = ExitStack()
    opened.callback(store.close)
    for doorway in doorways:
        opened.callback(doorway.close)  # Until it listens, the reactor does not close it.
    opened.callback(reactor.close)
    return opened


def _logs_of(node: Node) -> tuple[BoundedLog, ...]:
    """Connect the logs that parts of a node call; each is to be run."""
    faults = BoundedLog("transport failed", kind="transport")
    publishes = BoundedLog("publish rejected", kind="publishes")
    filters = BoundedLog("subscription rejected", kind="subscriptions")
    node.door.log_fault = partial(show_fault, faults)
    node.state.rejections.on_publish = partial(show_rejection, publishes)
    node.state.rejections.on_subscription = partial(show_rejection, filters)
    return faults, publishes, filters, *LifeLog(node).logs


def _listen(
    reactor: Reactor, doorways: list[Doorway], descriptors: Descriptors, sockets_max: int
) -> None:
    places = min(descriptors.places, sockets_max)
    widen_table(places + descriptors.used + descriptors.reserve)
    reactor.sockets.listeners.descriptors_max = descriptors.places
    for doorway in doorways:
        reactor.listen(doorway, places)


def _asked_by(checks: "IdentityChecks", hooks: Hooks) -> Hooks:
    """Return the hooks, extended by the checks that authenticate clients."""
    return replace(hooks, checker=checks, methods={**(hooks.methods or {}), **checks.methods})


def _log_start(
    node: Node, store: Store, doorways: list[Doorway], sessions: int, descriptors: Descriptors
) -> None:
    for part in check_restored(node):
        log.warning("stored data exceed their limit; kept", what=str(part))
    log.info(
        "started",
        pid=os.getpid(),
        version=__version__,
        build=build.name(),
        listens_on=_listed(doorways),
        store=type(store).__name__.removesuffix("Store").lower(),
        durability=store.durability.name.lower(),
        sessions=sessions,
        retained=len(node.router.retained),
        connections_max=places_for(node.bounds, descriptors),
    )


def _listed(doorways: Iterable[Doorway]) -> str:
    return ", ".join(str(each.address) for each in doorways)


def _checking(
    checks: "IdentityChecks | None",
    node: Node,
    reactor: Reactor,
    clock: Callable[[], float],
    on_error: Callable[[BaseException], None],
) -> list[Callable[[], Awaitable[None]]]:
    """Return the tasks of identity checks, if there are any."""
    if checks is None:
        return []
    check = partial(_check_who_comes, checks, node, reactor, clock, on_error)
    return [check, checks.limit_log.run]


async def _check_who_comes(
    checks: "IdentityChecks",
    node: Node,
    reactor: Reactor,
    clock: Callable[[], float],
    on_error: Callable[[BaseException], None],
) -> None:
    checks.clock = clock
    hashers = Hashers(SpareTime(clock, lambda: reactor.idle_s))
    await checks.run(node.door, hashers, partial(_go_on, reactor, clock), on_error)


def _go_on(reactor: Reactor, clock: Callable[[], float]) -> None:
    """Run the loop again, because a task has output for connections."""
    reactor.turns.end_slice(clock())
    reactor.wake()


def _warn_of_open_listeners(
    doorways: list[Doorway], hooks: Hooks | None, checks: "IdentityChecks | None"
) -> None:
    """Log the listeners that require no client certificate, if nothing else authenticates."""
    listeners = [each for each in doorways if each.tls is None or not each.tls.requires_certificate]
    if listeners and not any(part is not None and part.asks for part in (hooks, checks)):
        log.warning(
            "authentication is disabled: anyone who can reach these listeners can connect; "
            "keep them on 127.0.0.1 or behind a proxy that authenticates",
            listens_on=_listed(listeners),
        )


def _load_policies(*limits: FlowSettings | None) -> None:
    """Import the policies of other brokers only if the settings name one."""
    flows = [flow for flow in limits if flow is not None]
    named = {name for flow in flows for name in (flow.policy, flow.shadow_policy)}
    if named - {*POLICIES, None}:
        import_module(OTHER_POLICIES).load()


async def _leave(node: Node, reactor: Reactor, clock: Callable[[], float], over_s: float) -> None:
    """Accept no new connections, and disconnect all clients within `over_s` seconds, evenly."""

    def end(connections: list[ServerConnection]) -> None:
        _dismiss(connections, node, clock())
        _go_on(reactor, clock)

    reactor.stop_listening()
    node.door.leaving = True
    here = reactor.connections()
    departures = Departures(here, lambda each: each.connected_s, clock(), over_s)
    node.door.drain = departures.progress
    await leave(departures, end, clock)


def _dismiss(connections: Iterable[ServerConnection], node: Node, now_s: float) -> None:
    """End connections of a broker that ends; MQTT 5 clients get the server reference, if any."""
    reference = node.door.server_reference or node.settings.node.server_reference or ""
    reason = ReasonCode.USE_ANOTHER_SERVER if reference else ReasonCode.SERVER_SHUTTING_DOWN
    for connection in connections:
        connection.end(reason, now_s, reference)


async def _drain(
    node: Node,
    reactor: Reactor,
    clock: Callable[[], float],
    overload_log: OverloadLog,
    committer: Committer,
) -> None:
    """Reject new work, finish what is in process, inform clients, stop [MQTT 5.0, 4.13]."""
    log.info("draining", clients=node.counters.clients_connected)
    reactor.stop_listening()
    node.drain(clock())
    drain_until_s = trio.current_time() + node.settings.node.drain_s
    with trio.move_on_at(drain_until_s):
        await _until(lambda: reactor.is_quiet)
    disconnected = node.counters.clients_connected
    _dismiss(reactor.connections(), node, clock())
    reactor.turns.end_slice(clock())
    # Clients in pipes get the last words of a worker that may still drain.
    has_pipes = reactor.sockets.listeners.pipes_count > 0
    since_s = drain_until_s if has_pipes else trio.current_time()
    with trio.move_on_at(since_s + FAREWELL_S):
        await _until(lambda: reactor.is_quiet)
        await committer.release()
        await _until(lambda: reactor.is_quiet and reactor.is_empty)
    overload_log.flush(clock())
    dropped = node.counters.publish_dropped
    log.info(
        "drained",
        clients_disconnected=disconnected,
        messages_dropped_or_rejected_since_start=dropped,
    )
    if node.guard.shadow is not None:
        _log_shadow(node.guard.shadow.report())


def _log_shadow(report: ShadowReport) -> None:
    log.info(
        "shadow",
        policy=report.policy,
        window=report.window,
        window_real=report.window_real,
        stricter_ticks=report.stricter_ticks,
        looser_ticks=report.looser_ticks,
        paused_ticks=report.paused_ticks,
    )


async def _until(condition: Callable[[], bool]) -> None:
    """Poll, because this happens once and an event would cost on the hot path."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(QUIET_POLL_S)


def _random_id() -> str:
    return f"auto-{secrets.token_hex(12)}"

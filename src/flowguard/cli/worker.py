"""`flowguard worker FD`: one of several workers; `flowguard serve --workers N` starts it."""

import json
from dataclasses import replace
from functools import partial
from socket import socket
from typing import Annotated

import structlog
import trio
import typer

from flowguard.app.broker import BrokerParts, build_broker
from flowguard.app.failures import EXIT_CONFIG, StartError, end_of
from flowguard.app.workers.process import (
    PING_S,
    Control,
    WorkerLoad,
    WorkerSpec,
    end_with_supervisor,
)
from flowguard.app.workers.shares import share_of
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running
from flowguard.broker.sockets.listening import shared_doorways
from flowguard.broker.workers.handover import Handover
from flowguard.broker.workers.node_tls import node_tls_of
from flowguard.broker.workers.worker_addresses import NodeAddress
from flowguard.cli.console import refused
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.log_lines import log_to_stderr
from flowguard.cli.serve import run_broker
from flowguard.cli.settings import read_limits
from flowguard.cli.signals import start_signals
from flowguard.cli.sources import Sources, shadow_of
from flowguard.config import Settings
from flowguard.errors import ConfigError

log = structlog.get_logger()


def worker(
    control: Annotated[int, typer.Argument(metavar="FD", help="Socket of the supervisor.")],
) -> None:
    """Run one of several workers; only `flowguard serve --workers` starts it."""
    sock = socket(fileno=control)
    sock.set_inheritable(False)
    spec = WorkerSpec.receive(sock)
    end_with_supervisor(spec.supervisor)
    with start_signals():
        if spec.seat.address is not None:
            sock.sendall(b'{"opening": true}\n')
        broker = _claimed(_build(spec, sock), sock)
    try:
        trio.run(_main, broker, sock)
    except BaseExceptionGroup as group:
        raise refused(*end_of(group)) from group


def _build(spec: WorkerSpec, control: socket) -> BrokerParts:
    told: list[str] = []

    def on_wait(why: str, _: bool) -> None:
        if not told:
            told.append(why)
            control.sendall(b'{"waits": true}\n')

    try:
        sources = Sources.from_json(spec.sources)
        settings = _share(spec, spec.whole_settings)
        log_to_stderr(settings.log, spec.seat.name)
        use_all_descriptors()
        return build_broker(
            bounds_of(settings),
            data=spec.seat.store_folder,
            listeners=shared_doorways(settings.network, spec.listeners),
            shadow=shadow_of(read_limits(sources.shadow), settings),
            read_settings=lambda: _share(spec, sources.load().settings),
            seat=replace(spec.seat, tls=node_tls_of(settings.cluster)),
            origins=sources.load().origins,
            own_process=True,
            on_wait=on_wait,
        )
    except ConfigError as error:
        raise refused(f"{spec.seat.name} cannot start", str(error), EXIT_CONFIG) from error
    except StartError as error:
        raise refused(f"{spec.seat.name}: {error.what}", error.hint, error.exit_code) from error


def _claimed(broker: BrokerParts, control: socket) -> BrokerParts:
    """Return the broker of a shard with the incarnation that Redis gave it, and tell that to the
    supervisor; any other broker as it is."""
    seat = broker.seat
    if seat is None or seat.address is None:
        return broker
    from flowguard.stores.redis import RedisStore

    assert isinstance(broker.store, RedisStore)
    incarnation = broker.store.incarnation
    control.sendall(json.dumps({"claimed": incarnation}).encode() + b"\n")
    return replace(broker, seat=replace(seat, incarnation=incarnation))


def _share(spec: WorkerSpec, settings: Settings) -> Settings:
    return share_of(settings, spec.parts, spec.index, spec.memory_bytes, spec.disk_bytes)


async def _main(broker: BrokerParts, sock: socket) -> None:
    control = Control(sock)
    await run_broker(broker, partial(_present, broker, control), is_worker=True)


def _present(
    broker: BrokerParts, control: Control, running: Running, nursery: trio.Nursery
) -> None:
    nursery.start_soon(obey, broker, control, running)
    if broker.seat is not None and broker.seat.address is not None:
        timeout_s = broker.bounds.settings.node.worker_timeout_s
        nursery.start_soon(drain_without_supervisor, control, running, timeout_s)


async def drain_without_supervisor(control: Control, running: Running, timeout_s: float) -> None:
    """Drain if the supervisor of a node has sent nothing for `timeout_s`.

    Other nodes do not reach this shard meanwhile, and wait for its lease. An interval in which this
    process was late does not count.
    """
    silent_s = 0.0
    while silent_s < timeout_s:
        control.is_heard = False
        due_s = trio.current_time() + PING_S
        await trio.sleep_until(due_s)
        if control.is_heard:
            silent_s = 0.0
        elif trio.current_time() < due_s + PING_S:
            silent_s += PING_S
    log.error("supervisor does not answer; draining", silent_s=silent_s)
    running.stop.set()


async def obey(broker: BrokerParts, control: Control, running: Running) -> None:
    """Report to the supervisor and follow its requests until this worker drains."""
    mesh = running.node.router.peers.mesh
    assert mesh is not None
    await control.tell(ready=True)
    async for message in control.messages():
        if "ping" in message:
            await control.tell(pong=_load_of(running))
        if running.stop.is_set():  # Sockets and store may be closed already.
            continue
        if "moved" in message and broker.seat is not None:
            broker.seat.move({int(k): NodeAddress(*each) for k, each in message["moved"].items()})
            running.reactor.wake()
        if "gives" in message:
            running.node.door.server_reference, count = message["gives"]
            running.reactor.stop_listening()
            placement = running.node.handshakes.placement
            assert isinstance(placement, Handover)
            placement.part(count)
            running.reactor.wake()
        if "died" in message:
            name, incarnation = message["died"]
            mesh.died(name, incarnation, running.clock())
            running.reactor.wake()
        if "reload" in message:
            try:
                await control.tell(reloaded=await broker.files.reload(running.node))
            except ConfigError as error:
                await control.tell(rejected=str(error))


def _load_of(running: Running) -> WorkerLoad:
    node = running.node
    gate = node.guard.gate
    slots = 0 if gate.buffered else max(0, gate.limit - gate.in_process)
    relayed = running.reactor.sockets.listeners.pipes_count
    return WorkerLoad(node.counters.clients_connected, relayed, slots)

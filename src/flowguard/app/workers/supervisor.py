"""The supervisor: the process that owns the listening sockets and starts the workers.

It serves no client. A worker that ends is started again, after a pause that doubles while it ends
soon after its start. A worker that does not answer is killed, so that it starts again. During the
first start the end of any worker ends all of them.
"""

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, Final, cast, final

import structlog
import trio

from flowguard.address import Address, parse_address
from flowguard.app.failures import listen_error, store_error
from flowguard.app.http_front import HttpPort, listen_http
from flowguard.app.reloadable_files import checks_of, read_token, rules_of
from flowguard.app.workers.cluster_duty import ClusterDuty
from flowguard.app.workers.data_folder import Incarnations, lock, node_id, take
from flowguard.app.workers.process import (
    PING_S,
    Worker,
    WorkerLoad,
    WorkerProcess,
    WorkerSpec,
    sentence_of,
)
from flowguard.app.workers.seat import check_ports, page_for_others, remove_sockets
from flowguard.app.workers.shares import check_shares
from flowguard.bounds import Bounds
from flowguard.broker.memory import missing_memory
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.cluster.shards import ShardState
from flowguard.errors import ConfigError, StoreError
from flowguard.ops.web.reload import Reloaded

PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0
"""Pause before a worker is started again: the shortest, and the longest after repeated ends."""
STEADY_S: Final = 10.0
"""Time that a worker must have lived for the shortest pause, in seconds."""
RELOAD_S: Final = 60.0
"""Maximum wait for a worker that reloads, in seconds."""
NOTHING_READ: Final[Reloaded] = {
    "certificates": 0,
    "users": 0,
    "keys": 0,
    "roles": 0,
    "needs_restart": [],
}
"""The answer to a reload while no worker runs."""

log = structlog.get_logger()


def build_supervisor(
    bounds: Bounds,
    count: int,
    data: Path,
    http: HttpPort | None,
    sources: Mapping[str, Any],
) -> "Supervisor":
    """Open what the supervisor owns, and check what the workers will need.

    Raises ConfigError and StartError; then nothing is open.
    """
    settings = bounds.asked
    with ExitStack() as opened:
        checks_of(settings.network)
        rules_of(settings.network, count)
        token = read_token(settings.http.token_file)
        check_shares(settings, count, bounds.memory_bytes)
        for why in missing_memory(settings.flow.memory_max_bytes):
            log.warning("capacity lacking", why=why)
        try:
            doorways = open_doorways(settings.network)
        except OSError as error:
            raise listen_error(error) from error
        opened.callback(_close, doorways)
        if settings.cluster.address is not None:
            check_ports(parse_address(settings.cluster.address), settings.cluster.shards)
        port = None if http is None else listen_http(http)
        if port is not None:
            opened.callback(port.close)
        try:
            opened.callback(os.close, lock(data))
            opened.callback(remove_sockets, data, count)
            on_disk = settings.store.kind == "rocks"
            disk_bytes = _disk_bytes(bounds, data) if on_disk else None
            if on_disk:
                take(data, count)
            duty = None
            if settings.cluster.address is not None:
                http_url = page_for_others(settings, port)
                duty = ClusterDuty(settings, count, node_id(data), http_url)
        except (OSError, StoreError) as error:
            raise store_error(error, settings, data) from error
        spec = WorkerSpec(
            index=0,
            count=count if duty is None else settings.cluster.shards,
            incarnation=0,
            data=str(data),
            settings=settings.model_dump(mode="json", exclude_unset=True),
            memory_bytes=bounds.memory_bytes,
            disk_bytes=disk_bytes,
            listeners=[doorway.sock.fileno() for doorway in doorways],
            supervisor=os.getpid(),
            parts=count,
            sources=sources,
        )
        return Supervisor(spec, doorways, port, token, opened.pop_all(), duty)


def _close(doorways: Sequence[Doorway]) -> None:
    for doorway in doorways:
        doorway.close()


def _disk_bytes(bounds: Bounds, data: Path) -> int:
    """Return the limit of all queues on disk: half of the space, unless it is set."""
    limit_bytes = bounds.asked.node.disk_queue_bytes_max
    if limit_bytes is not None:
        return limit_bytes
    used_bytes = sum(file.stat().st_size for file in data.glob("worker-*/*") if file.is_file())
    return (used_bytes + shutil.disk_usage(data).free) // 2


@final
class Supervisor:
    def __init__(
        self,
        spec: WorkerSpec,
        doorways: list[Doorway],
        http: socket | None,
        token: bytes | None,
        opened: ExitStack,
        duty: ClusterDuty | None = None,
    ) -> None:
        """`spec` is the same for all workers but for their index and incarnation. `duty`: the
        cluster that this node belongs to."""
        self._spec = spec
        self._duty = duty
        self._doorways = doorways
        self._http = http
        self._token = token
        self._opened = opened
        self.data = Path(spec.data)
        self._incarnations = Incarnations(self.data)
        self._reloading = trio.Lock()
        self._nursery: trio.Nursery
        self.workers = [Worker(index) for index in range(spec.count)]
        if duty is not None:
            duty.use(self.workers, doorways)
        self.addresses: list[Address] = [doorway.address for doorway in doorways]
        self._started = trio.Event()
        self._changed = trio.Event()
        """Set when a process has ended."""
        self.stop = trio.Event()
        """Set it to drain all workers and end."""
        self.ended = trio.Event()
        self.exit_code = 0
        """The exit code of a worker that did not start, or 0."""

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, int] | None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run all workers until `stop` is set, or one fails during the first start.

        Starts with the address of HTTP when all workers are ready.
        """
        with self._opened:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for worker in self.workers:
                    nursery.start_soon(self._keep, worker)
                nursery.start_soon(self._end_start_on_stop)
                if self._duty is not None:
                    await nursery.start(self._duty.run)
                    self._started.set()  # The shards may have to wait for other nodes.
                await self._started.wait()
                if not self.stop.is_set():
                    if self._duty is None:
                        log.info("all workers started", pid=os.getpid(), workers=len(self.workers))
                    else:
                        log.info("node started", pid=os.getpid(), node=self._duty.node.name)
                task_status.started(await self._start_http(nursery))
                await self.stop.wait()
                if self._duty is not None:
                    await self._duty.evacuate()
                _close(self._doorways)
                for worker in self.workers:
                    if worker.process is not None:
                        worker.process.stop()
                await self._all_ended()
                if self._duty is not None:
                    await self._duty.leave()
                nursery.cancel_scope.cancel()
        self.ended.set()

    async def _end_start_on_stop(self) -> None:
        await self.stop.wait()
        self._started.set()

    async def _all_ended(self) -> None:
        while any(worker.process is not None for worker in self.workers):
            self._changed = trio.Event()
            await self._changed.wait()

    async def _start_http(self, nursery: trio.Nursery) -> tuple[str, int] | None:
        if self._http is None or self.stop.is_set():
            return None
        from flowguard.app.workers.machine_http import MachineAnswers, serve_machine
        from flowguard.ops.web.http import Keys

        def use_level(kind: str, level: str) -> None:
            """Let workers that start later have this level of the log."""
            settings = self._spec.settings
            log_settings = {**settings.get("log", {}), kind: level}
            self._spec = replace(self._spec, settings={**settings, "log": log_settings})

        keys = Keys(frozenset(self._spec.whole_settings.http.names), self._token)
        others = None
        if self._duty is not None:
            from flowguard.app.workers.cluster_http import OtherNodes

            others = OtherNodes(self._duty)
        seen = (self.workers, self.data, self.reload, keys, use_level, self.stop, others)
        answers = MachineAnswers(*seen)
        address: tuple[str, int] = await nursery.start(serve_machine, answers, self._http)
        return address

    def sentence(self) -> str:
        return sentence_of(self.workers)

    # --- processes -------------------------------------------------------------------------------

    async def _keep(self, worker: Worker) -> None:
        """Run a worker, and start it again whenever it ends."""
        pause_s = PAUSE_MIN_S
        while not self.stop.is_set():
            await worker.wanted.wait()
            began_s = trio.current_time()
            why = await self._live(worker)
            if self.stop.is_set():
                return
            if not worker.is_wanted or not why:  # The shard may be wanted here again.
                continue
            if not self._started.is_set():
                log.error("worker did not start", name=worker.name, why=why)
                self.stop.set()
                return
            if trio.current_time() - began_s > STEADY_S:
                pause_s = PAUSE_MIN_S
            log.error("worker ended; it starts again", name=worker.name, why=why, pause_s=pause_s)
            worker.restarts_count += 1
            with trio.move_on_after(pause_s):
                await self.stop.wait()
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _live(self, worker: Worker) -> str:
        """Run one process of a worker; return why it has ended, or "" if it was to end."""
        spec = replace(self._spec, index=worker.index, incarnation=self._incarnations.next())
        try:
            process = WorkerProcess(spec)
        except OSError as error:
            self.exit_code = self.exit_code or 1
            return f"it cannot be started: {error.strerror}"
        worker.process, worker.stage = process, ShardState.STARTING
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, worker, process, nursery)
            if self._duty is None:
                worker.incarnation = spec.incarnation
            else:  # Redis gives the incarnation, with the shard.
                nursery.start_soon(self._duty.greet, worker)
            for other in self.workers:
                if other.process is None and other.incarnation:
                    died = [other.name, other.incarnation]
                    nursery.start_soon(partial(process.control.tell, died=died))
            code = await process.ended()
            nursery.cancel_scope.cancel()
        process.close()
        worker.process, worker.is_ready, worker.waits = None, False, False
        worker.load = WorkerLoad()
        worker.heard()
        worker.answer({"rejected": f"{worker.name} has ended"})
        self._tell_others(worker)
        self._changed.set()
        if code and not self._started.is_set():
            self.exit_code = self.exit_code or max(code, 1)
        if process.is_stopping and not code:
            return ""
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    async def _hear(self, worker: Worker, process: WorkerProcess, nursery: trio.Nursery) -> None:
        async for message in process.control.messages():
            if "ready" in message:
                worker.is_ready = True
                if self._duty is not None:
                    self._duty.served(worker)
                log.info("worker ready", name=worker.name, pid=process.pid)
                if all(each.is_ready for each in self.workers):
                    self._started.set()
                nursery.start_soon(self._watch, worker, process)
            elif "opening" in message:
                worker.stage = ShardState.WAITING
            elif "waits" in message:
                worker.waits = True
            elif "claimed" in message:
                worker.incarnation, worker.waits = message["claimed"], False
                worker.stage = ShardState.ADOPTING
            elif "pong" in message:
                worker.load = WorkerLoad.of(message["pong"])
                if worker.is_silent:
                    log.info("worker answers again", name=worker.name)
                worker.heard()
            else:
                worker.answer(message)

    async def _watch(self, worker: Worker, process: WorkerProcess) -> None:
        """Ping a worker, and kill it if it does not answer for `node.worker_timeout_s`.

        An interval in which this process was late does not count: then the machine is too slow.
        """
        timeout_s = self._spec.whole_settings.node.worker_timeout_s
        while worker.silent_s < timeout_s:
            if not worker.is_asked:
                worker.is_asked = True
                await process.control.tell(ping=True)
            due_s = trio.current_time() + PING_S
            await trio.sleep_until(due_s)
            is_late = trio.current_time() > due_s + PING_S
            if worker.is_asked and worker.answers is None and not is_late:  # No reload either.
                was_silent = worker.is_silent
                worker.silent_s += PING_S
                if worker.is_silent and not was_silent:
                    log.warning("worker does not answer", name=worker.name, pid=process.pid)
        log.error("worker does not answer; killed", name=worker.name, silent_s=worker.silent_s)
        process.kill()

    def _tell_others(self, dead: Worker) -> None:
        """Tell the other workers which process has ended."""
        for other in self.workers:
            if other.process is not None:
                died = [dead.name, dead.incarnation]
                self._nursery.start_soon(partial(other.process.control.tell, died=died))

    # --- reload ----------------------------------------------------------------------------------

    async def reload_on_signal(self) -> None:
        """Reload; errors are only logged."""
        try:
            await self.reload()
        except ConfigError as error:
            log.error("reload failed", why=str(error).replace("\n", "; "))

    async def reload(self) -> Reloaded:
        """Let the workers read their files again, one after the other; return the last answer.

        Raises ConfigError.
        """
        if self._reloading.locked():
            raise ConfigError("a reload is already running: repeat it later")
        answer: Reloaded = NOTHING_READ
        async with self._reloading:
            if self._duty is not None and self._duty.tls is not None:
                self._duty.tls.use(self._duty.tls.read())
            for worker in self.workers:
                if worker.process is not None:  # Else it reads them when it starts.
                    answer = await self._reload(worker, worker.process)
        return answer

    async def _reload(self, worker: Worker, process: WorkerProcess) -> Reloaded:
        answers_in, answers = trio.open_memory_channel[dict[str, Any]](1)
        worker.answers = answers_in
        await process.control.tell(reload=True)
        answer = {"rejected": f"{worker.name} has not answered for {RELOAD_S:g} seconds"}
        with trio.move_on_after(RELOAD_S):
            answer = await answers.receive()
        worker.answers = None
        if "rejected" in answer:
            raise ConfigError(str(answer["rejected"]))
        return cast("Reloaded", answer["reloaded"])

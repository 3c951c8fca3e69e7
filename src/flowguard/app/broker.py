"""`build_broker`: a broker of the parts that its settings name, open and ready to run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from flowguard.address import KafkaTopic
from flowguard.app.extras import needs_extra
from flowguard.app.failures import StartError, listen_error, store_error
from flowguard.app.http_front import HttpFront, HttpPort
from flowguard.app.reloadable_files import (
    ReloadableFiles,
    checks_of,
    read_token,
    rules_of,
    warn_of_expired,
)
from flowguard.app.stores import OnWait, check_store, open_store
from flowguard.bounds import PROCESS_BYTES, Bounds
from flowguard.broker.memory import memory_gauge, missing_memory, require_memory
from flowguard.broker.server import Running, serve
from flowguard.broker.sockets.descriptors import Descriptors, descriptors_for, shortfalls
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.config import MIB, FlowSettings, Settings
from flowguard.errors import StoreError, UnreadyError
from flowguard.node.connect.authentication import Hooks
from flowguard.stores import Store

if TYPE_CHECKING:
    from flowguard.app.workers.seat import Seat
    from flowguard.telemetry.runs import RunsKept

log = structlog.get_logger()
LATER_BYTES: Final = 10 * MIB
"""Memory that a process takes after this measurement: an empty store, HTTP, and code that the first
clients need."""


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The open parts of a broker; `run` closes them."""

    bounds: Bounds
    store: Store
    files: ReloadableFiles
    hooks: Hooks
    descriptors: Descriptors
    shadow: FlowSettings | None
    runs: "RunsKept | None"
    """The recording of its own telemetry, or None if it has none."""
    http: HttpFront
    seat: "Seat | None" = None
    """The place of this broker among several workers, or None if it is the only one."""
    origins: Mapping[str, str] | None = None
    """The file, variable or option of each setting that has one."""

    async def run(
        self,
        *,
        alone: bool = False,
        task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run until `Running.stop` is set. `alone`: this run of trio is the broker's own.

        Raises `StoreError` and `ConfigError`, in a group once the broker has started.
        """
        try:
            await serve(
                self.bounds,
                self.store,
                self.files.doorways,
                hooks=self.hooks,
                checks=self.files.checks,
                shadow=self.shadow,
                descriptors=self.descriptors,
                alone=alone,
                members=None if self.seat is None else self.seat.members(),
                start_services=self._start_services,
                task_status=task_status,
            )
        finally:  # A broker that has not started has neither recorder nor HTTP server.
            self.http.close()
            if self.runs is not None:
                self.runs.close()

    async def _start_services(self, running: Running, nursery: trio.Nursery) -> None:
        """Start the recording and HTTP; connect with the other workers."""
        running.node.door.certificates = self.files.expiries()
        if self.seat is not None:
            self.seat.join(running, self.files.doorways)
        progress = None
        if self.runs is not None:
            from flowguard.telemetry.recorder import Recorder

            recorder = Recorder(running, running.clock, self.runs, self.origins)
            await nursery.start(recorder.run)
            progress = recorder.progress
        self.http.hand_over()
        if self.http.listener is not None:
            from flowguard.ops.web.http import serve_http

            reload = partial(self.files.reload, running.node)
            seen = (running.node, running.clock, self.http.listener, running.backup, progress)
            more = (reload, self.http.token, self.origins, running.drain)
            running.http = await nursery.start(serve_http, *seen, *more)


def build_broker(
    bounds: Bounds,
    *,
    data: Path,
    store: Store | None = None,
    listeners: Sequence[Doorway] | None = None,
    hooks: Hooks | None = None,
    shadow: FlowSettings | None = None,
    http: HttpPort | None = None,
    read_settings: Callable[[], Settings] | None = None,
    on_wait: OnWait | None = None,
    seat: "Seat | None" = None,
    origins: Mapping[str, str] | None = None,
    own_process: bool = False,
) -> BrokerParts:
    """Open the parts of a broker, in the order in which they may fail.

    `data`: the directory of a store with files. `store` and `listeners` replace those of the
    settings, `hooks.rules` replaces their rules. `shadow`: limits that only watch.
    `read_settings`: reads the settings again for a reload. `on_wait`: told which broker a
    stand-by waits for. `seat`: the place among several workers, which replaces `http`.
    `own_process`: no other program shares the process, so that its memory is the broker's.

    Raises ConfigError and StartError; then every part is closed.
    """
    settings = bounds.settings
    stands_by = settings.store.kind == "redis" and settings.redis.takeover
    hooks = hooks or Hooks()
    with ExitStack() as opened:
        opened.callback(_close, listeners or ())
        if store is not None:
            opened.callback(store.close)
        on_disk = settings.store.kind == "rocks" if store is None else store.on_disk
        descriptors = descriptors_for(settings, on_disk=on_disk)
        runs = _open_runs(settings)
        if runs is not None:
            opened.callback(runs.close)
        checks = checks_of(settings.network)
        workers_count = 1 if seat is None else seat.count
        rules = rules_of(settings.network, workers_count)
        token = read_token(settings.http.token_file)
        if own_process:
            check_store(settings)
        require_memory(bounds, process_bytes() if own_process else PROCESS_BYTES)
        front = HttpFront(http, seat, frozenset(settings.http.names), token)
        opened.callback(front.close)
        # A stand-by listens when its turn has come: until then its clients are another broker's.
        if store is None and stands_by:
            store = _open_store(settings, data, front.listen_early(on_wait))
            opened.callback(store.close)
        if listeners is None:
            listeners = _listen(settings)
            opened.callback(_close, listeners)
        # A worker's limit is a part: the supervisor compares the whole with the machine.
        lacking = missing_memory(bounds.asked.flow.memory_max_bytes) if seat is None else []
        for why in (*shortfalls(bounds, descriptors), *lacking):
            log.warning("capacity lacking", why=why)
        warn_of_expired(settings.network, settings.cluster)
        front.listen()
        if store is None:
            store = _open_store(settings, data, on_wait)
        opened.pop_all()
    asked = bounds.asked
    read_settings = read_settings or (lambda: asked)
    tls = None if seat is None else seat.tls
    files = ReloadableFiles(asked, list(listeners), checks, read_settings, workers_count, tls)
    if hooks.rules is None and rules is not None:
        hooks = replace(hooks, rules=rules)
    return BrokerParts(bounds, store, files, hooks, descriptors, shadow, runs, front, seat, origins)


def process_bytes() -> int:
    """Return the memory of a broker in this process, which has imported all that it needs.

    It is measured before the store opens, which may read megabytes of its log back.
    """
    with memory_gauge() as resident_bytes:
        return resident_bytes() + LATER_BYTES


def _close(doorways: Sequence[Doorway]) -> None:
    for doorway in doorways:
        doorway.close()


def _listen(settings: Settings) -> list[Doorway]:
    try:
        return open_doorways(settings.network)
    except OSError as error:
        raise listen_error(error) from error


def _open_store(settings: Settings, data: Path, on_wait: OnWait | None) -> Store:
    try:
        return open_store(settings, data, on_wait)
    except (OSError, StoreError) as error:
        raise store_error(error, settings, data) from error


def _open_runs(settings: Settings) -> "RunsKept | None":
    """Open the recording of telemetry; return None if the settings name none."""
    directory, topic = settings.telemetry.record_dir, settings.telemetry.record_topic
    if directory is None and topic is None:
        return None
    try:
        # Here, because only a broker that records needs pyarrow and aiokafka.
        if topic is not None:
            from flowguard.stores.kafka.connection.access import access_of
            from flowguard.telemetry.topic import RunsInTopic

            return RunsInTopic(KafkaTopic.parse(topic), access_of(settings.kafka))
        from flowguard.telemetry.runs import Runs
    except ModuleNotFoundError as error:
        extra = "telemetry" if topic is None else "telemetry,kafka"
        raise UnreadyError(f"the recording {needs_extra(extra)}") from error
    except StoreError as error:
        raise StartError(f"flowguard cannot record in {topic}", str(error), 1, error) from error
    assert directory is not None
    try:
        return Runs(directory, settings.telemetry)
    except OSError as error:
        what = f"flowguard cannot record in {directory}: {error.strerror}"
        hint = "Choose another directory: --record DIRECTORY"
        raise StartError(what, hint, 1, error) from error

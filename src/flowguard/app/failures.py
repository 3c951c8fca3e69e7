"""Why a broker did not start, or ended: a message for its operator, and what to do next."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

from flowguard.config import Settings
from flowguard.errors import (
    ConfigError,
    CorruptionError,
    DataLostError,
    FlowguardError,
    LockedError,
    NoSpaceError,
    RemovedError,
    StoreError,
    SyncError,
)

EXIT_CONFIG: Final = 2
"""The settings are wrong, or this machine lacks something that they need."""
EXIT_STORE: Final = 73
"""The store cannot be opened, or failed later."""
EXIT_SYNC: Final = 74
"""The disk failed to sync: what it holds is unknown."""

SALVAGE: Final = "save what can be read: flowguard store salvage DIRECTORY --out NEW"
REMOVED: Final = "Start on a backup: flowguard serve --data COPY"
DAMAGED: Final = f"{REMOVED}; or {SALVAGE}"
SUCCEEDED: Final = (
    "No durable work was acknowledged since. To stand by for the store: flowguard serve --takeover"
)
FULL: Final = "Free space on its disk, then start again. No acknowledged message is lost."
LOST: Final = (
    "Check the Redis server first; on restart the broker continues with the data it finds."
)
ADVICE: Final[dict[type[StoreError], str]] = {
    CorruptionError: DAMAGED,
    RemovedError: REMOVED,
    LockedError: SUCCEEDED,
    DataLostError: LOST,
    StoreError: "Nothing was acknowledged that is not stored. Look at the disk, then start again.",
}
E = TypeVar("E", bound=FlowguardError)


class StartError(FlowguardError):
    """A part of the broker could not be opened; `cause` is the exception that it raised."""

    def __init__(self, what: str, hint: str, exit_code: int, cause: OSError | StoreError) -> None:
        super().__init__(f"{what}\n{hint}")
        self.what = what
        self.hint = hint
        self.exit_code = exit_code
        self.cause = cause


def listen_error(error: OSError) -> StartError:
    """The error of a listener; `error.filename` is its address."""
    return StartError(
        f"flowguard cannot listen on {error.filename}: {error.strerror}",
        "Is another broker running? A free port is chosen with --listen 127.0.0.1:0"
        if error.errno == errno.EADDRINUSE
        else "The address must be one of this machine's, for example 127.0.0.1:1883",
        1,
        error,
    )


def store_error(error: OSError | StoreError, settings: Settings, data: Path) -> StartError:
    """The error of a store that could not be opened in directory `data`, or on its server."""
    if isinstance(error, OSError):
        what = f"flowguard cannot use {data}: {error.strerror}"
        return StartError(what, "Choose another directory: --data DIRECTORY", 1, error)
    if isinstance(error, CorruptionError):
        return StartError(f"flowguard cannot use {data}: {error}", DAMAGED, EXIT_STORE, error)
    if isinstance(error, NoSpaceError):
        return StartError(f"flowguard cannot use its store: {error}", FULL, EXIT_STORE, error)
    is_here = settings.store.kind == "rocks"
    what = f"{data} (--data)" if is_here else f"its store in {settings.store.kind}"
    if settings.store.application_store == "kafka":
        what = f"{what} with Kafka at {settings.kafka.servers}"
    return StartError(f"flowguard cannot use {what}", str(error), EXIT_STORE, error)


def end_of(group: BaseExceptionGroup[BaseException]) -> tuple[str, str, int]:
    """Return the cause of an end, the next step and the exit code; raise `group` for a bug."""
    unfit, others = group.split(ConfigError)
    if unfit is not None and others is None:
        return "flowguard cannot start", str(next(_leaves(unfit))), EXIT_CONFIG
    unopened, others = group.split(StartError)
    if unopened is not None and others is None:
        error = next(_leaves(unopened))
        return error.what, error.hint, error.exit_code
    failed, others = group.split(StoreError)
    if failed is None or others is not None:
        raise group
    cause = next(_leaves(failed))
    return (
        f"flowguard ends: its store failed: {cause}",
        next(what for kind, what in ADVICE.items() if isinstance(cause, kind)),
        EXIT_SYNC if isinstance(cause, SyncError) else EXIT_STORE,
    )


def _leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error

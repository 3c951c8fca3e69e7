"""The report of `flowguard store info`."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from heapq import nlargest
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from flowguard.cli.console import shown
from flowguard.kafka_settings import OWNER_FILE
from flowguard.lines import count
from flowguard.records import SinkKind, sink_of
from flowguard.stores.rocks.disk import used_bytes_of
from flowguard.stores.rocks.layouts.session_codec import decode_session
from flowguard.types import SESSION_NEVER_EXPIRES
from store_tools.rocks.reader import StoreReader

STATES: Final = {
    SinkKind.SHARED: "shared",
    SinkKind.SPREAD: "shared",
    SinkKind.OWED: "owed to applications",
    SinkKind.PEER: "owed to this worker",
}
UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True, order=True)
class QueueSize:
    """A row of the table, ordered by the number of messages."""

    messages: int
    size_bytes: int
    name: str
    """Client id, or the filter of a shared subscription."""
    state: str


@dataclass(slots=True)
class Contents:
    """Counts of one store, or of several."""

    sessions: int = 0
    groups: int = 0
    messages: int = 0
    size_bytes: int = 0
    disk_bytes: int = 0

    def add(self, other: "Contents") -> None:
        self.sessions += other.sessions
        self.groups += other.groups
        self.messages += other.messages
        self.size_bytes += other.size_bytes
        self.disk_bytes += other.disk_bytes


def size_text(size_bytes: float) -> str:
    """Return a size with a readable unit: `1.5 MiB`."""
    unit = 0
    while size_bytes >= 1024 and unit < len(UNITS) - 1:
        size_bytes /= 1024
        unit += 1
    return f"{size_bytes:,.0f} {UNITS[unit]}" if not unit else f"{size_bytes:,.1f} {UNITS[unit]}"


def _closed(is_clean: bool, is_copy: bool) -> str:
    if is_clean:
        return "in good order"
    return "copied while it was open" if is_copy else "not at all: the process died"


def _elsewhere(folder: Path) -> Iterator[tuple[str, str]]:
    if (folder / OWNER_FILE).exists():
        yield "in Kafka", "the queues of applications, which are not counted here"


def show(reader: StoreReader, top: int, console: Console, total: Contents) -> None:
    """Show the report, and add its counts to `total`."""
    contents = Contents(disk_bytes=used_bytes_of(reader.folder))
    largest = nlargest(top, queue_sizes(reader, contents))
    found, identity = reader.format, reader.identity
    node = identity.node.hex()
    if identity.former:
        node += f", and {count(len(identity.former), 'former node')}"
    if identity.is_copy:
        node += "; a copy that has not been opened yet"
    retained = sum(1 for _ in reader.engine.retained.rows())
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    for name, text in (
        ("directory", str(reader.folder.absolute())),
        ("format", f"{found.version}, layout {found.layout}, made by flowguard {found.creator}"),
        ("node", node),
        ("closed", _closed(reader.is_clean, identity.is_copy)),
        ("sessions", f"{contents.sessions:,}"),
        ("shared", f"{count(contents.groups, 'subscription with a queue')}"),
        ("queued", f"{count(contents.messages, 'message')}, {size_text(contents.size_bytes)}"),
        *_elsewhere(reader.folder),
        ("retained", f"{count(retained, 'message')}"),
        ("on disk", size_text(contents.disk_bytes)),
    ):
        table.add_row(name, text)
    console.print(table)
    if largest:
        console.print(largest_queues(largest))
    total.add(contents)


def as_json(reader: StoreReader, top: int) -> dict[str, object]:
    """Return the report for scripts."""
    contents = Contents(disk_bytes=used_bytes_of(reader.folder))
    largest = nlargest(top, queue_sizes(reader, contents))
    found, identity = reader.format, reader.identity
    return {
        "directory": str(reader.folder.absolute()),
        "format": found.version,
        "layout": found.layout,
        "creator": found.creator,
        "node": identity.node.hex(),
        "is_copy": identity.is_copy,
        "is_clean": reader.is_clean,
        **asdict(contents),
        "retained": sum(1 for _ in reader.engine.retained.rows()),
        "largest": [asdict(each) for each in largest],
    }


def show_sum(total: Contents, workers: int, console: Console) -> None:
    """Show the sum of the stores of several workers."""
    console.print(
        f"All {workers} workers: {count(total.sessions, 'session')}, "
        f"{count(total.groups, 'shared subscription with a queue')}, "
        f"{count(total.messages, 'queued message')} ({size_text(total.size_bytes)}); "
        f"{size_text(total.disk_bytes)} on disk."
    )


def queue_sizes(reader: StoreReader, contents: Contents) -> Iterator[QueueSize]:
    """Yield the queues that are not empty, and count all of them in `contents`."""
    for session in reader.sessions():
        queue = session.queue
        kind, name = sink_of(session.client_id)
        contents.sessions += kind is SinkKind.SESSION
        contents.groups += kind in (SinkKind.SHARED, SinkKind.SPREAD)
        contents.messages += queue.count
        contents.size_bytes += queue.size_bytes
        if queue.count:
            state = STATES.get(kind) or state_text(*decode_session(session.row)[1:])
            yield QueueSize(queue.count, queue.size_bytes, name, state)


def state_text(expiry_interval_s: int, ends_at_s: float | None) -> str:
    """Return a text on the end of a session."""
    if ends_at_s is not None:
        return f"ends {datetime.fromtimestamp(ends_at_s):%Y-%m-%d %H:%M:%S}"
    return "does not end" if expiry_interval_s == SESSION_NEVER_EXPIRES else "was connected"


def largest_queues(largest: list[QueueSize]) -> Table:
    table = Table(title="The largest queues", title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("client, shared subscription, or worker", overflow="fold")
    table.add_column("messages", justify="right")
    table.add_column("size", justify="right")
    table.add_column("session")
    for each in largest:
        table.add_row(
            shown(each.name), f"{each.messages:,}", size_text(each.size_bytes), each.state
        )
    return table

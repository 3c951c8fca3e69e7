"""`flowguard store info` and `verify` for a store on Redis, without changes or a lease."""

import json
import time
from contextlib import closing
from dataclasses import asdict
from heapq import nlargest
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from flowguard.cli.console import shown
from flowguard.errors import StoreError
from flowguard.lines import count
from flowguard.records import is_group, label_of
from store_tools.command.info import QueueSize, largest_queues, size_text, state_text

if TYPE_CHECKING:
    from store_tools.redis_reader import RedisReader


def open_reader(url: str, prefix: str) -> "RedisReader":
    from store_tools.redis_reader import RedisReader

    return RedisReader(url, prefix, clock=time.monotonic, sleep=time.sleep)


def show(url: str, prefix: str, top: int, console: Console, *, for_scripts: bool) -> None:
    """Show the report, with exact counts."""
    sessions = groups = messages = size_bytes = 0
    queues: list[QueueSize] = []
    with closing(open_reader(url, prefix)) as reader:
        for client_id in reader.client_ids():
            record = reader.session(client_id)
            group = is_group(client_id)
            sessions += not group
            groups += group
            messages += record.unsettled_count
            size_bytes += record.unsettled_bytes
            state = "shared" if group else state_text(record.expiry_interval_s, record.ends_at_s)
            name = label_of(client_id)
            if record.unsettled_count:
                size = QueueSize(record.unsettled_count, record.unsettled_bytes, name, state)
                queues = nlargest(top, [*queues, size])
        retained = sum(count for _, count in reader.retained_counts())
        meta, where = reader.meta, reader.where
    if for_scripts:
        counts = {"sessions": sessions, "groups": groups, "messages": messages}
        sizes = {"size_bytes": size_bytes, "retained": retained}
        form = {"format": meta["format"], "layout": meta["layout"]}
        largest = [asdict(each) for each in queues]
        console.print(json.dumps({"store": where, **form, **counts, **sizes, "largest": largest}))
        return
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    has_left = meta.get("beat", "0") == "0"
    for key, text in (
        ("store", where),
        ("format", f"{meta['format']}, layout {meta['layout']}"),
        ("broker", f"{meta.get('name', 'none yet')}{', which has left' if has_left else ''}"),
        ("commits", f"{int(meta.get('last', '0')):,} of this broker"),
        ("sessions", f"{sessions:,}"),
        ("shared", f"{count(groups, 'subscription with a queue')}"),
        ("queued", f"{count(messages, 'message')}, {size_text(size_bytes)}"),
        ("retained", f"{count(retained, 'message')}"),
    ):
        table.add_row(key, text)
    console.print(table)
    if queues:
        console.print(largest_queues(queues))


def verify(
    url: str, prefix: str, problems_shown: int, console: Console, *, for_scripts: bool
) -> None:
    """Read everything. Raises `StoreError` if it is inconsistent."""
    with closing(open_reader(url, prefix)) as reader:
        found = reader.verify()
        where = reader.where
    if for_scripts:
        console.print(json.dumps({"store": where, **asdict(found)}))
        raise typer.Exit(1 if found.problems else 0)
    console.print(
        f"{found.sessions:,} sessions and queues, {count(found.entries, 'queued message')}, "
        f"{found.retained:,} retained."
    )
    for problem in found.problems[:problems_shown]:
        console.print(shown(problem), style="red")
    if found.problems:
        raise StoreError(f"{where} is damaged: {count(len(found.problems), 'problem')}")
    console.print("The store is consistent.", style="green")

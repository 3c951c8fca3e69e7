"""The reports of `flowguard store log`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table

from flowguard.cli.console import shown
from flowguard.lines import count
from flowguard.stores.log.generations import Generation
from flowguard.stores.log.iterators import Stream
from flowguard.stores.log.layout import instant_of
from flowguard.stores.log.message_log import MessageLog
from flowguard.stores.log.replays import LogPlace
from store_tools.command.info import size_text


def show(
    log: MessageLog, disk_bytes: int, places: Mapping[str, LogPlace], top: int, console: Console
) -> None:
    """Show totals, and the sessions that are furthest behind."""
    generations = log.generations
    messages = sum(each.count for each in generations)
    if not generations:
        console.print("The durable log is empty.")
        return
    first = next((each.first for each in generations if each.first), 0)
    last = max(each.last for each in generations)
    console.print(f"{count(messages, 'message')} in {count(len(generations), 'generation')}")
    console.print(f"{size_text(disk_bytes)} in tables and memory")
    if first:
        console.print(f"oldest message {_instant(first)}, newest {_instant(last)}")
    console.print(f"{count(log.lost_count(0), 'message')} dropped with their generations")
    behind = {name: log.count_after(place.after) for name, place in places.items()}
    console.print(f"{count(len(behind), 'session')} with messages to read from it")
    if not any(behind.values()):
        return
    table = Table("session", "messages since, at most", "since", box=box.SIMPLE)
    for name in sorted(behind, key=lambda name: -behind[name])[:top]:
        if behind[name]:
            after = places[name].after
            since = _instant(after) if after else "it began"
            table.add_row(shown(name), f"{behind[name]:,}", since)
    console.print(table)


def show_generations(generations: Sequence[Generation], console: Console) -> None:
    """Show a row for each generation."""
    table = Table(
        "number", "state", "layout", "shards", "first message", "messages", "bytes", box=box.SIMPLE
    )
    for each in generations:
        table.add_row(
            f"{each.number}",
            "sealed" if each.is_sealed else "current",
            each.layout,
            f"{each.shards}",
            _instant(each.first) if each.first else "none",
            f"{each.count:,}",
            f"{each.size_bytes:,}",
        )
    console.print(table)


def show_streams(streams: Mapping[Stream, int], console: Console) -> None:
    """Show a row for each stream, with its number of messages."""
    table = Table("generation", "shard", "messages", box=box.SIMPLE)
    for stream, messages in streams.items():
        table.add_row(f"{stream.generation}", f"{stream.shard}", f"{messages:,}")
    console.print(table)


def _instant(stamp: int) -> str:
    return datetime.fromtimestamp(instant_of(stamp), UTC).isoformat(" ", "seconds")

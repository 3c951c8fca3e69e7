"""`flowguard store ...`: inspects, checks, copies and merges stores while no broker uses them.

Each command imports the engine when it runs, because loading it takes time.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from flowguard.app.workers.data_folder import stored_count
from flowguard.cli.console import command_group, plain
from flowguard.cli.remote.answers import turned_down
from flowguard.cli.remote.ask import DEFAULT_URL, NoAnswer, ask
from flowguard.errors import LockedError, StoreError
from flowguard.lines import count
from store_tools.command.parts import (
    EXIT_BAD,
    PROBLEMS_SHOWN,
    complaints,
    existing,
    list_problems,
    progress_bar,
    stores_in,
    to_stdout,
    wrong,
)
from store_tools.command.workers import workers

if TYPE_CHECKING:
    from flowguard.stores.log.message_log import MessageLog
    from store_tools.rocks.reader import StoreReader
    from store_tools.rocks.verification import Verification

BACKUP_PATIENCE_S: Final = 60.0
ELSEWHERE: Final = "Name the URL that the broker prints when it starts (`http on URL`): --url URL"
Folder = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of the store.")]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url", metavar="URL", help="Use the store on this Redis instead of a directory."
    ),
]
RedisPrefix = Annotated[
    str, typer.Option("--redis-prefix", metavar="PREFIX", help="First part of the keys in Redis.")
]
RedisLayout = Annotated[
    str, typer.Option(metavar="LAYOUT", help="Layout in Redis: stream or zset.")
]
StoresAsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object a line, for each store.")
]

DEFAULT: Final = Path("flowguard-data")

store = command_group("Inspect, check, copy and merge stores.")
log = command_group("Inspect the durable log; begin or drop generations.")
store.add_typer(log, name="log")
store.command()(workers)


@store.command()
def info(
    directory: Folder = DEFAULT,
    top: Annotated[int, typer.Option(min=1, help="Number of largest queues to show.")] = 10,
    redis_url: RedisUrl = None,
    redis_prefix: RedisPrefix = "fg1",
    as_json: StoresAsJson = False,
) -> None:
    """Show what is in a store: format, node, sessions, queued messages, size."""
    if redis_url is not None:
        from store_tools.command import redis as store_redis

        with complaints("info"):
            console = plain(soft_wrap=as_json)
            store_redis.show(redis_url, redis_prefix, top, console, for_scripts=as_json)
        return
    from store_tools.command import info as report
    from store_tools.rocks.reader import StoreReader

    contents, console = report.Contents(), plain(soft_wrap=False)
    with complaints("info"):
        folders = stores_in(directory, "info")
        for folder in folders:
            with StoreReader(folder) as reader:
                if as_json:
                    typer.echo(json.dumps(report.as_json(reader, top)))
                else:
                    report.show(reader, top, console, contents)
        if len(folders) > 1 and not as_json:
            report.show_sum(contents, len(folders), console)


@store.command()
def verify(
    directory: Folder = DEFAULT,
    redis_url: RedisUrl = None,
    redis_prefix: RedisPrefix = "fg1",
    as_json: StoresAsJson = False,
) -> None:
    """Read everything and check its consistency; the exit code is 1 if it is damaged."""
    if redis_url is not None:
        from store_tools.command import redis as store_redis

        with complaints("verify"):
            console = plain()
            store_redis.verify(
                redis_url, redis_prefix, PROBLEMS_SHOWN, console, for_scripts=as_json
            )
        return
    with complaints("verify"):
        damages = [_damage(folder, as_json) for folder in stores_in(directory, "verify")]
        if any(damages):
            raise StoreError("\n".join(filter(None, damages)))


def _damage(folder: Path, as_json: bool) -> str:
    """Read a store. Return a description of its damage, or ""."""
    from store_tools.rocks import verification
    from store_tools.rocks.reader import StoreReader

    with StoreReader(folder, tolerant=True) as reader, progress_bar("reading") as progress:
        found = verification.verify(reader, progress)
    out = plain()
    if as_json:
        out.print(json.dumps({"directory": str(folder.absolute()), **asdict(found)}))
    else:
        _print_found(found, out)
    if not found.problems_count:
        return ""
    more = found.problems_count - min(PROBLEMS_SHOWN, len(found.problems))
    hidden = f", {more:,} not shown" if more and not as_json else ""
    return f"{folder} is damaged: {count(found.problems_count, 'problem')}{hidden}"


def _print_found(found: "Verification", out: Console) -> None:
    out.print(
        f"{count(found.sessions, 'session')}, "
        f"{count(found.groups, 'shared subscription with a queue')}, "
        f"{count(found.entries, 'queued message')}, "
        f"{count(found.payloads, 'shared message')}, {found.retained:,} retained, "
        f"{found.orphans:,} without a reference."
    )
    list_problems(out, found.problems)
    if not found.problems_count:
        out.print("The store is consistent.", style="green")


@store.command()
def salvage(
    directory: Folder = DEFAULT,
    out: Annotated[Path, typer.Option("--out", metavar="NEW", help="The new directory.")] = Path(
        "flowguard-saved"
    ),
) -> None:
    """Copy what can be read of a damaged store; the exit code is 1 if something is lost."""
    from store_tools.command.salvage import save

    with complaints("salvage"):
        with progress_bar("saving") as progress:
            found = save(directory, out.absolute(), progress)
        console = plain()
        console.print(
            f"{out} has {count(found.sessions, 'session')}, "
            f"{count(found.groups, 'shared subscription with a queue')}, "
            f"{count(found.entries, 'queued message')}, {found.retained:,} retained."
        )
        list_problems(console, found.problems)
        if found.problems_count:
            number = stored_count(out)
            workers = "" if number is None else f"--workers {number} "
            raise StoreError(
                f"not everything could be saved: {count(found.problems_count, 'problem')}; "
                f"lost: {count(found.lost_entries, 'queued message')}, "
                f"{count(found.lost_queues, 'queue')} of lost sessions. "
                f"To serve the rest: flowguard serve {workers}--data {out}"
            )
        console.print("Everything could be read.", style="green")


@store.command()
def export(
    directory: Folder = DEFAULT,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write; default: standard output."),
    ] = None,
) -> None:
    """Write everything as JSON Lines: one record per line, payloads in base64."""
    from store_tools.command.export import export_lines
    from store_tools.rocks.reader import StoreReader

    with complaints("export"), ExitStack() as stack:
        stores = stores_in(directory, "export")
        readers = [stack.enter_context(StoreReader(store)) for store in stores]
        if out is None:
            with progress_bar("exporting") as progress:
                to_stdout(export_lines(readers, progress))
            return
        if out.exists():
            raise wrong("export", f"{out} exists; name a new file")
        with out.open("w", encoding="ascii") as file, progress_bar("exporting") as progress:
            file.writelines(export_lines(readers, progress))


@store.command()
def merge(
    first: Annotated[Path, typer.Argument(metavar="A", help="One store; it is not changed.")],
    second: Annotated[
        Path, typer.Argument(metavar="B", help="The other store; it is not changed.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="C", help="The new directory.")],
) -> None:
    """Merge two stores that were copies of each other and then diverged."""
    from store_tools.rocks import merge as merging

    for folder in (first, second):
        existing(folder, "merge")
    if first.samefile(second):
        raise wrong("merge", f"{first} and {second} are the same directory")
    if out.exists():
        raise wrong("merge", f"{out} exists; name a new directory")
    node = partial(secrets.randbits, 32)
    with complaints("merge"), progress_bar("merging") as progress:
        report = merging.merge(first, second, out, random_node=node, progress=progress)
    entries = report.entries
    console = plain()
    console.print(
        f"{out}: {count(report.sessions, 'session')}, "
        f"{count(report.groups, 'shared subscription with a queue')}, "
        f"{count(entries.both + entries.new, 'queued message')}, "
        f"{count(report.retained, 'retained message')}."
    )
    console.print(
        f"In both stores: {count(entries.both, 'message')}; in one only: {entries.new:,}, of these "
        f"{entries.late:,} with a new position, which are sent again.\n"
        "In one store only, already delivered or ended in the other: "
        f"{count(entries.settled, 'message')}, {count(report.ended, 'session')}.",
        style="dim",
    )


@store.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A directory, or a Redis URL.")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="A new or empty directory, or a Redis URL.")
    ],
    redis_prefix: RedisPrefix = "fg1",
    redis_layout: RedisLayout = "stream",
) -> None:
    """Copy all sessions, queues and retained messages: from RocksDB to Redis, say, or back."""
    from store_tools.command.copy import copy as copy_all

    with complaints("copy"), progress_bar("copying") as progress:
        found = copy_all(source, target, redis_prefix, redis_layout, progress)
    plain().print(
        f"{count(found.sessions, 'session')}, "
        f"{count(found.groups, 'shared subscription with a queue')}, "
        f"{count(found.entries, 'queued message')} and {found.retained:,} retained copied."
    )


@store.command("import-tbmq")
def import_tbmq(
    source: Annotated[str, typer.Argument(metavar="URL", help="The Redis of a TBMQ 2.")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="A new directory, or a Redis URL for flowguard.")
    ],
    subscriptions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV, CLIENT_ID,FILTER,QOS: they are not in Redis."),
    ] = None,
    session_expiry: Annotated[
        int,
        typer.Option(
            metavar="SECONDS", min=1, max=2**32 - 1, help="Expiry of the sessions that are created."
        ),
    ] = 604_800,
    tbmq_prefix: Annotated[
        str, typer.Option(metavar="PREFIX", help="Prefix of TBMQ's keys, if any.")
    ] = "",
    redis_prefix: RedisPrefix = "fg1",
    redis_layout: RedisLayout = "stream",
) -> None:
    """Take over the queues of a TBMQ in Redis; stop its broker first (docs/operate/redis.md)."""
    with complaints("import-tbmq"), progress_bar("importing") as progress:
        from store_tools.command import imports as store_import

        found = store_import.import_tbmq(
            source,
            target,
            tbmq_prefix,
            redis_prefix,
            redis_layout,
            subscriptions,
            session_expiry,
            progress,
        )
    console = plain()
    console.print(
        f"{count(found.sessions, 'session')}, {count(found.subscriptions, 'subscription')} and "
        f"{count(found.entries, 'queued message')} imported."
    )
    list_problems(console, found.problems)
    if found.problems:
        what = f"{count(len(found.problems), 'message')} could not be read, and stay in that Redis"
        raise wrong("import-tbmq", what, EXIT_BAD)


@store.command()
def compact(directory: Folder = DEFAULT) -> None:
    """Rewrite the tables without deleted data."""
    from store_tools.command.info import size_text
    from store_tools.rocks import compaction

    console, waiting = plain(soft_wrap=False), Console(stderr=True)
    with complaints("compact"):
        folders = stores_in(directory, "compact")
    for folder in folders:
        with complaints("compact"), waiting.status("compacting"):
            before_bytes, after_bytes = compaction.compact(folder, time.time())
        sizes = f"{size_text(before_bytes)} before, {size_text(after_bytes)} now"
        console.print(f"{folder}: {sizes}.", soft_wrap=True)


@store.command()
def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New directory for the copy.")],
    data: Annotated[
        Path, typer.Option(help="Directory of the store; a broker that has it open makes the copy.")
    ] = DEFAULT,
    url: Annotated[
        str | None,
        typer.Option(help=f"HTTP port of the broker that makes the copy; default: {DEFAULT_URL}."),
    ] = None,
) -> None:
    """Copy a store, through the HTTP port of a running broker or directly.

    To restore, start the broker on the copy: `flowguard serve --data DIR`.
    """
    if folder.exists():
        raise wrong("backup", f"{folder} exists; name a new directory")
    console = plain()
    with complaints("backup"):
        if url is None:
            from store_tools.command.backup import back_up

            try:
                back_up(data, folder.absolute())
                console.print(f"{folder} is a copy of {data}, on which no broker runs.")
                return
            except LockedError as error:
                console.print(f"{error.held}: asking the broker at {DEFAULT_URL}", style="dim")
                _expect_holder(DEFAULT_URL, data)
        _ask_for_backup(url or DEFAULT_URL, folder.absolute())
        console.print(f"{folder} is a copy of the store of the broker at {url or DEFAULT_URL}.")


def _expect_holder(url: str, data: Path) -> None:
    """Raises `StoreError` if the broker at `url` is not the one that has `data` open."""
    from flowguard.stores.rocks.format import holder_pid

    try:
        code, status = ask(url, "/status")
        if code != 200:
            raise turned_down(url, code, status)
    except NoAnswer as error:
        raise StoreError(f"no answer from {error}. {ELSEWHERE}") from error
    pid = status.get("pid") if isinstance(status, dict) else None
    if pid is None or pid != holder_pid(data):
        raise StoreError(f"the broker at {url} is another one, process {pid}. {ELSEWHERE}")


def _ask_for_backup(url: str, folder: Path) -> None:
    try:
        asked = {"folder": str(folder)}
        code, answer = ask(url, "/backup", asked, BACKUP_PATIENCE_S)
    except NoAnswer as error:
        what = f"A copy under way is finished all the same: look for {folder}"
        raise StoreError(
            f"no answer from {error}. {ELSEWHERE if error.refused else what}"
        ) from error
    if code != 200:
        why = answer.get("error") if isinstance(answer, dict) else None
        raise StoreError(f"the broker at {url} made no copy: {why or f'status {code}'}")


@log.command("info")
def log_info(
    directory: Folder = DEFAULT,
    top: Annotated[
        int, typer.Option(min=1, help="Number of sessions furthest behind to show.")
    ] = 10,
) -> None:
    """Show the durable log: messages, size, age, and the sessions furthest behind."""
    from store_tools.command import log as store_log
    from store_tools.rocks.durable_log import places_in

    with _reading_log(directory, "info") as (found, reader):
        disk_bytes = sum(family.size_bytes for family in reader.engine.slices.values())
        store_log.show(found, disk_bytes, places_in(reader), top, plain(soft_wrap=False))


@log.command("generations")
def log_generations(directory: Folder = DEFAULT) -> None:
    """Show the generations of the durable log, oldest first."""
    from store_tools.command import log as store_log

    with _reading_log(directory, "generations") as (found, _):
        store_log.show_generations(found.generations, plain(soft_wrap=False))


@log.command("streams")
def log_streams(directory: Folder = DEFAULT) -> None:
    """Show the streams of the durable log with their messages, which are counted."""
    from store_tools.command import log as store_log

    with _reading_log(directory, "streams") as (found, _):
        counts = {stream: found.count_in(stream) for stream in found.get_streams()}
        store_log.show_streams(counts, plain(soft_wrap=False))


@log.command("add")
def log_add(directory: Folder = DEFAULT) -> None:
    """Seal the current generation, so that it can be dropped, and begin the next."""
    _change_log(directory, "add", lambda log: log.roll())


@log.command("drop")
def log_drop(
    number: Annotated[int, typer.Argument(help="Number of a sealed generation.")],
    directory: Folder = DEFAULT,
) -> None:
    """Drop a generation with all its messages, read or unread."""
    _change_log(directory, "drop", lambda log: log.drop(number))


@contextmanager
def _reading_log(directory: Path, command: str) -> Iterator[tuple["MessageLog", "StoreReader"]]:
    from store_tools.rocks.durable_log import log_in
    from store_tools.rocks.reader import StoreReader

    name = f"log {command}"
    with complaints(name), StoreReader(existing(directory, name)) as reader:
        yield log_in(reader.engine, tidies=False), reader


def _change_log(directory: Path, command: str, act: Callable[["MessageLog"], object]) -> None:
    from store_tools.rocks.durable_log import change

    name = f"log {command}"
    with complaints(name):
        change(existing(directory, name), time.time(), act)

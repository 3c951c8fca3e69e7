"""`flowguard cluster`: the nodes and shards of a cluster, as one of its nodes sees them."""

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Final

import typer
from rich import box
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flowguard.app.workers.cluster_status import ClusterStatus, ShardLoad, sentences_of
from flowguard.cli.console import AsJson, command_group, plain, refused
from flowguard.cli.remote.answers import turned_down, understood
from flowguard.cli.remote.ask import DEFAULT_URL, ask, needs_answer

LOADS: Final = ("clients", "sessions", "window", "pressure", "waiting")

POLL_S: Final = 0.5
Url = Annotated[str, typer.Option(help="The HTTP port of any node.")]
cluster = command_group("Show the nodes of a cluster, and move its shards.")


@cluster.command()
def status(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show nodes and shards.

    The exit code is 1 while a shard does not serve or moves, or Redis does not answer the node.
    """
    with needs_answer("cluster status"):
        found = _status(url)
    if as_json:
        sys.stdout.write(f"{json.dumps(found)}\n")
    else:
        _show(found)
    if found["down"] or found["moving"] or found["trouble"]:
        raise typer.Exit(1)


def _show(found: ClusterStatus) -> None:
    console = plain(soft_wrap=False)
    nodes = _table("node", "state", "alive for", "last sign", "shards", "at most")
    for name, node in sorted(found["nodes"].items()):
        alive = str(timedelta(seconds=round(node["alive_s"])))
        numbers = " ".join(map(str, sorted(node["shards"])))
        silent, most = f"{node['silent_s']:.1f} s ago", str(node["shards_max"])
        nodes.add_row(name, node["state"], alive, silent, numbers, most)
    console.print(nodes)
    shards = _table("shard", "state", "node", *LOADS)
    for number, shard in found["shards"].items():
        shards.add_row(number, shard["state"], shard["node"], *_cells(shard["load"]))
    console.print(shards)
    for line in sentences_of(found):
        console.print(line, soft_wrap=True)


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _cells(load: ShardLoad | None) -> list[str]:
    if load is None:
        return []
    numbers = (f"{load['clients']:,}", f"{load['sessions']:,}", f"{load['window']:.3g}")
    return [*numbers, f"{load['pressure']:.2f}", f"{load['waiting']:,}"]


@cluster.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of `cluster status`.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Let a node give its shards away, and take none.

    That holds until it starts again, or `flowguard cluster rebalance`. The command ends when the
    node has no shards; after Ctrl-C the shards move on.
    """
    name = f"cluster drain {node}"
    _change(url, name, "/cluster/drain", {"node": node})

    def left(found: ClusterStatus) -> str:
        shards = found["nodes"][node]["shards"] if node in found["nodes"] else []
        waits = "" if found["moves"] in shards else "; no node can take one now"
        return f"{_named(shards)} left{waits}" if shards else ""

    _follow(url, name, left)
    typer.echo(f"{node} has no shards; flowguard cluster rebalance gives it some")


@cluster.command()
def rebalance(url: Url = DEFAULT_URL) -> None:
    """Let all nodes take shards, and move shards until nodes have equal parts.

    Nodes that were drained take shards again. After Ctrl-C the shards move on.
    """
    _change(url, "cluster rebalance", "/cluster/rebalance", {})

    def left(found: ClusterStatus) -> str:
        if found["down"]:
            return f"{_named(found['down'])} down"
        return "" if found["moves"] is None else f"shard {found['moves']} moves next"

    _follow(url, "cluster rebalance", left)
    typer.echo("nodes have equal parts of the shards")


def _named(shards: list[int]) -> str:
    return f"shard{'s' * (len(shards) != 1)} {', '.join(map(str, sorted(shards)))}"


def _status(url: str) -> ClusterStatus:
    """Return the answer of a node. Raises NoAnswer."""
    code, answer = ask(url, "/cluster")
    if code == 404:
        raise refused(f"{url}: this broker is no node of a cluster: flowguard serve --cluster")
    return understood(url, code, answer, ClusterStatus)


def _change(url: str, command: str, path: str, body: object) -> None:
    with needs_answer(command):
        code, answer = ask(url, path, body)
        if code != 200:
            raise turned_down(url, code, answer)


def _follow(url: str, command: str, left: Callable[[ClusterStatus], str]) -> None:
    """Show what is left until that is nothing."""
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    console = plain(stderr=True, soft_wrap=False)
    with Progress(*columns, console=console) as progress, needs_answer(command):
        task = progress.add_task("")
        try:
            while text := left(_status(url)):
                progress.update(task, description=text)
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            raise refused("The shards move on: flowguard cluster status", code=130) from None

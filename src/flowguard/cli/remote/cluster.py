"""`flowguard cluster`: the nodes and shards of a cluster, as one of its nodes sees them."""

import json
import sys
from datetime import timedelta
from typing import Annotated, Final

import typer
from rich import box
from rich.table import Table

from flowguard.app.workers.cluster_status import ClusterStatus, ShardLoad, sentences_of
from flowguard.cli.console import plain, refused
from flowguard.cli.remote.answers import understood
from flowguard.cli.remote.ask import DEFAULT_URL, NoAnswer, ask, complain

LOADS: Final = ("clients", "sessions", "window", "pressure", "waiting")

cluster = typer.Typer(
    help="Show the nodes of a cluster.", no_args_is_help=True, add_completion=False
)


@cluster.callback()
def _group() -> None:
    """Show the nodes of a cluster."""


@cluster.command()
def status(
    url: Annotated[str, typer.Option(help="The HTTP port of any node.")] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show nodes and shards.

    The exit code is 1 while a shard does not serve or moves, or Redis does not answer the node.
    """
    try:
        code, answer = ask(url, "/cluster")
        if code == 404:
            raise refused(f"{url}: this broker is no node of a cluster: flowguard serve --cluster")
        found = understood(url, code, answer, ClusterStatus)
    except NoAnswer as error:
        raise complain("cluster status", error, "--url http://HOST:PORT") from error
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

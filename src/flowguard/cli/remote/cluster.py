"""`flowguard cluster`: the nodes and shards of a cluster, as one of its nodes sees them."""

import json
import sys
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from flowguard.app.workers.cluster_duty import ClusterStatus
from flowguard.cli.console import plain, refused
from flowguard.cli.remote.answers import understood
from flowguard.cli.remote.ask import DEFAULT_URL, NoAnswer, ask, complain

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
    """Show nodes and shards. The exit code is 1 if no living node runs one of the shards."""
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
    if found["down"]:
        raise typer.Exit(1)


def _show(found: ClusterStatus) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("node", "state", "last sign of life", "shards", "at most"):
        table.add_column(title, overflow="fold")
    for name, node in sorted(found["nodes"].items()):
        shards = " ".join(map(str, sorted(node["shards"])))
        silent = f"{node['silent_s']:.1f} s ago"
        table.add_row(name, node["state"], silent, shards, str(node["shards_max"]))
    console = plain(soft_wrap=False)
    console.print(table)
    if found["trouble"]:
        console.print(f"Redis does not answer {found['node']}: {found['trouble']}")
    if found["down"]:
        console.print(f"No living node runs shard {', '.join(map(str, found['down']))}.")

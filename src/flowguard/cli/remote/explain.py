"""`flowguard explain`: why is this client paused, why does it get nothing, what is dropped?"""

import json
import sys
from typing import Annotated, Final
from urllib.parse import quote

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowguard.cli.console import AsJson, plain, refused, shown
from flowguard.cli.remote.answers import turned_down, understood
from flowguard.cli.remote.ask import DEFAULT_URL, Url, ask, needs_answer
from flowguard.ops.common.explanation import Explained
from flowguard.ops.explain_words import clock_text
from flowguard.ops.pressure import Decision
from flowguard.ops.status import Use

USES: Final = (
    ("held", "held", "packets that wait in the proxy"),
    ("inflight", "inflight", "messages sent and not acknowledged"),
    ("queue", "queue_messages", "messages"),
    ("", "queue_bytes", "bytes"),
    ("subscriptions", "subscriptions", "filters"),
)
"""Name, key and meaning of each use that an explanation may have."""


def explain(
    client_id: Annotated[
        str, typer.Argument(metavar="CLIENT_ID", help="Client identifier in its CONNECT.")
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Explain why a client is paused or gets no messages.

    The messages that the broker dropped are counted by reason.

    The exit code is 1 if there is no such client or the broker does not answer.
    """
    with needs_answer("explain"):
        code, answer = ask(url, f"/explain/{quote(client_id, safe='')}")
        if code not in (200, 404) or not isinstance(answer, dict):
            raise turned_down(url, code, answer)
        # Programs may understand the answer of another version.
        is_shown = code == 200 and not as_json
        explanation = understood(url, code, answer, Explained) if is_shown else None
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    elif explanation is not None:
        show(explanation, plain(soft_wrap=False))
    if code == 404:
        known = str(answer.get("error", "")).partition(". ")[2]
        raise refused(
            f"The broker has no session of a client {client_id!r}.",
            shown(known)
            or "It never connected, or its session has ended; names are case-sensitive.",
        )


def show(explanation: Explained, console: Console) -> None:
    """Print the sentences, then the numbers."""
    if "node" in explanation:
        where = f"Shard {explanation.get('shard')} at node {explanation['node']} has its session."
        console.print(where, soft_wrap=True)
    for sentence in explanation["sentences"]:
        console.print(sentence, soft_wrap=True)
    console.print(_numbers(explanation))
    if explanation["decisions"]:
        console.print(_decisions(explanation["decisions"], explanation["now_s"]))


def _numbers(explanation: Explained) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_column(style="dim")
    connected = explanation["connected"]
    if connected is not None:
        _use(table, "in process", connected["window"], "packets, its window")
        if "unacknowledged" in connected:
            told = connected.get("receive_maximum")
            more = "" if told is None else f"; CONNACK allowed {told:,}"
            _use(table, "unacknowledged", connected["unacknowledged"], f"PUBLISH packets{more}")
        _use(table, "outbox", connected["outbox_bytes"], "bytes to send")
        limit = ""
        if "keep_alive_s" in connected:
            after_s = connected["keep_alive_s"]
            limit = "no keep-alive" if after_s is None else f"disconnected after {after_s:g} s"
        table.add_row("silent for", f"{connected['silent_s']:.1f} s", limit)
    for name, key, what in USES:
        if key in explanation:
            _use(table, name, explanation[key], what)  # type: ignore[literal-required]
    return table


def _use(table: Table, name: str, use: Use, what: str) -> None:
    limit = "" if use["limit"] is None else f"of {use['limit']:,} "
    table.add_row(name, f"{use['used']:,}", f"{limit}{what}")


def _decisions(decisions: list[Decision], now_s: float) -> Table:
    table = Table(
        title="Latest decisions of the broker", title_justify="left", box=box.SIMPLE, pad_edge=False
    )
    for name in ("at", "window", "signal", "observed", "objective"):
        table.add_column(name, justify="right" if name in ("window", "observed") else "left")
    table.add_column("why", overflow="fold")
    for decision in decisions:
        table.add_row(
            clock_text(decision["at_s"], now_s),
            f"{decision['window']:.3g}",
            decision["signal"] or "",
            value_text(decision["value"], decision["unit"]),
            value_text(decision["threshold"], decision["unit"]),
            Text(decision["why"]),
        )
    return table


def value_text(value: float | None, unit: str | None) -> str:
    """Return the value with its unit: `12.5 ms`, `73 %`."""
    if value is None:
        return ""
    return f"{value * 1e3:,.1f} ms" if unit == "s" else f"{value * 100:.0f} %"

"""`flowguard explain`: why is this client paused, why does it get nothing, what is dropped?"""

import json
import sys
from datetime import datetime
from typing import Annotated, cast
from urllib.parse import quote

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowguard.cli.ask import DEFAULT_URL, NoAnswer, ask, complain
from flowguard.cli.console import plain, refused
from flowguard.flow import Reason
from flowguard.ops.explain import Explanation, FromLog
from flowguard.ops.status import Decision, Use

DROPS = {
    Reason.OFFLINE_QOS_0: "QoS 0 messages: it is not connected",
    Reason.QUEUE_MESSAGES: "QoS 1 and 2 messages: its queue is full (messages)",
    Reason.QUEUE_BYTES: "QoS 1 and 2 messages: its queue is full (bytes)",
    Reason.NODE_QUEUE_BYTES: "QoS 1 and 2 messages: of what all queues may be, it has its share",
    Reason.NODE_DISK_QUEUE_BYTES: "QoS 1 and 2 messages: of what all queues may be on the disk, it "
    "has its share",
    Reason.OUTBOX_BYTES: "QoS 0 messages: its socket does not take what is sent already",
    Reason.NODE_OUTBOX_BYTES: "QoS 0 messages: too much waits for slow sockets, of all clients",
}


def explain(
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="As in its CONNECT.")],
    url: Annotated[str, typer.Option(help="The broker's HTTP port.")] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say why a client is paused or gets nothing, what is dropped for it, what the node decided.

    The exit code is 1 if there is no such client, or no broker.
    """
    try:
        code, answer = ask(url, f"/explain/{quote(client_id, safe='')}")
        if code not in (200, 404) or not isinstance(answer, dict):
            raise NoAnswer(f"{url}: this is no HTTP port of flowguard (status {code})")
    except NoAnswer as error:
        raise complain("explain", error, "--url http://HOST:PORT") from error
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    elif code == 200:
        show(cast(Explanation, answer), plain(soft_wrap=False))
    if code == 404:
        raise refused(
            f"The broker has no session of a client {client_id!r}.",
            "It never connected, or its session has ended; names are case-sensitive.",
        )


def show(explanation: Explanation, console: Console) -> None:
    """Sentences, then the numbers."""
    for sentence in sentences(explanation):
        console.print(sentence, soft_wrap=True)
    console.print(_numbers(explanation))
    if explanation["decisions"]:
        console.print(_decisions(explanation["decisions"]))


def sentences(explanation: Explanation) -> list[str]:
    """The sentences that a person wants to read first."""
    client_id, connected = explanation["client_id"], explanation["connected"]
    if connected is None:
        ends_s = explanation["session_ends_s"]
        until = "" if ends_s is None else f" until {_clock(ends_s)}"
        found = [f"{client_id} is not connected; its session is kept{until}."]
    else:
        found = [f"{client_id} is connected (MQTT {connected['protocol']})."]
    if explanation["damage"]:
        found.append(
            f"What waits for it cannot be read and is held back: {explanation['damage']}. "
            "When it comes to that, it is disconnected."
        )
    found += [f"It is paused: {pause['text']}." for pause in explanation["paused"]]
    if connected is not None and not explanation["paused"]:
        found.append("It is not paused: nothing that it sent has to wait.")
    found += _undelivered(explanation)
    found += [f"Dropped for it now: {DROPS[Reason(reason)]}." for reason in explanation["dropped"]]
    if explanation["why"]:
        found.append(f"The node now: {explanation['why']}.")
    return found


def _undelivered(explanation: Explanation) -> list[str]:
    """Why it gets nothing, and how far it is with what is on the disk."""
    waiting, text = explanation["queue_messages"]["used"], explanation["undelivered"]["text"]
    many = f"{waiting:,} messages wait for it" if waiting else "No message is sent to it now"
    found = [f"{many}: {text}."]
    on_disk = explanation["on_disk"]
    if on_disk is not None:
        per_s = on_disk["per_s"]
        rate = "" if per_s is None else f"; {per_s:,.0f} come from there per second"
        found.append(
            f"{on_disk['messages']:,} of them are on the disk, read up to position "
            f"{on_disk['read_pos']:,} of {on_disk['last_pos']:,}{rate}."
        )
    log = explanation["log"]
    if log is not None:
        found.append(_from_log(log, explanation["now_s"]))
    return found


def _from_log(log: FromLog, now_s: float) -> str:
    rest = ", all that it had missed"
    if log["goes_on"]:
        rest = f"; it has read what was published up to {now_s - log['until_s']:,.0f} s ago"
    lost = f" {log['lost']:,} were gone before: retention." if log["lost"] else ""
    return f"{log['messages']:,} messages came from the durable log{rest}.{lost}"


def _numbers(explanation: Explanation) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_column(style="dim")
    connected = explanation["connected"]
    if connected is not None:
        _use(table, "in process", connected["window"], "packets of it, of its window")
        told = connected["receive_maximum"]
        what = "PUBLISH of it" if told is None else f"PUBLISH of it; its CONNACK said {told:,}"
        _use(table, "unacknowledged", connected["unacknowledged"], what)
        _use(table, "outbox", connected["outbox_bytes"], "bytes for its socket")
        keep_alive_s = connected["keep_alive_s"]
        limit = "no keep-alive" if keep_alive_s is None else f"ended after {keep_alive_s:g} s"
        table.add_row("silent for", f"{connected['silent_s']:.1f} s", limit)
    _use(table, "inflight", explanation["inflight"], "messages sent, not acknowledged")
    _use(table, "queue", explanation["queue_messages"], "messages")
    _use(table, "", explanation["queue_bytes"], "bytes")
    _use(table, "subscriptions", explanation["subscriptions"], "filters")
    return table


def _use(table: Table, name: str, use: Use, what: str) -> None:
    limit = "" if use["limit"] is None else f"of {use['limit']:,} "
    table.add_row(name, f"{use['used']:,}", f"{limit}{what}")


def _decisions(decisions: list[Decision]) -> Table:
    table = Table(
        title="What the node decided lately", title_justify="left", box=box.SIMPLE, pad_edge=False
    )
    for name in ("at", "window", "signal", "observed", "objective"):
        table.add_column(name, justify="right" if name in ("window", "observed") else "left")
    table.add_column("why", overflow="fold")
    for decision in decisions:
        table.add_row(
            _clock(decision["at_s"]),
            f"{decision['window']:.3g}",
            decision["signal"] or "",
            value_text(decision["value"], decision["unit"]),
            value_text(decision["threshold"], decision["unit"]),
            Text(decision["why"]),
        )
    return table


def value_text(value: float | None, unit: str | None) -> str:
    """The value with its unit: `12.5 ms`, `73 %`."""
    if value is None:
        return ""
    return f"{value * 1e3:,.1f} ms" if unit == "s" else f"{value * 100:.0f} %"


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).strftime("%H:%M:%S")

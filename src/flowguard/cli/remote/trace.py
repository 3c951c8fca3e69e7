"""`flowguard trace`: packets and decisions of chosen clients, while it runs."""

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import IO, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from flowguard.cli.console import refused, shown
from flowguard.cli.remote.answers import turned_down
from flowguard.cli.remote.ask import DEFAULT_URL, Url, ask, needs_answer
from flowguard.cli.remote.drain import seconds_of

PATIENCE_S: Final = 15.0
"""Time without any line, also an empty one, after which the broker does not answer, seconds."""
FIRST: Final = ("at_s", "event", "client_id", "packet")


def trace(
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="Client id, or a pattern with * and ?.")
    ],
    payload: Annotated[
        int, typer.Option(min=0, max=4096, help="Bytes of each payload to show.")
    ] = 0,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Time until it ends: 30s, 5m or 1h.")
    ] = "1h",
    count: Annotated[int, typer.Option(min=0, help="Lines until it ends; 0: no limit.")] = 0,
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show packets of clients, and decisions of the broker.

    Ctrl-C ends it.

    Clients that connect later are shown, too. Payloads and values of user properties are shown with
    --payload, passwords never. Lines that come too fast are dropped and counted.
    """
    wanted = {"client": client, "payload": payload, "for_s": max(1, round(seconds_of(duration)))}
    reader = _Reader(count, as_json=as_json)
    with needs_answer("trace"):
        try:
            code, answer = ask(url, f"/trace?{urlencode(wanted)}", None, PATIENCE_S, reader.read)
        except KeyboardInterrupt:
            reader.end()
            return
        if code == 400 and isinstance(answer, dict):
            raise refused(f"flowguard trace: {shown(str(answer.get('error')))}", code=2)
        if code == 404:
            raise refused(
                f"flowguard trace: {url} has no traces: only brokers of this version have"
            )
        if code != 200:
            raise turned_down(url, code, answer)
    reader.end()


class _Reader:
    """Prints lines until there are enough."""

    def __init__(self, count_max: int, *, as_json: bool) -> None:
        self._count_max = count_max
        self._as_json = as_json
        self._lines = 0
        self._dropped = 0

    def read(self, answer: IO[bytes]) -> None:
        """Print the lines of the answer. Raises ValueError for anything else."""
        for data in answer:
            if not data.strip():
                continue
            line = json.loads(data)
            if not isinstance(line, dict) or "event" not in line:
                raise ValueError("a line without an event")
            if line["event"] == "dropped lines":
                self._dropped += int(line["lines"])
            sys.stdout.write(f"{json.dumps(line) if self._as_json else line_text(line)}\n")
            sys.stdout.flush()
            self._lines += 1
            if self._lines == self._count_max:
                return

    def end(self) -> None:
        dropped = f"; {self._dropped:,} more came too fast and were dropped" * bool(self._dropped)
        typer.echo(f"{self._lines:,} lines{dropped}", err=True)


def line_text(line: Mapping[str, Any]) -> str:
    """Return a line for people: `12:00:01.250 car-1 received PUBLISH topic=a/b qos=1`."""
    words = [datetime.fromtimestamp(line.get("at_s", 0)).isoformat("T", "milliseconds")[11:]]
    words += [str(line[key]) for key in ("client_id", "event", "packet") if line.get(key)]
    words += [f"{key}={_text(value)}" for key, value in line.items() if key not in FIRST]
    return shown(" ".join(words))


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)

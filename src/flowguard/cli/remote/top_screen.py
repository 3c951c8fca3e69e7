"""The frame of `flowguard top`, made of the statuses so far; fits 80 x 24 in a storm."""

from collections import deque
from collections.abc import Mapping
from math import log
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from flowguard.lines import count
from flowguard.ops.condition import (
    NO_ROOM,
    NO_STORE,
    condition_of,
    duration,
    outages,
    progress,
)
from flowguard.ops.status import Status, Use

PAST_S: Final = 60.0
WIDTH_MAX: Final = 110
LABEL: Final = 13
NUMBERS: Final = 26
PRESSURE_TOP: Final = 4.0
"""Maximum pressure that bars show; above it the node accepts almost no client."""
CUT_ABOVE: Final = 1.2
GROW_BELOW: Final = 0.8
"""Pressure below which windows grow, so that no signal limits the node."""
BLOCKS: Final = "▁▂▃▄▅▆▇█"
REASONS_SHOWN: Final = 4
READ: Final = (
    *("version", "policy", "now_s", "started_s", "draining", "drain", "why", "dropped", "traffic"),
    *("window.granted", "window.limit", "window.limit_max", "window.closed", "window.shared"),
    *("pressure.value", "pressure.signals", "pressure.cause", "decisions.at_s", "decisions.window"),
    *("gate.in_process", "gate.limit", "gate.buffered", "gate.rung", "gate.refused"),
    *("clients.connected", "clients.paused", "clients.sessions", "unfinished.packets"),
    *("journal.operations", "memory.held_bytes", "memory.limit_bytes", "store.read_only"),
    *("store.kind", "store.away_s", "store.why", "applications.away_s"),
    *("upstreams.away_s", "upstreams.why", "upstreams.each", "shadow"),
)
"""Paths of a status that the screen uses; a broker of another version may lack all others."""


class StatusHistory:
    """Statuses of one broker: the last two for rates, and its windows of the last minute."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now: Status | None = None
        self.before: Status | None = None
        self.windows: deque[tuple[float, float]] = deque()
        """Each window of the last minute with the time from which it was in force, oldest first."""
        self.trouble = ""
        """Reason why the last request was not answered, or ""."""

    def add(self, status: Status) -> None:
        """Add a status; after a restart of the broker, drop the earlier ones."""
        if self.now is not None and self.now["started_s"] != status["started_s"]:
            self.now = None
            self.windows.clear()
        self.before, self.now = self.now, status
        self.trouble = ""
        known_s = self.windows[-1][0] if self.windows else 0.0
        for decision in status["decisions"]:
            if decision["at_s"] > known_s:
                self.windows.append((decision["at_s"], decision["window"]))
        self.windows.append((status["now_s"], status["window"]["granted"]))
        # The first one was in force when the minute began.
        while len(self.windows) > 1 and self.windows[1][0] <= status["now_s"] - PAST_S:
            self.windows.popleft()

    def rate(self, now: int, before: int) -> float | None:
        """Return the growth per second between the last two statuses, or None with only one."""
        if self.now is None or self.before is None:
            return None
        passed_s = self.now["now_s"] - self.before["now_s"]
        return (now - before) / passed_s if passed_s > 0 else None


def frame(history: StatusHistory, width: int) -> RenderableType:
    """Return the whole picture, `width` columns wide at most."""
    status = history.now
    assert status is not None
    width = min(width, WIDTH_MAX) - 1
    _, sentence = condition_of(status)
    return Group(
        _heading(history, status, width), Text(sentence), Text(), *body(history, status, width)
    )


def body(history: StatusHistory, status: Status, width: int) -> list[Text]:
    return [
        *_pressure(status, width),
        _window(history, status, width),
        _why(status),
        *([_line("drain", Text(progress([status]), "yellow"))] if status["drain"] else []),
        *_shadow(status),
        Text(),
        *_admission(status, width),
        Text(),
        *_traffic(history, status),
        *_reasons(history, status),
    ]


def _heading(history: StatusHistory, status: Status, width: int) -> Text:
    text = Text.assemble(
        (" flowguard top ", "bold reverse"),
        f"  {status['version']}, policy {status['policy']}, up {_span(status)}  ",
        (history.url, "dim"),
        no_wrap=True,
    )
    if status["draining"]:
        text.append("  drains", "bold yellow")
    if history.trouble:
        text = Text.assemble((" no answer ", "bold reverse red"), f"  {history.trouble}")
    text.truncate(width)
    return text


def _span(status: Status) -> str:
    seconds = int(status["now_s"] - status["started_s"])
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7_200 else f"{seconds // 3_600} h"


# --- pressure and window -----------------------------------------------------------------------


def _why(status: Status) -> Text:
    text = Text(status["why"] or "nothing decided yet", style="italic")
    troubles = outages(status)
    store = status.get("store", NO_STORE)
    troubles += [each for each in (store["why"], _upstream_why(status)) if each]
    if store["read_only"]:
        troubles.append(NO_ROOM)
    for trouble in reversed(troubles):
        text = Text.assemble((trouble, "red"), "; ", text)
    return _line("why", text)


def _upstream_why(status: Status) -> str:
    return status["upstreams"]["why"] if "upstreams" in status else ""


def _pressure(status: Status, width: int) -> list[Text]:
    """Return a bar per signal, the cause marked; the last cell is PRESSURE_TOP."""
    pressure = status["pressure"]
    cells = max(10, width - LABEL - NUMBERS)
    rows = []
    for signal, value in pressure["signals"].items():
        is_cause = signal == pressure["cause"]
        numbers = Text.assemble((f"{value:6.2f} ", "bold" if is_cause else ""), ("of 1", "dim"))
        if is_cause and value >= GROW_BELOW:
            numbers.append(" ◀ cause", pressure_style(value))
        style = pressure_style(value)
        rows.append(_line(signal, numbers, _bar(value / PRESSURE_TOP, cells, style)))
    return rows


def pressure_style(value: float) -> str:
    if value > CUT_ABOVE:
        return "red"
    return "yellow" if value >= 1 else "green"


def _window(history: StatusHistory, status: Status, width: int) -> Text:
    window = status["window"]
    numbers = Text.assemble(
        (f"{window['granted']:6.3g} ", "bold"), (f"of {window['limit_max']} packets", "dim")
    )
    if window["closed"]:
        numbers.append(" closed", "red")
    elif window["shared"]:
        numbers.append(" turns", "yellow")
    columns = max(10, width - LABEL - NUMBERS - 7)
    line = _sparkline(history, status["now_s"], columns, window["limit_max"])
    return _line("window", numbers, line + Text("  60 s", style="dim"))


def _sparkline(history: StatusHistory, now_s: float, columns: int, top: float) -> Text:
    """Return the smallest window in force in each column of the last minute."""
    step_s = PAST_S / columns
    text = Text(no_wrap=True)
    for column in range(columns):
        begin_s = now_s - PAST_S + column * step_s
        least = _least(history.windows, begin_s, begin_s + step_s)
        if least is None:
            text.append(" ")
            continue
        height = log(max(1.0, least)) / log(max(2.0, top))  # Windows change in the log domain.
        text.append(
            BLOCKS[min(len(BLOCKS) - 1, round(height * (len(BLOCKS) - 1)))],
            "green" if least > top / 2 else "yellow" if least > 5 else "red",
        )
    return text


def _least(windows: deque[tuple[float, float]], begin_s: float, end_s: float) -> float | None:
    """Return the smallest window in force within [begin_s, end_s), or None if unknown."""
    held = None
    values = []
    for at_s, window in windows:
        if at_s >= end_s:
            break
        if at_s <= begin_s:
            held = window
        else:
            values.append(window)
    if held is not None:
        values.append(held)
    return min(values, default=None)


def _shadow(status: Status) -> list[Text]:
    """Return lines with the actions of the shadow policy, if there is one."""
    shadow = status.get("shadow")
    if shadow is None:
        return []
    would = Text.assemble(
        (f"{shadow['window']:6.3g} ", "bold"), (f"by {shadow['policy']}", "dim"),
        f", {shadow['paused']:,}", (" more paused", "dim"),
    )  # fmt: skip
    return [_line("shadow", would)]


# --- what is admitted --------------------------------------------------------------------------


def _admission(status: Status, width: int) -> list[Text]:
    gate, clients, unfinished = status["gate"], status["clients"], status["unfinished"]
    excess = "the excess is closed" if gate["rung"] == "close" else ""
    in_process = Use(used=gate["in_process"], limit=gate["limit"])
    rows = [
        _use_line("CONNECTs", in_process, width, "cyan"),
        _use_line("waiting", gate["buffered"], width, "yellow", excess),
        _use_line("unfinished", unfinished["packets"], width, "cyan"),
    ]
    if "journal" in status:
        rows.append(_use_line("journal", status["journal"]["operations"], width, "cyan"))
    memory = status["memory"]
    if memory is not None:
        used, limit = memory["held_bytes"], memory["limit_bytes"]
        numbers = Text.assemble((f"{_size(used):>9} ", "bold"), (f"of {_size(limit)}", "dim"))
        bar = _bar(used / max(1, limit), max(10, width - LABEL - NUMBERS), "magenta")
        rows.append(_line("memory", numbers, bar))
    text = Text.assemble(
        (f"{clients['connected']:>9,} ", "bold"), ("connected, ", "dim"),
        (f"{clients['paused']:,}", "bold yellow" if clients["paused"] else "bold"),
        (" paused", "dim"),
    )  # fmt: skip
    if "sessions" in clients:
        text.append(f", {count(clients['sessions'], 'session')}", "dim")
    return [_line("clients", text), *rows, *_upstreams(status)]


def _upstreams(status: Status) -> list[Text]:
    """Return a line for each broker behind a proxy."""
    each = status["upstreams"]["each"] if "upstreams" in status else {}
    return [
        _line(
            "" if number else "behind",
            Text.assemble(
                (f"{one['clients']:>9,} ", "bold"),
                ("clients, ", "dim"),
                f"{name} ",
                ("answers" if one["up"] else "does not answer", "green" if one["up"] else "red"),
                (f"; oldest packet {duration(one['oldest_packet_s'])}", "dim"),
            ),
        )
        for number, (name, one) in enumerate(each.items())
    ]


def _use_line(label: str, use: Use, width: int, style: str, remark: str = "") -> Text:
    limit = use["limit"]
    numbers = Text(f"{use['used']:>9,} ", "bold")
    if limit is None:
        return _line(label, numbers + Text(f"  {remark}", style="red") if remark else numbers)
    numbers.append(f"of {limit:,}", "dim")
    cells = max(10, width - LABEL - NUMBERS - len(remark) - 2)
    bar = _bar(use["used"] / max(1, limit), cells, style)
    return _line(label, numbers, bar + Text(f"  {remark}", style="red") if remark else bar)


# --- what flows, and what does not -------------------------------------------------------------


def _traffic(history: StatusHistory, status: Status) -> list[Text]:
    now, before = status["traffic"], None if history.before is None else history.before["traffic"]
    rows = []
    for label, key in (("messages in", "publish_received"), ("messages out", "publish_sent")):
        rate = history.rate(now[key], 0 if before is None else before[key])
        rows.append(_line(label, _counted(now[key], rate)))
    return rows


def _reasons(history: StatusHistory, status: Status) -> list[Text]:
    """Return rejections and drops, the most frequent reasons first."""
    before = history.before
    refused_before = {} if before is None else before["gate"]["refused"]
    dropped_before = {} if before is None else before["dropped"]
    return [
        *_counts(history, "rejected", status["gate"]["refused"], refused_before),
        *_counts(history, "dropped", status["dropped"], dropped_before),
    ]


def _counts(
    history: StatusHistory, label: str, counts: Mapping[str, int], before: Mapping[str, int]
) -> list[Text]:
    rows = []
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    for reason, number in ranked[:REASONS_SHOWN]:
        text = _counted(number, history.rate(number, before.get(reason, 0)))
        rows.append(_line(label, text + Text(f"  {reason}", style="yellow")))
        label = ""
    rest = sum(count for _, count in ranked[REASONS_SHOWN:])
    if rest:
        rows.append(_line("", Text(f"{rest:>9,}  for other reasons", style="dim")))
    return rows or [_line(label, Text(f"{0:>9,}", style="dim"))]


def _counted(count: int, rate: float | None) -> Text:
    per_s = "" if rate is None else f"{rate:,.0f}/s"
    return Text.assemble((f"{count:>9,} ", "bold"), (f"{per_s:>12}", "cyan"))


# --- rows --------------------------------------------------------------------------------------


def _line(label: str, numbers: Text, rest: Text | None = None) -> Text:
    text = Text(f"{label:<{LABEL}}", style="", no_wrap=True)
    text.append_text(numbers)
    if rest is not None:
        text.append(" " * max(1, LABEL + NUMBERS - len(text)))
        text.append_text(rest)
    return text


def _bar(share: float, cells: int, style: str) -> Text:
    filled = round(cells * min(1.0, max(0.0, share)))
    if share > 0 and not filled:
        return Text.assemble(("▏", style), ("░" * (cells - 1), "bright_black"))
    return Text.assemble(("█" * filled, style), ("░" * (cells - filled), "bright_black"))


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"

"""Day: the sections on a live run's day: the timeline, the events, the worst five minutes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import itemgetter
from string import ascii_uppercase
from typing import Any, Final

from spark_analysis.day.course import CONNECT, MESSAGE
from spark_analysis.day.day import Day
from spark_analysis.day.events import CAUSES, Event, Row
from spark_analysis.day.worst import HOW, advice, sufferers, why
from spark_analysis.questions.question import Unit
from spark_analysis.report.document import header, long_table
from spark_analysis.report.drawing import Axis, Chart, axis
from spark_analysis.report.markup import Content, Html, element, table
from spark_analysis.report.words import NONE, clock, count, quantity
from spark_analysis.runs.examination import BROKER, Run

PANEL_PX: Final = 84
MARKS_MAX: Final = len(ascii_uppercase)
"""Events with a letter in the timeline; the longest of them."""
LETTER_SHARE: Final = 0.05
"""Distance of two letters beside each other, as a share of the timeline."""
BROKERS_MAX: Final = 40
"""Brokers with a row of their own."""
_LIMITS: Final = {"connect_limit": "CONNECTs in process", "rung": "overload level"}
_LINES: Final = {"window": 0, "connect_limit": 1}
"""Decisions that are points in the timeline, with their colours."""
_TICKS_S: Final = (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400)
_CAUSE_COLOURS: Final = {cause: number for number, cause in enumerate(CAUSES)}


def heading(day: Day, runs: Sequence[Run]) -> Html:
    """When, where, which version, and which settings differ from the defaults."""
    first, last = (datetime.fromtimestamp(at, UTC) for at in (day.from_s, day.until_s))
    until = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M}"
    live = [run for run in runs if run.run["source"] == BROKER]
    hosts = sorted({run.run["host"] for run in live if run.run["host"]})
    versions = sorted({life.version for life in day.lives})
    facts = [
        (f"{first:%Y-%m-%d %H:%M} to {until}", "UTC" + ("; the worst day" if day.is_part else "")),
        (", ".join(hosts) or NONE, "machine" if len(hosts) < 2 else "machines"),
        (count(len(day.brokers), "broker"), ", ".join(day.brokers[:4])),
        (", ".join(versions), "flowguard"),
    ]
    return header("What happened", facts, _settings(day))


def _settings(day: Day) -> Html:
    """Settings that differ from the defaults; with all values that they had, in order of time."""
    found = {
        key: list(dict.fromkeys(life.settings.get(key, "default") for life in day.lives))
        for key in sorted({key for life in day.lives for key in life.settings})
    }
    if not found:
        return element("p", "All settings were the defaults.", class_="how")
    changed_first = sorted(found.items(), key=lambda pair: -len(pair[1]))
    rows = [(key, ", then ".join(values)) for key, values in changed_first]
    return long_table(("not the default", "value"), rows)


def sections(day: Day) -> list[Content]:
    """The day, its events, the worst five minutes, what to do, and brokers side by side."""
    rows = day.rows()
    events = sorted(day.events, key=lambda event: event.from_s - event.until_s)[:MARKS_MAX]
    marked = [event for event in day.events if event in events]
    found: list[Content] = [_timeline(day, rows, marked), *_worst(day, rows)]
    if len(day.brokers) > 1:
        found.append(_side_by_side(day))
    return found


# --- the timeline ----------------------------------------------------------------------------


def _timeline(day: Day, rows: Sequence[Row], marked: Sequence[Event]) -> Html:
    how = (
        f"Times are UTC, in steps of {quantity(float(day.step_s), Unit.SECONDS)}. Rates are sums "
        "of all brokers; everything else is the highest value of a step, but limits are the "
        "lowest. Letters and shades are the events below."
    )
    listed = [
        (ascii_uppercase[number], _when(event), event.words, event.detail or NONE)
        for number, event in enumerate(marked)
    ]
    quiet = "There was no stop, no crowd and no overload, and nothing was rejected."
    hidden = len(day.events) - len(marked)
    note = f"{count(hidden, 'shorter event')} not listed."
    charts = [_letters(day, marked), *_panels(day, rows, marked)]
    return element(
        "section",
        element("h2", "The day"),
        element("p", how, class_="how"),
        element("figure", *charts, Chart(_across(day), height_px=1).html(), class_="timeline"),
        element("h2", "Events"),
        table(("", "when", "what", "how much"), listed)
        if listed
        else element("p", quiet, class_="none"),
        *([element("p", note, class_="note")] if hidden else []),
        id="day",
    )


def _when(event: Event) -> str:
    length = quantity(float(event.until_s - event.from_s), Unit.SECONDS)
    return f"{clock(event.from_s)}, {length}"


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of the timeline: its lines, by their words."""

    title: str
    unit: Unit
    lines: Mapping[str, Callable[[Row], float | None]]
    level: float | None = None
    is_log: bool = False
    decisions: Sequence[Row] = ()


def _panels(day: Day, rows: Sequence[Row], marked: Sequence[Event]) -> Iterator[Html]:
    def rate(name: str) -> Callable[[Row], float]:
        return lambda row: (row[name] or 0) / day.step_s

    value = itemgetter
    count, per_s, seconds = Unit.COUNT, Unit.PER_SECOND, Unit.SECONDS
    connects = {"came": rate("attempts_count"), "admitted": rate("accepted_count")}
    limits = {"window of each client, packets": value("window")}
    limits |= {"CONNECTs in process": value("connect_limit")}
    if any(row["shadow_window"] is not None for row in rows):
        limits["window of --shadow"] = value("shadow_window")
    messages = {"received": rate("published_count"), "sent": rate("delivered_count")}
    waits = {"CONNACK": value("connect_p99_s"), "PUBACK": value("acknowledgement_p99_s")}
    pressure = "Pressure, overload above 1, recorded up to 16"
    wait = "Waits of clients, one in 100 is longer, measured up to 32 s"
    write = "Durable writes, one in 10 takes longer"
    panels = (
        Panel("Clients", count, {"connected": value("connected_count")}),
        Panel("CONNECTs", per_s, connects),
        Panel("CONNECTs rejected", per_s, _by_reason(day, CONNECT)),
        Panel("Messages dropped", per_s, _by_reason(day, MESSAGE)),
        Panel(pressure, Unit.RATIO, {"worst signal": value("pressure_ratio")}, level=1.0),
        _causes(day, rows),
        Panel("Limits; points are large decisions", count, limits, None, True, day.marks),
        Panel("Memory", Unit.SHARE, {"of its limit": value("memory_ratio")}, level=1.0),
        Panel(write, seconds, {"store": value("commit_s")}, is_log=True),
        Panel("Messages", per_s, messages),
        Panel(wait, seconds, waits, is_log=True),
    )
    for panel in panels:
        if isinstance(panel, Panel) and panel.lines:
            yield _drawn(panel, day, rows, marked)
        elif isinstance(panel, str):
            yield panel


def _across(day: Day) -> Axis:
    span_s = day.until_s - day.from_s
    every_s = next((each for each in _TICKS_S if span_s / each <= 8), 86_400)
    first = -(-day.from_s // every_s) * every_s
    marks = tuple(float(at) for at in range(first, day.until_s + 1, every_s))
    return Axis(day.from_s, day.until_s, partial(clock, has_seconds=every_s < 60), marks=marks)


def _strip(name: Sequence[Content], chart: Chart) -> Html:
    """A chart over the whole day, without an axis of its own, below its name."""
    above = [element("p", *name, class_="name")] if name else []
    return element("div", *above, chart.html(has_ticks=False), class_="panel")


def _names(title: str, words: Iterable[tuple[int, str]]) -> list[Content]:
    """A title, and the words of each line in its colour."""
    names = [(" ", element("b", word, class_=f"t{colour}")) for colour, word in words]
    return [f"{title}:", *chain.from_iterable(names)]


def _letters(day: Day, marked: Sequence[Event]) -> Html:
    """The letter of each event, those that are close one below the other."""
    across = _across(day)
    ends: list[float] = []
    placed = []
    for event in marked:
        at = across.place((event.from_s + event.until_s) / 2)
        row = next((row for row, end in enumerate(ends) if at - end > LETTER_SHARE), len(ends))
        ends[row : row + 1] = [at]
        placed.append(row)
    chart = Chart(across, height_px=4 + 15 * max(len(ends), 1))
    for letter, event, row in zip(ascii_uppercase, marked, placed, strict=False):
        chart.text((event.from_s + event.until_s) / 2, 14 + 15 * row, letter, "letter")
    return _strip((), chart)


def _drawn(panel: Panel, day: Day, rows: Sequence[Row], marked: Sequence[Event]) -> Html:
    lines = [_points(day, rows, value) for value in panel.lines.values()]
    decided = [row for row in panel.decisions if row["kind"] in _LINES]
    values = [y for points in lines for _, y in points if y is not None]
    values += [row["after"] for row in decided]
    up = axis(
        [*values, *([] if panel.is_log else [0.0])],
        lambda value: quantity(value, panel.unit),
        is_log=panel.is_log,
    )
    is_share = panel.unit is Unit.SHARE
    if panel.level is not None and max(values, default=0.0) < panel.level and is_share:
        up = Axis(0.0, 1.05 * panel.level, up.label)
    chart = Chart(_across(day), up, height_px=PANEL_PX)
    for letter, event in zip(ascii_uppercase, marked, strict=False):
        title = f"{letter}: {event.words}, {_when(event)}"
        chart.band(event.from_s, event.until_s, f"mark {event.kind}", title)
    if panel.level is not None:
        chart.level(panel.level, "limit")
    for colour, points in enumerate(lines):
        chart.line(points, colour)
    for row in decided:
        change = f"{clock(row['unix_s'])}: {_change(row)}; {_reason(row)}"
        chart.dot(row["unix_s"], row["after"], f"f{_LINES[row['kind']]}", title=change, size=3)
    return _strip(_names(panel.title, enumerate(panel.lines)), chart)


def _points(
    day: Day, rows: Sequence[Row], value: Callable[[Row], float | None]
) -> list[tuple[float, float | None]]:
    """A value per step, in the middle of it, or None if no broker recorded it."""
    found: list[tuple[float, float | None]] = []
    after = None
    for row in rows:
        if after is not None and row["at_s"] > after:
            found.append((after, None))
        found.append((row["at_s"] + day.step_s / 2, value(row)))
        after = row["at_s"] + day.step_s
    return found


def _by_reason(day: Day, kind: str) -> dict[str, Callable[[Row], float]]:
    """A line for each of the most frequent reasons; none if there was no such loss."""
    by_step: dict[str, Counter[int]] = defaultdict(Counter)
    for row in day.reasons.to_pylist():
        if row["kind"] == kind:
            by_step[row["reason"]][row["at_s"]] += row["count"]

    def rate(counts: Counter[int]) -> Callable[[Row], float]:
        return lambda row: counts[row["at_s"]] / day.step_s

    most = sorted(by_step, key=lambda reason: -by_step[reason].total())[:4]
    return {reason.replace("_", " "): rate(by_step[reason]) for reason in most}


def _causes(day: Day, rows: Sequence[Row]) -> Html | None:
    """A strip with the cause of each step in overload."""
    loaded = [row for row in rows if row["pressure_ratio"] > 1 and row["cause"] in _CAUSE_COLOURS]
    if not loaded:
        return None
    chart = Chart(_across(day), height_px=12)
    for row in loaded:
        words = f"{clock(row['at_s'])}: {row['cause']}"
        chart.band(row["at_s"], row["at_s"] + day.step_s, f"f{_CAUSE_COLOURS[row['cause']]}", words)
    found = {row["cause"] for row in loaded}
    causes = [(colour, cause) for cause, colour in _CAUSE_COLOURS.items() if cause in found]
    return _strip(_names("Cause of the overload", causes), chart)


# --- the worst five minutes ------------------------------------------------------------------


def _worst(day: Day, rows: Sequence[Row]) -> Iterator[Html]:
    found = day.worst
    if found is None:
        words = "No CONNECT was rejected, no message dropped, and no broker was overloaded or down."
        yield element(
            "section", element("h2", "The worst five minutes"), element("p", words), id="worst"
        )
        return
    title = f"The worst five minutes: {clock(found.from_s)} to {clock(found.until_s)}"
    trouble = f"{quantity(found.trouble_s, Unit.SECONDS)} of trouble."
    contents: list[Content] = [element("p", f"{trouble} {HOW}", class_="how")]
    for words, sentences in (
        ("Which clients suffered?", sufferers(found, rows)),
        ("Why?", why(found)),
    ):
        contents += [element("h3", words), _list(sentences)]
    if day.decisions:
        contents += [element("h3", "Which limits changed most?"), _decisions(day)]
    yield element("section", element("h2", title), *contents, id="worst")
    sentences = advice(found, day.events, day.step_s)
    yield element("section", element("h2", "What to do"), _list(sentences), id="advice")


def _decisions(day: Day) -> Html:
    several = len(day.brokers) > 1
    rows: list[Any] = [
        (
            clock(row["unix_s"]) + (f" {row['broker']}" if several else ""),
            _LIMITS.get(row["kind"], row["kind"]),
            _change(row),
            _reason(row),
        )
        for row in day.decisions
    ]
    return table(("when", "limit", "change", "why"), rows)


def _change(decision: Row) -> str:
    return f"{decision['before']:.4g} to {decision['after']:.4g}"


def _reason(decision: Row) -> str:
    is_cut = decision["after"] < decision["before"]
    return str(decision["why"]) if is_cut else "below its objective"


def _list(sentences: Sequence[str]) -> Html:
    return element("ul", *(element("li", sentence) for sentence in sentences))


# --- several brokers -------------------------------------------------------------------------


def _side_by_side(day: Day) -> Html:
    """A row per broker: a strip of its pressure over the day, and its figures."""
    strips: list[Html] = []
    rows = []
    for broker in day.brokers[:BROKERS_MAX]:
        own = day.rows(broker)
        chart = Chart(_across(day), height_px=14)
        for row in own:
            share = min(row["pressure_ratio"], 2.0) / 2.0
            words = f"{clock(row['at_s'])}: pressure {row['pressure_ratio']:.2f}"
            if share > 0.25:
                chart.band(row["at_s"], row["at_s"] + day.step_s, f"heat{round(4 * share)}", words)
        strips.append(_strip([broker], chart))
        rows.append(_figures(broker, own, day))
    head = (
        "broker",
        "clients at most",
        "CONNECTs",
        "rejected",
        "in overload",
        "messages",
        "dropped",
        "memory at most",
        "PUBACK, 99 %, worst step",
    )
    how = "Pressure of each broker: the darker, the nearer to 2 times its objective."
    return element(
        "section",
        element("h2", "Brokers side by side"),
        element("p", how, class_="how"),
        element("figure", *strips, Chart(_across(day), height_px=1).html(), class_="timeline"),
        table(head, rows),
        id="brokers",
    )


def _figures(broker: str, own: Sequence[Row], day: Day) -> Sequence[str]:
    def total(*names: str) -> int:
        return sum(row[name] or 0 for row in own for name in names)

    def most(name: str) -> float | None:
        return max((row[name] for row in own if row[name] is not None), default=None)

    waits = most("acknowledgement_p99_s")
    memory = most("memory_bytes")
    overload_s = sum(row["overload_ratio"] for row in own) * day.step_s
    return (
        broker,
        f"{most('connected_count') or 0:,}",
        f"{total('attempts_count'):,}",
        f"{total('refused_count', 'discarded_count', 'closed_count'):,}",
        quantity(overload_s, Unit.SECONDS),
        f"{total('published_count'):,}",
        f"{total('dropped_count'):,}",
        NONE if memory is None else quantity(memory, Unit.BYTES),
        NONE if waits is None else quantity(waits, Unit.SECONDS),
    )

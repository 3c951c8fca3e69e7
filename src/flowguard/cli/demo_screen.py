"""The screen of the demo: one live screen that fits 80 x 24, or a line per second without
terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import log

from rich.console import Group, RenderableType
from rich.text import Text

from flowguard.cli.demo_broker import CONNECT_BUFFER, CONNECTS_IN_PROCESS, Sample
from flowguard.flow import Signal

LABELS = 21
"""Columns of the labels and numbers, left of the strips."""
WIDTH_MAX = 100
TIMELINE_S = 30.0
"""Time that a strip shows at first; a demo that takes longer is squeezed."""
MARK_S = 5
WINDOW_ROWS = 5
WINDOW_TOP = 100
PRESSURE_TOP = 4.0
LATELY = 20
"""Number of the latest samples that are sure to reach a second back."""
BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"

CAUSES = {
    Signal.QUEUE: "work waits too long for the store (signal: queue)",
    Signal.STORE: "the store takes too long to commit (signal: store)",
    Signal.LOOP: "a turn of the event loop takes too long (signal: loop)",
    Signal.MEMORY: "memory is nearly used up (signal: memory)",
}


class Act(Enum):
    """The demo's three acts, by name."""

    CALM = "1 calm"
    CROWD = "2 flash crowd"
    RECOVERY = "3 recovery"


@dataclass(slots=True)
class History:
    """All samples so far, and when the events that captions mention were seen in them."""

    publishers: int
    clients: int
    """All clients: the publishers, their subscribers, and the crowd."""
    window_max: int
    samples: list[Sample] = field(default_factory=list)
    came_s: float | None = None
    """When the broker received the first CONNECT of the crowd."""
    in_s: float | None = None
    """When every client was connected."""
    open_s: float | None = None
    """When, after that, all windows were open again."""
    _arrived_before: int = 0

    def begin(self, sample: Sample) -> None:
        """Take the first sample that is shown; clients that arrive after it are the crowd."""
        self.samples.clear()
        self.came_s = self.in_s = self.open_s = None
        self._arrived_before = sample.arrived
        self.add(sample)

    def add(self, sample: Sample) -> None:
        """Add a sample, and note what it shows for the first time."""
        self.samples.append(sample)
        if self.came_s is None and sample.arrived > self._arrived_before:
            self.came_s = sample.at_s
        if self.in_s is None and sample.connected >= self.clients:
            self.in_s = sample.at_s
        if self.in_s is not None and self.open_s is None and self.is_open:
            self.open_s = sample.at_s

    @property
    def last(self) -> Sample:
        return self.samples[-1]

    @property
    def is_open(self) -> bool:
        """Whether every client has its full window."""
        return self.last.window == self.window_max

    @property
    def act(self) -> Act:
        if self.came_s is None:
            return Act.CALM
        return Act.CROWD if self.in_s is None else Act.RECOVERY


def caption(history: History) -> str:
    """Two lines on what has been seen so far, of 79 columns at most."""
    match history.act:
        case Act.CALM:
            return _calm(history)
        case Act.CROWD:
            return _crowd(history)
        case Act.RECOVERY:
            return _recovery(history)


def _calm(history: History) -> str:
    now = history.last
    first = f"{history.publishers} publishers write to a store that is slow on purpose"
    packets = "1 packet" if now.window == 1 else f"{now.window} packets"
    if history.is_open:
        return f"{first}, but keeps up:\nevery client has the full window, {packets} in process."
    return f"{first}, and busy:\nevery client has a window of {packets} in process just now."


def _crowd(history: History) -> str:
    now = history.last
    doing = [f"{now.in_process} CONNECTs are in process"]
    if now.buffered:
        doing.append(f"{now.buffered} wait")
    if now.refused:
        doing.append("others are told to come back")
    least = min(sample.window for sample in history.samples)
    first = "A crowd has come, all at once."
    if least < history.window_max:
        first += f" Windows went down to {least} with the load."
    return f"{first}\n{', '.join(doing)}."


def _recovery(history: History) -> str:
    assert history.came_s is not None
    assert history.in_s is not None
    now, top = history.last, history.window_max
    first = f"Everybody is in, {history.in_s - history.came_s:.0f} s after the first of the crowd."
    if history.is_open:
        assert history.open_s is not None
        took_s = history.open_s - history.in_s
        return f"{first}\nWindows are back at {top}, {took_s:.0f} s later: slowly, on purpose."
    if now.pressure >= 1:
        return f"{first}\nThere is pressure still: windows are at {now.window}."
    return f"{first}\nThe pressure is gone: windows grow back to {top}, slowly on purpose."


def line(history: History) -> str:
    """One line for logs."""
    now = history.last
    cause = f" {now.cause}" if now.cause and now.pressure >= 1 else ""
    return (
        f"{now.at_s:5.1f} s  {history.act.value:<14}window {now.window:>3}"
        f"  pressure {now.pressure:4.1f}{cause}"
        f"  connects {now.in_process}+{now.buffered}  refused {now.refused}"
        f"  connected {now.connected}  publish/s {_lately(history, _published):.0f}"
        f"  paused {now.paused}"
    )


def screen(history: History, width: int) -> RenderableType:
    """The whole picture, `width` columns wide at most."""
    width = min(width, WIDTH_MAX) - 1
    strip = width - LABELS
    now = history.last
    heading = Text.assemble(
        (" flowguard demo ", "bold reverse"), (f"  {history.act.value}", "bold")
    )
    heading.append(" " * max(1, width - len(heading) - 7))
    heading.append(f"{now.at_s:5.1f} s", "dim")
    pressures = _columns(history, strip, lambda part: max(s.pressure for s in part[1:] or part))
    published = _columns(history, strip, lambda part: _rate(part, _published))
    refused = _columns(history, strip, lambda part: _rate(part, _refused))
    return Group(
        heading,
        Text(caption(history), style="italic"),
        Text(),
        *_window(history, strip),
        _strip("pressure", f"{now.pressure:.1f}", pressures, PRESSURE_TOP, _pressure_colour),
        _strip("PUBLISH /s", f"{_lately(history, _published):,.0f}", published),
        _strip("137 /s", f"{_lately(history, _refused):,.0f}", refused, colour=_yellow),
        _axis(history, strip),
        Text(),
        _bar("CONNECTs in process", now.in_process, CONNECTS_IN_PROCESS, width, "cyan"),
        _bar("CONNECTs waiting", now.buffered, CONNECT_BUFFER, width, "yellow"),
        _bar("clients connected", now.connected, history.clients, width, "green"),
        _bar("publishers paused", min(now.paused, history.publishers), history.publishers, width),
        Text.assemble(
            "told to come back  ", (f"{now.refused:>6,}", "bold"), (" times (CONNACK 137)", "dim")
        ),
        _load(now),
    )


def _load(now: Sample) -> Text:
    if now.cause is None or now.pressure < 1:
        return Text.assemble("load               ", ("all signals below their objectives", "green"))
    return Text.assemble("load               ", (CAUSES[now.cause], "magenta"))


# --- strips: the past, left to right -----------------------------------------------------------


def _step_s(history: History, width: int) -> float:
    """The time that a column stands for."""
    return max(TIMELINE_S, history.last.at_s) / width


def _columns(
    history: History, width: int, read: Callable[[Sequence[Sample]], float]
) -> list[float]:
    """`read` applied to the samples of each column; a column without any repeats the one before.

    `read` gets one sample before the column's own as well, so that it can compute a rate.
    """
    step_s = _step_s(history, width)
    columns: list[float] = []
    start = 0
    samples = history.samples
    for column in range(min(width, int(history.last.at_s / step_s) + 1)):
        end = start
        while end < len(samples) and samples[end].at_s < (column + 1) * step_s:
            end += 1
        if end > start:
            columns.append(read(samples[max(0, start - 1) : end]))
        else:
            columns.append(columns[-1] if columns else 0.0)
        start = end
    return columns


def _window(history: History, width: int) -> list[Text]:
    """The least window of each column, in the log domain, where the controller works."""
    columns = _columns(history, width, lambda part: min(s.window for s in part[1:] or part))
    now = history.last.window
    marks = ("100", "", "10", "", "1")
    words = (
        ("window", "bold"),
        (f"{now}", f"bold {_window_colour(now)}"),
        ("packets at once", "dim"),
        ("per client", "dim"),
        ("", ""),
    )
    rows = []
    for row, (word, mark) in enumerate(zip(words, marks, strict=True)):
        text = Text.assemble(word, no_wrap=True)
        text.append(f"{mark:>{LABELS - 1 - len(text)}} ", "dim")
        below = (WINDOW_ROWS - 1 - row) * 8
        for value in columns:
            height = 1 + (WINDOW_ROWS * 8 - 1) * log(value) / log(WINDOW_TOP)
            text.append(BLOCKS[max(0, min(8, round(height) - below))], _window_colour(value))
        rows.append(text)
    return rows


def _window_colour(window: float) -> str:
    if window > 50:
        return "green"
    return "yellow" if window > 5 else "red"


def _pressure_colour(pressure: float) -> str:
    return "magenta" if pressure > 1 else "green"


def _cyan(_: float) -> str:
    return "cyan"


def _yellow(_: float) -> str:
    return "yellow"


def _strip(
    label: str,
    value: str,
    columns: Sequence[float],
    top: float | None = None,
    colour: Callable[[float], str] = _cyan,
) -> Text:
    """One row of blocks; `top` is the value of a full block, by default the largest value."""
    text = Text.assemble(f"{label:<{LABELS - 9}}", (f"{value:>8} ", "bold"), no_wrap=True)
    top = top or max(1.0, *columns)
    for column in columns:
        level = max(1, min(8, round(column / top * 8))) if column > 0 else 0
        text.append(BLOCKS[level], colour(column))
    return text


def _axis(history: History, width: int) -> Text:
    """Seconds, under the strips."""
    step_s = _step_s(history, width)
    marks = ""
    for second in range(0, int(step_s * width) + 1, MARK_S):
        mark = f"{second} s" if second == 0 else f"{second}"
        at = int(second / step_s)
        if len(marks) <= at <= width - len(mark):
            marks = f"{marks:<{at}}{mark}"
    return Text(" " * LABELS + marks, style="dim", no_wrap=True)


def _lately(history: History, read: Callable[[Sample], int]) -> float:
    """How fast a count has grown in the last second."""
    recent = [s for s in history.samples[-LATELY:] if s.at_s >= history.last.at_s - 1]
    return _rate(recent, read)


def _rate(part: Sequence[Sample], read: Callable[[Sample], int]) -> float:
    passed_s = part[-1].at_s - part[0].at_s
    return (read(part[-1]) - read(part[0])) / passed_s if passed_s > 0 else 0.0


def _published(sample: Sample) -> int:
    return sample.published


def _refused(sample: Sample) -> int:
    return sample.refused


# --- bars: now ---------------------------------------------------------------------------------


def _bar(label: str, value: int, whole: int, width: int, style: str = "red") -> Text:
    text = Text.assemble(
        f"{label:<19}", (f"{value:>6,}", "bold"), (f" of {whole:<6,}", "dim"), no_wrap=True
    )
    cells = max(10, width - len(text))
    full, rest = divmod(min(cells * 8, round(cells * 8 * value / max(1, whole))), 8)
    filled = "█" * full + (EIGHTHS[rest] if rest else "")
    text.append(filled, style)
    text.append("░" * (cells - len(filled)), "bright_black")
    return text

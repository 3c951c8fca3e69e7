"""The screen of the demo: one live screen that fits 80 x 24, or a line per second without
terminal."""

from dataclasses import dataclass, field
from enum import Enum

from rich.console import Group, RenderableType
from rich.text import Text

from flowguard.cli.remote import top_screen
from loadgen.demo.broker import DemoSample

LATELY = 20
"""Samples that are sure to reach a second back."""


class Act(Enum):
    CALM = "1 calm"
    CROWD = "2 flash crowd"
    RECOVERY = "3 recovery"


@dataclass(slots=True)
class DemoHistory:
    """All samples so far, and when the events that captions mention were seen in them."""

    publishers: int
    clients: int
    """All clients: the publishers, their subscribers, and the crowd."""
    window_max: int
    samples: list[DemoSample] = field(default_factory=list)
    came_s: float | None = None
    """When the broker received the first CONNECT of the crowd."""
    in_s: float | None = None
    """When every client was connected."""
    open_s: float | None = None
    """When, after that, all windows were open again."""
    _arrived_before: int = 0

    def begin(self, sample: DemoSample) -> None:
        """Take the first sample that is shown; clients that arrive after it are the crowd."""
        self.samples.clear()
        self.came_s = self.in_s = self.open_s = None
        self._arrived_before = sample.arrived
        self.add(sample)

    def add(self, sample: DemoSample) -> None:
        """Add a sample, and note what it shows for the first time."""
        self.samples.append(sample)
        if self.came_s is None and sample.arrived > self._arrived_before:
            self.came_s = sample.at_s
        if self.in_s is None and sample.connected >= self.clients:
            self.in_s = sample.at_s
        if self.in_s is not None and self.open_s is None and self.is_open:
            self.open_s = sample.at_s

    @property
    def last(self) -> DemoSample:
        return self.samples[-1]

    @property
    def is_open(self) -> bool:
        return self.last.window == self.window_max

    @property
    def act(self) -> Act:
        if self.came_s is None:
            return Act.CALM
        return Act.CROWD if self.in_s is None else Act.RECOVERY


def caption(history: DemoHistory) -> str:
    """Two lines on what has been seen so far, of 79 columns at most."""
    match history.act:
        case Act.CALM:
            return _calm(history)
        case Act.CROWD:
            return _crowd(history)
        case Act.RECOVERY:
            return _recovery(history)


def _calm(history: DemoHistory) -> str:
    now = history.last
    first = f"{history.publishers} publishers write to a store that is slow on purpose"
    packets = "1 packet" if now.window == 1 else f"{now.window} packets"
    if history.is_open:
        return f"{first}, but keeps up:\nevery client has the full window, {packets} in process."
    return f"{first}, and busy:\nevery client has a window of {packets} in process just now."


def _crowd(history: DemoHistory) -> str:
    now = history.last
    doing = [f"{now.in_process} CONNECTs are in process"]
    if now.buffered:
        doing.append(f"{now.buffered} wait")
    if now.refused:
        doing.append("others are rejected with a time to retry")
    least = min(sample.window for sample in history.samples)
    first = "A crowd has come, all at once."
    if least < history.window_max:
        first += f" Windows went down to {least} with the load."
    return f"{first}\n{', '.join(doing)}."


def _recovery(history: DemoHistory) -> str:
    assert history.came_s is not None
    assert history.in_s is not None
    now, top = history.last, history.window_max
    first = (
        f"All clients are in, {history.in_s - history.came_s:.0f} s after the first of the crowd."
    )
    if history.is_open:
        assert history.open_s is not None
        took_s = history.open_s - history.in_s
        return f"{first}\nWindows are back at {top}, {took_s:.0f} s later: slowly, on purpose."
    if now.pressure >= 1:
        return f"{first}\nThe node is still under pressure: windows are at {now.window}."
    return f"{first}\nThe load has fallen: windows grow back to {top}, slowly on purpose."


def line(history: DemoHistory) -> str:
    now = history.last
    cause = f" {now.cause}" if now.cause and now.pressure >= 1 else ""
    return (
        f"{now.at_s:5.1f} s  {history.act.value:<14}window {now.window:>3}"
        f"  pressure {now.pressure:4.1f}{cause}"
        f"  connects {now.in_process}+{now.buffered}  refused {now.refused}"
        f"  connected {now.connected}  publish/s {_lately(history):.0f}"
        f"  paused {now.paused}"
    )


def screen(history: DemoHistory, top: top_screen.StatusHistory, width: int) -> RenderableType:
    """The act, its caption and what `flowguard top` shows, `width` columns wide at most."""
    width = min(width, top_screen.WIDTH_MAX) - 1
    heading = Text.assemble(
        (" flowguard demo ", "bold reverse"), (f"  {history.act.value}", "bold")
    )
    heading.append(" " * max(1, width - len(heading) - 7))
    heading.append(f"{history.last.at_s:5.1f} s", "dim")
    parts = [heading, Text(caption(history), style="italic"), Text()]
    if top.now is not None:
        parts += top_screen.body(top, top.now, width)
    return Group(*parts)


def _lately(history: DemoHistory) -> float:
    """PUBLISH packets per second in the last second."""
    recent = [s for s in history.samples[-LATELY:] if s.at_s >= history.last.at_s - 1]
    passed_s = recent[-1].at_s - recent[0].at_s
    return (recent[-1].published - recent[0].published) / passed_s if passed_s > 0 else 0.0

"""The scoreboard: reports of the kit as one HTML page, without scripts and without the network.

Columns become cards if the page is narrow. Colours follow the reader's choice of light or dark, and
every verdict is a word and a sign besides its colour.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from flowguard.lines import count
from loadgen.kit import EXPERIMENTS, Experiment, Finding, KitReport, Survival

SIGNS = {
    Survival.SURVIVED: "✓",
    Survival.STRUGGLED: "~",
    Survival.FAILED: "✗",
    Survival.UNCLEAR: "?",
}
MEANINGS = {
    Survival.SURVIVED: "all clients were served",
    Survival.STRUGGLED: "all clients were served in the end, after resets, time-outs or long waits",
    Survival.FAILED: "clients were not served, or acknowledged messages were lost",
    Survival.UNCLEAR: "no verdict about the broker, for the reason beside it",
}
TEMPLATE = "kit_page.html"


def page(reports: Sequence[KitReport]) -> str:
    """Return a whole HTML document."""
    template = Template(Path(__file__).with_name(TEMPLATE).read_text())
    run = [e for e in EXPERIMENTS if any(report.found(e.key) for report in reports)]
    names = ", ".join(report.name for report in reports)
    return template.substitute(
        title=escape(f"Who survives a crowd: {names}"),
        legend="".join(_legend(verdict) for verdict in Survival),
        overview=_overview(reports, run),
        sections="".join(_section(experiment, reports) for experiment in run),
        brokers="".join(_broker(report) for report in reports),
    )


def _legend(verdict: Survival) -> str:
    return f"<li>{_badge(verdict)} {MEANINGS[verdict]}</li>"


def _badge(verdict: Survival) -> str:
    sign = f'<span aria-hidden="true">{SIGNS[verdict]}</span>'
    return f'<span class="badge {verdict}">{sign} {verdict}</span>'


# Roles are stated, because a table that is laid out as cards would lose them otherwise.


def _table(caption: str, heads: Sequence[str], rows: Iterable[str]) -> str:
    columns = "".join(f'<th role="columnheader" scope="col">{head}</th>' for head in heads)
    return (
        f'<table role="table"><caption>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{columns}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    )


def _row(name: str, cells: dict[str, str]) -> str:
    """Return the row of a broker, with its cells by their columns' names."""
    rest = "".join(
        f'<td role="cell" data-label="{escape(label)}">{content}</td>'
        for label, content in cells.items()
    )
    return f'<tr role="row"><th role="rowheader" scope="row">{escape(name)}</th>{rest}</tr>'


def _figure(finding: Finding) -> str:
    return f'<span class="figure">{escape(str(finding.figure))}</span>'


def _overview(reports: Sequence[KitReport], experiments: Sequence[Experiment]) -> str:
    def cell(finding: Finding | None) -> str:
        if finding is None:
            return "not run"
        return f"{_badge(finding.verdict)} {_figure(finding)}"

    heads = [f'<a href="#{e.key}">{escape(e.title)}</a>' for e in experiments]
    rows = [_row(r.name, {e.title: cell(r.found(e.key)) for e in experiments}) for r in reports]
    return _table("Verdict and figure of each experiment", ["Broker", *heads], rows)


def _section(experiment: Experiment, reports: Sequence[KitReport]) -> str:
    found = [(r.name, f) for r in reports if (f := r.found(experiment.key)) is not None]
    most = max((f.figure.value for _, f in found if f.figure.value is not None), default=0.0)
    has_memory = any(finding.memory is not None for _, finding in found)
    rows = [(name, _cells(finding, most, has_memory=has_memory)) for name, finding in found]
    heads = ["Broker", *map(escape, rows[0][1])]
    caption = f"{experiment.title}: {experiment.figure}; shorter bars are better"
    return (
        f'<section aria-labelledby="{experiment.key}">'
        f'<h2 id="{experiment.key}">{escape(experiment.title)}</h2>'
        f"<p>{escape(experiment.question)}</p>"
        f"{_table(caption, heads, [_row(name, cells) for name, cells in rows])}</section>"
    )


def _cells(finding: Finding, most: float, *, has_memory: bool) -> dict[str, str]:
    value, memory = finding.figure.value, finding.memory
    share = 0.0 if value is None or not most else 100 * value / most
    bar = f'<span class="bar {finding.verdict}" style="width:{share:.1f}%" aria-hidden="true">'
    cells = {
        "Verdict": _badge(finding.verdict),
        finding.figure.name: f"{_figure(finding)}{bar}</span>",
    }
    if has_memory:
        seen = "not seen"
        if memory is not None:
            seen = f"{memory.growth_mib:+,.0f} MiB, to {memory.peak_mib:,.0f} MiB"
        cells["Memory"] = seen
    return {**cells, "What clients saw": escape(finding.sentence)}


def _broker(report: KitReport) -> str:
    spoken = f"MQTT {report.version}" if report.version else "no answer to any client"
    return (
        f"<li><strong>{escape(report.name)}</strong>: {spoken}, {count(report.clients, 'client')}, "
        f"{escape(report.made_at)}, by {escape(report.made_by)}</li>"
    )

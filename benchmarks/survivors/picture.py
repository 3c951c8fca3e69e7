"""The scoreboard as an SVG for pages: a row for each broker, a field for each experiment."""

from collections.abc import Sequence
from html import escape

from loadgen.kit import EXPERIMENTS, KitReport, Survival

COLOURS = {
    Survival.SURVIVED: "#116329",
    Survival.STRUGGLED: "#7d4e00",
    Survival.FAILED: "#a40e26",
    Survival.UNCLEAR: "#6639ba",
}
LEFT, FIELD, ROW, TOP = 190, 118, 40, 44


def svg(reports: Sequence[KitReport]) -> str:
    """One picture, legible without its colours."""
    width, height = LEFT + FIELD * len(EXPERIMENTS), TOP + ROW * len(reports)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12" role="img" '
        'aria-label="Verdict and figure of each experiment, by broker">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, experiment in enumerate(EXPERIMENTS):
        x = LEFT + FIELD * number + 4
        parts.append(f'<text x="{x}" y="18" font-weight="bold">{escape(experiment.title)}</text>')
        parts.append(
            f'<text x="{x}" y="34" font-size="9" fill="#57606a">{escape(experiment.figure)}</text>'
        )
    for row, report in enumerate(reports):
        y = TOP + ROW * row
        parts.append(f'<text x="4" y="{y + 23}" font-size="13">{escape(report.name)}</text>')
        for number, experiment in enumerate(EXPERIMENTS):
            finding = report.found(experiment.key)
            if finding is None:
                continue
            x, figure = LEFT + FIELD * number, escape(str(finding.figure))
            parts.append(
                f'<rect x="{x}" y="{y + 1}" width="{FIELD - 3}" height="{ROW - 3}" rx="4" '
                f'fill="{COLOURS[finding.verdict]}"/>'
                f'<text x="{x + 8}" y="{y + 16}" fill="#ffffff" font-weight="bold">'
                f"{finding.verdict}</text>"
                f'<text x="{x + 8}" y="{y + 31}" fill="#ffffff">{figure}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"

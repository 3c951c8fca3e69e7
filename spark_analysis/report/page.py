"""Page: report.html, one file with everything in it, which makes no network request.

An analysis always gives the same bytes.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spark_analysis.analysis import QUESTIONS, Analysis
from spark_analysis.questions.question import Unit
from spark_analysis.report.day import heading, sections
from spark_analysis.report.document import (
    LISTED_MAX,
    document,
    header,
    left_out_list,
    listing,
    trouble,
)
from spark_analysis.report.findings import ReportFindings, set_of
from spark_analysis.report.markup import Content, Html, element, join, table
from spark_analysis.report.sections import Sections, set_name
from spark_analysis.report.words import NONE, ParameterSet, count, quantity
from spark_analysis.runs.examination import BROKER, UNFINISHED, Run

FEW: Final = 5
"""Runs that a warning names."""


def write_page(analysis: Analysis, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(analysis), encoding="utf-8")


def page(analysis: Analysis) -> str:
    findings = ReportFindings(analysis, QUESTIONS)
    written = Sections(findings).of(QUESTIONS)
    entries = element("ol", *(section.in_short() for section in written))
    body: list[Content] = [
        *_opening(findings),
        element("section", element("h2", "In short"), entries, class_="short"),
        *(section.html() for section in written),
    ]
    silent = [question.title for question in QUESTIONS if not findings.blocks(question)]
    if silent:
        words = f"No run has an answer to: {' '.join(silent)}"
        body.append(element("section", element("p", words, class_="none"), id="unanswered"))
    body += [
        _outliers(findings),
        _violations(analysis),
        left_out_list(analysis.left_out),
        _runs(findings),
    ]
    return document(f"flowguard: {count(len(analysis.runs), 'run')}", body)


def _opening(findings: ReportFindings) -> list[Content]:
    """The day of live runs; then the comparison of runs, if there are several."""
    analysis = findings.analysis
    day = analysis.day
    if day is None:
        return [_header(findings), _trouble(analysis)]
    opening = [heading(day, analysis.runs), _trouble(analysis), *sections(day)]
    return opening if len(analysis.runs) == 1 else [*opening, _header(findings)]


def _header(findings: ReportFindings) -> Html:
    runs = findings.analysis.runs
    policies = sorted({one.policy for one in findings.sets})
    facts = [
        (count(len(runs), "run"), f"read; {len(findings.analysis.left_out)} left out"),
        (count(len(findings.scenarios), "scenario"), ", ".join(findings.scenarios)),
        (count(len(policies), "policy", "policies"), ", ".join(policies)),
        (count(len(findings.sets), "set"), "of scenario, policy and parameters"),
    ]
    words = (
        "Every value is a mean over runs that differ in their seed only; ± is half of its 95 % "
        "interval. Live runs have no seeds: those of one set had the same settings and about the "
        "same load. Only sets that had the same load are compared, and what differs by no more "
        "than runs of the same set do, or single runs by 10 %, is called equal. A note beside a "
        "value names runs without it; they are not in the mean."
    )
    return header("Report of the runs", facts, element("p", words, class_="how"))


def _trouble(analysis: Analysis) -> Html:
    notes: list[Content] = []
    if analysis.violations.num_rows:
        words = count(analysis.violations.num_rows, "run")
        text = f"{words} ended early because an invariant did not hold: "
        notes.append(join([text, element("a", "see below", href="#violations")]))
    if analysis.left_out:
        text = f"{count(len(analysis.left_out), 'entry', 'entries')} could not be read: "
        notes.append(join([text, element("a", "which and why", href="#left-out")]))
    # A broker has no end to come to: to be stopped is its usual one.
    stopped = [
        run.run_id
        for run in analysis.runs
        if run.end["ended_by"] == "stopped" and run.run["source"] != BROKER
    ]
    if stopped:
        more = f" and {len(stopped) - FEW} more" if len(stopped) > FEW else ""
        named = ", ".join(stopped[:FEW])
        notes.append(f"Stopped before their end, and in the means: {named}{more}.")
    return trouble(notes)


def _outliers(findings: ReportFindings) -> Html:
    metrics = {(each.name, metric.column): metric for each in QUESTIONS for metric in each.metrics}
    rows: list[Sequence[Content]] = []
    for row in findings.analysis.outliers.to_pylist()[:LISTED_MAX]:
        metric = metrics[row["question"], row["metric"]]
        rows.append(
            (
                row["scenario"],
                set_name(set_of(row), findings),
                metric.words,
                metric.never if row["value"] is None else quantity(row["value"], metric.unit),
                quantity(row["median"], metric.unit),
                NONE if row["seed"] is None else str(row["seed"]),
                element("code", row["command"] or row["run_id"]),
            )
        )
    head = ("scenario", "policy and parameters", "what", "value", "median", "seed", "run it again")
    return listing(
        "Which runs stand out?",
        "Runs that differ from the median of their own parameter set by more than 3.5 times the "
        "usual distance, from five seeds on; the command runs one again, with the same result.",
        table(head, rows) if rows else None,
        "outliers",
        "None does.",
    )


def _violations(analysis: Analysis) -> Html:
    rows = [
        (
            row["run_id"],
            quantity(row["t_s"], Unit.SECONDS),
            NONE if row["node"] is None else str(row["node"]),
            row["invariant"],
            row["detail"],
        )
        for row in analysis.violations.to_pylist()[:LISTED_MAX]
    ]
    return listing(
        "Which invariants did not hold?",
        "A run ends with the first violation; what it did until then is in the means.",
        table(("run", "after", "node", "invariant", "what was seen"), rows) if rows else None,
        "violations",
        "All did, in all runs.",
    )


def _runs(findings: ReportFindings) -> Html:
    by_set: dict[ParameterSet, list[Run]] = {}
    runs = {run.run_id: run for run in findings.analysis.runs}
    for row in findings.analysis.sets.to_pylist():
        one = set_of(row)
        by_set.setdefault(one, []).append(runs[row["run_id"]])
    rows = [
        (
            one.scenario,
            set_name(one, findings),
            str(len(of_set)),
            _range([run.run["seed"] for run in of_set]),
            _range([run.run["clients_count"] for run in of_set]),
            _range([run.run["nodes_count"] for run in of_set]),
            ", ".join(
                f"{words} {amount}"
                for words, amount in sorted(Counter(map(_ended_by, of_set)).items())
            ),
        )
        for one, of_set in sorted(by_set.items())
    ]
    head = ("scenario", "policy and parameters", "runs", "seeds", "clients", "nodes", "ended by")
    return listing(
        "Which runs are these?",
        "By parameter set; table runs.csv has every run with the command that runs it again.",
        table(head, rows[:LISTED_MAX]),
        "runs",
    )


def _ended_by(run: Run) -> str:
    if run.end["ended_by"] == UNFINISHED:
        return "killed, or still recorded"
    is_orderly = run.run["source"] == BROKER and run.end["ended_by"] == "stopped"
    return "its broker's end" if is_orderly else str(run.end["ended_by"])


def _range(values: Sequence[int | None]) -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return NONE
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"

"""Page: tuning.html, the recommendation and its reasons, one file like the report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_analysis.intervals import Interval, interval
from spark_analysis.report.document import (
    LISTED_MAX,
    document,
    figure,
    left_out_list,
    listing,
)
from spark_analysis.report.markup import Content, Html, element, table
from spark_analysis.report.words import NONE, count, margin, quantity
from spark_analysis.runs.examination import LeftOut
from spark_analysis.tuner import charts
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.evidence import effects
from spark_analysis.tuner.judging import Judged, percent
from spark_analysis.tuner.limits_file import conclusion, effect_words
from spark_analysis.tuner.measuring import Measures
from spark_analysis.tuner.objective import Measured, Term
from spark_analysis.tuner.scoring import Scores, bound_words
from spark_analysis.tuner.trials import DEFAULTS, Candidate, Place, Trials, place_names

NAME: Final = "tuning.html"
_OPEN_MAX: Final = 10
"""Rows up to which a list is open; a longer one opens on a click, and for printing."""
_HOW: Final = (
    "Every candidate is compared with the defaults run by run: same load, same seed. The score is "
    "the weighted geometric mean of the ratios: ratios have no unit, and their mean should not "
    "depend on the order of division. The best candidate is chosen on one part of the seeds, and "
    "the simplest one if the difference is noise. All figures on this page are from the other "
    "part, which the choice has not seen."
)


@dataclass(frozen=True, slots=True)
class TuningRecord:
    choice: Choice
    trials: Trials
    measures: Measures
    left_out: tuple[LeftOut, ...]


def write_page(tuning: TuningRecord, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(tuning), encoding="utf-8")


def page(tuning: TuningRecord) -> str:
    body = [
        _header(tuning),
        _trouble(tuning),
        _answer(tuning),
        _trade_off(tuning),
        _effects(tuning),
        _loads(tuning),
        _candidates(tuning),
        _wanted(tuning),
        left_out_list(tuning.left_out),
    ]
    return document(f"flowguard: limits for {tuning.choice.objective.title}", body)


def _header(tuning: TuningRecord) -> Html:
    choice, trials = tuning.choice, tuning.trials
    tried = max(len(trials.candidates) - 1, 0)
    facts = [
        (count(len(trials.run_ids), "run"), f"compared; {len(tuning.left_out)} left out"),
        (count(tried, "candidate"), "besides the defaults"),
        (count(len(choice.split.training), "seed"), "to choose with"),
        (count(len(choice.split.held_out), "seed"), "held out, to judge by"),
    ]
    cells = [element("div", element("dt", words), element("dd", value)) for value, words in facts]
    return element(
        "header",
        element("h1", "Which limits?"),
        element("dl", *cells),
        element("p", _HOW, class_="how"),
    )


def _trouble(tuning: TuningRecord) -> Html:
    """A warning that readers of the figures need first."""
    choice, trials = tuning.choice, tuning.trials
    notes = []
    incomplete = [one for one in choice.judged if one.missing]
    if incomplete:
        words = count(len(incomplete), "candidate has", "candidates have")
        notes.append(f"{words} not all runs that the defaults have, and no figures.")
    used = {*choice.split.training, *choice.split.held_out}
    unused = {seed for _, _, seed in trials.run_ids} - used
    if unused and used:
        notes.append(
            f"{count(len(unused), 'seed is', 'seeds are')} not used: the defaults did not run with "
            "them in every scenario, or an invariant was violated."
        )
    defaults = choice.defaults
    if defaults is not None and defaults.held_out is not None and defaults.training is not None:
        broken = dict.fromkeys(
            str(breach)
            for part in (defaults.training, defaults.held_out)
            for breach in part.breaches
        )
        notes += [f"The defaults themselves: {words}." for words in broken]
    if len(trials.versions) > 1:
        notes.append(f"Versions of flowguard are mixed: {', '.join(trials.versions)}.")
    if trials.repeated:
        notes.append(f"{count(len(trials.repeated), 'run')} tried what another had; not counted.")
    if trials.others:
        words = "of another policy, without a seed, or stopped"
        notes.append(f"{count(len(trials.others), 'run')} {words}; not counted.")
    items = [element("li", note) for note in notes]
    return element("ul", *items, class_="trouble") if items else Html("")


def _answer(tuning: TuningRecord) -> Html:
    choice = tuning.choice
    contents: list[Content] = [element("p", conclusion(choice), class_="conclusion")]
    found = effects(choice)
    if found:
        rows = [
            (
                element("code", effect.key),
                tuning.trials.default_limits.get(effect.key) or NONE,
                element("b", effect.value),
                effect_words(effect, choice, tuning.trials),
            )
            for effect in found
        ]
        contents.append(table(("limit", "default", "recommended", "why"), rows))
        words = "limits.toml beside this page has them: flowguard serve --limits limits.toml"
        contents.append(element("p", words, class_="note"))
    elif choice.reason is not None:
        words = "There is no limits.toml: the runs do not support a recommendation."
        contents.append(element("p", words, class_="note"))
    return element("section", element("h2", "In short"), *contents, id="answer")


def _trade_off(tuning: TuningRecord) -> Html:
    choice = tuning.choice
    title = element("h2", "What is the price?")
    against = choice.objective.against
    how = (
        "Each dot is a candidate: up is better in the objective, across is the worst run in: "
        f"{against.words}. On the line, more of one costs some of the other."
    )
    found = charts.dots(choice)
    if not found:
        none = element("p", "There is nothing to compare.", class_="none")
        return element("section", title, none, id="trade-off")
    hidden = len(choice.judged) - len(found)
    caption = f"{choice.objective.title}, against {against.words}; held-out seeds"
    if charts.bounds(choice):
        caption += "; dotted: its bound"
    if hidden:
        caption += f"; {count(hidden, 'candidate')} without a value not shown"
    chart = figure(charts.trade_off(choice), caption)
    return element("section", title, element("p", how, class_="how"), chart, id="trade-off")


def _effects(tuning: TuningRecord) -> Html:
    choice = tuning.choice
    title = element("h2", "What does each limit do?")
    drawn = []
    for key in charts.limits_tried(choice):
        default = tuning.trials.default_limits.get(key, "")
        drawing = charts.effect(choice, key, default)
        if drawing is not None:
            drawn.append(figure(drawing, f"{key}: {choice.objective.title}; 95 % intervals"))
    if not drawn:
        none = element("p", "There is nothing to compare.", class_="none")
        return element("section", title, none, id="effects")
    how = element("p", "On held-out seeds, beside the defaults at 0 %.", class_="how")
    return element("section", title, how, element("div", *drawn, class_="figures"), id="effects")


# --- lists -----------------------------------------------------------------------------------


def _loads(tuning: TuningRecord) -> Html:
    """The loads under which the best candidate is better, in the metrics' own units."""
    rows: list[Sequence[Content]] = []
    named = place_names(tuning.choice.places)
    if tuning.choice.best is not None:
        for term in tuning.choice.objective.objectives:
            rows += [row for place in named if (row := _load(tuning, term, place, named[place]))]
    about = (
        "Means over held-out seeds, with half of their 95 % interval; the last column compares "
        "seed by seed, so that it is surer than both; more is better."
    )
    head = ("load", "what", "defaults", "best found", "beside the defaults")
    found = table(head, rows) if rows else None
    return listing("Where is it better?", about, found, "loads", "Nothing was found.")


def _load(tuning: TuningRecord, term: Term, place: Place, name: str) -> Sequence[Content] | None:
    best = tuning.choice.best
    assert best is not None
    scores = Scores(tuning.choice.objective, tuning.trials, tuning.measures)
    scored = [
        scores.term(term, best.candidate, place, seed) for seed in tuning.choice.split.held_out
    ]
    known = [score for score in scored if score is not None]
    if not known:
        return None
    means = [_mean(tuning, term, candidate, place) for candidate in (DEFAULTS, best.candidate)]
    cells = [NONE if mean is None else _quantity(mean, term) for mean in means]
    score = interval(known) if all(map(math.isfinite, known)) else None
    return (name, term.words, *cells, NONE if score is None else _margin(score))


def _mean(
    tuning: TuningRecord, what: Measured, candidate: Candidate, place: Place
) -> Interval | None:
    runs = [tuning.trials.run_ids[candidate, place, s] for s in tuning.choice.split.held_out]
    known = [tuning.measures.of(what, run) for run in runs if tuning.measures.has(what, run)]
    return interval(value for value in known if value is not None)


def _quantity(mean: Interval, what: Measured) -> str:
    if not math.isfinite(mean.half):
        return quantity(mean.mean, what.what.unit)
    return margin(mean.mean, mean.high, what.what.unit)


def _margin(score: Interval) -> str:
    return f"{percent(score.mean)} ({percent(score.low)} to {percent(score.high)})"


def _candidates(tuning: TuningRecord) -> Html:
    choice = tuning.choice
    against = choice.objective.against
    rows = [
        (
            _name(one, choice),
            _score(one),
            NONE
            if one.held_out is None or one.held_out.worst is None
            else quantity(one.held_out.worst, against.what.unit),
            _against(one),
        )
        for one in sorted(choice.judged, key=lambda one: _order(one, choice))
    ]
    about = (
        "Held-out figures; what speaks against a candidate may come from the seeds to choose with. "
        "A candidate that looks better here than the one that was taken was not chosen blind, and "
        "is no recommendation. Table candidates.csv has all of them, pairs.csv every run."
    )
    head = ("limits", "beside the defaults", f"{against.words}, worst run", "speaks against it")
    found = table(head, rows[:LISTED_MAX]) if rows else None
    if found is not None and len(rows) > _OPEN_MAX:
        words = element("summary", f"Table of all {count(len(rows) - 1, 'candidate')}")
        first = table(head, rows[:_OPEN_MAX])
        found = element("div", first, element("details", words, found))
    return listing("What was tried?", about, found, "candidates", "Nothing can be compared.")


def _score(one: Judged) -> str:
    if one.candidate == DEFAULTS or one.held_out is None or one.held_out.score is None:
        return NONE
    return _margin(one.held_out.score)


def _name(one: Judged, choice: Choice) -> Content:
    if one is not choice.best:
        return one.candidate.name
    words = "recommended" if choice.chosen else "best on the seeds to choose with"
    return element("span", element("b", one.candidate.name), element("small", words))


def _against(one: Judged) -> str:
    broken = [] if one.held_out is None else [str(breach) for breach in one.held_out.breaches]
    found = [f"to choose with: {one.problem}"] if one.problem and not one.missing else []
    found += [one.problem] if one.missing else []
    found += [f"held out: {words}" for words in broken]
    return "; ".join(found) or NONE


def _order(one: Judged, choice: Choice) -> tuple[bool, bool, bool, float, Candidate]:
    score = None if one.held_out is None else one.held_out.score
    return (
        one is not choice.best,
        one.candidate != DEFAULTS,
        bool(one.problem),
        math.inf if score is None else -score.mean,
        one.candidate,
    )


def _wanted(tuning: TuningRecord) -> Html:
    objective = tuning.choice.objective
    rows: list[Sequence[Content]] = [
        ("objective", element("code", term.metric), f"{term.words}: {term.what.better} is better")
        for term in objective.objectives
    ]
    rows += [
        ("constraint", element("code", one.metric), f"in no run {bound_words(one)}")
        for one in objective.constraints
    ]
    rows += [
        ("constraint", element("code", "violations"), "no invariant is violated in any run"),
        ("tolerance", NONE, f"in no scenario worse by {100 * objective.tolerance:g} %"),
        (
            "least improvement",
            NONE,
            f"surely better by more than {100 * objective.least_improvement:g} %",
        ),
    ]
    head = ("", "metric", "meaning")
    return listing("What was wanted?", objective.title, table(head, rows), "objective", "")

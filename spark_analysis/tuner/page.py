"""Page: tuning.html, the recommendation and its reasons, one file like the report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_analysis.intervals import interval
from spark_analysis.report.document import (
    LISTED_MAX,
    document,
    figure,
    header,
    left_out_list,
    listing,
    long_table,
    trouble,
)
from spark_analysis.report.markup import Content, Html, element, table
from spark_analysis.report.words import NONE, count, margin
from spark_analysis.runs.examination import LeftOut
from spark_analysis.tuner import charts
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.limits_file import conclusion, effect_words, effects
from spark_analysis.tuner.measuring import Measures
from spark_analysis.tuner.objective import Measured, Term
from spark_analysis.tuner.scoring import Judged, Scores, range_words
from spark_analysis.tuner.trials import DEFAULTS, Candidate, Place, Trials, place_names

NAME: Final = "tuning.html"
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

    @property
    def scores(self) -> Scores:
        return Scores(self.choice.objective, self.trials, self.measures)


def write_page(tuning: TuningRecord, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(tuning), encoding="utf-8")


def page(tuning: TuningRecord) -> str:
    body = [
        _header(tuning),
        _trouble(tuning),
        _answer(tuning),
        _gains(tuning),
        _trade_off(tuning),
        _loads(tuning),
        _candidates(tuning),
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
    return header("Which limits?", facts, element("p", _HOW, class_="how"))


def _trouble(tuning: TuningRecord) -> Html:
    choice, trials = tuning.choice, tuning.trials
    notes: list[Content] = []
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
    for one in choice.judged:
        if one.candidate == DEFAULTS:
            parts = [part for part in (one.training, one.held_out) if part is not None]
            broken = dict.fromkeys(str(breach) for part in parts for breach in part.breaches)
            notes += [f"The defaults themselves: {words}." for words in broken]
    if len(trials.versions) > 1:
        notes.append(f"Versions of flowguard are mixed: {', '.join(trials.versions)}.")
    if trials.repeated:
        notes.append(f"{count(len(trials.repeated), 'run')} tried what another had; not counted.")
    if trials.others:
        words = "of another policy, without a seed, or stopped"
        notes.append(f"{count(len(trials.others), 'run')} {words}; not counted.")
    return trouble(notes)


def _answer(tuning: TuningRecord) -> Html:
    choice = tuning.choice
    contents: list[Content] = [element("p", conclusion(choice), class_="conclusion")]
    if choice.chosen:
        rows = [
            (
                element("code", effect.key),
                tuning.trials.default_limits.get(effect.key) or NONE,
                element("b", effect.value),
                effect_words(effect, choice, tuning.trials),
            )
            for effect in effects(choice)
        ]
        contents.append(table(("limit", "default", "recommended", "why"), rows))
        words = "limits.toml beside this page has them: flowguard serve --limits limits.toml"
        contents.append(element("p", words, class_="note"))
    else:
        words = "There is no limits.toml: the runs do not support a recommendation."
        contents.append(element("p", words, class_="note"))
    return element("section", element("h2", "In short"), *contents, id="answer")


def _gains(tuning: TuningRecord) -> Html:
    about = (
        "On held-out seeds, beside the defaults at 0 %, with 95 % intervals. The table of all "
        "candidates is below."
    )
    return listing("Which limits are better?", about, charts.gains(tuning.choice), "gains")


def _trade_off(tuning: TuningRecord) -> Html:
    about = (
        "A dot per candidate: up is better in the objective, across is the worst run in another "
        "metric. Along the line, more of one costs some of the other; dotted: the metric's bound."
    )
    choice = tuning.choice
    caption = f"{choice.objective.title}, against {choice.objective.against.words}"
    drawn = charts.trade_off(choice)
    found = None if drawn is None else figure(drawn, caption)
    return listing("What is the price?", about, found, "trade-off")


# --- lists -----------------------------------------------------------------------------------


def _loads(tuning: TuningRecord) -> Html:
    """The loads under which the best candidate is better, in the metrics' own units; and what it
    costs, in those of the constraints."""
    rows: list[Sequence[Content]] = []
    best, objective = tuning.choice.best, tuning.choice.objective
    scores, names = tuning.scores, place_names(tuning.choice.places)
    measured = (*objective.objectives, *objective.constraints)
    for what in measured if best is not None else ():
        for place in names:
            assert best is not None
            means = [_mean(tuning, what, one, place) for one in (DEFAULTS, best.candidate)]
            runs = [(place, seed) for seed in tuning.choice.split.held_out]
            scored = [
                scores.term(what, best.candidate, *run) if isinstance(what, Term) else None
                for run in runs
            ]
            known = [score for score in scored if score is not None]
            score = interval(known) if all(map(math.isfinite, known)) else None
            beside = NONE if score is None else range_words(score)
            if any(mean != NONE for mean in means):
                rows.append((names[place], what.words, *means, beside))
    about = (
        "Means over held-out seeds, with half of their 95 % interval: of what was to be better, "
        "and of what must hold. The last column compares seed by seed, so that it is surer than "
        "both; more is better."
    )
    head = ("load", "what", "defaults", "best found", "beside the defaults")
    return listing("Where is it better?", about, table(head, rows) if rows else None, "loads")


def _mean(tuning: TuningRecord, what: Measured, candidate: Candidate, place: Place) -> str:
    runs = [tuning.trials.run_ids[candidate, place, s] for s in tuning.choice.split.held_out]
    known = [tuning.measures.of(what, run) for run in runs if tuning.measures.has(what, run)]
    mean = interval(value for value in known if value is not None)
    return NONE if mean is None else margin(mean.mean, mean.high, what.what.unit)


def _candidates(tuning: TuningRecord) -> Html:
    choice = tuning.choice
    rows = [
        (_name(one, choice), _score(one), _against(one))
        for one in sorted(choice.judged, key=lambda one: _order(one, choice))
    ]
    about = (
        "Held-out figures; what speaks against a candidate may come from the seeds to choose with. "
        "A candidate that looks better here than the one that was taken was not chosen blind, and "
        "is no recommendation. Table candidates.csv has all of them, pairs.csv every run."
    )
    head = ("limits", "beside the defaults", "speaks against it")
    found = long_table(head, rows[:LISTED_MAX]) if rows else None
    return listing("What was tried?", about, found, "candidates")


def _score(one: Judged) -> str:
    if one.candidate == DEFAULTS or one.held_out is None or one.held_out.score is None:
        return NONE
    return range_words(one.held_out.score)


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

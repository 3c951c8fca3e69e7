"""Trials: which run tried which limits, where, with which seed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from spark_analysis.loads import LIMIT
from spark_analysis.report.words import distinct
from spark_analysis.runs.examination import BROKER, Run

ABSENT: Final = ""
"""The value of a limit that is taken out of its section."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """Limits that differ from the defaults, by key of section `flow`, sorted."""

    limits: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The limits in words, for people."""
        if not self.limits:
            return "defaults"
        return ", ".join(f"{key} = {value or 'absent'}" for key, value in self.limits)

    def without(self, key: str) -> "Candidate":
        return Candidate(tuple(pair for pair in self.limits if pair[0] != key))


DEFAULTS: Final = Candidate()


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A scenario, and the part of its load that differs from its file: `clients=300, load=0.9`."""

    scenario: str
    load: str = ""

    @property
    def name(self) -> str:
        """The place in words, for people."""
        return f"{self.scenario} ({self.load})" if self.load else self.scenario


Key = tuple[Candidate, Place, int]


@dataclass(frozen=True, slots=True)
class Trials:
    """One run per candidate, place and seed."""

    run_ids: dict[Key, str]
    commands: dict[str, str]
    default_limits: dict[str, str]
    """The defaults by key; empty where unknown, without keys on which runs differ."""
    repeated: tuple[str, ...] = ()
    """Runs that repeat another one, and are not used."""
    others: tuple[str, ...] = ()
    """Runs of other policies, without a seed, or stopped before their end."""
    versions: tuple[str, ...] = ()
    """Versions of flowguard that wrote the runs."""
    are_simulated: bool = False
    """Whether a run of these is a simulation."""

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates, the defaults first."""
        found = {candidate for candidate, _, _ in self.run_ids}
        return sorted(found, key=lambda one: (len(one.limits), one))

    @property
    def places(self) -> list[Place]:
        """The places in which the defaults ran: elsewhere nothing can be compared."""
        return sorted({place for candidate, place, _ in self.run_ids if candidate == DEFAULTS})

    def seeds(self) -> list[int]:
        """The seeds with which the defaults ran everywhere."""
        places = self.places
        seeds = {seed for candidate, _, seed in self.run_ids if candidate == DEFAULTS}
        return sorted(
            seed
            for seed in seeds
            if all((DEFAULTS, place, seed) in self.run_ids for place in places)
        )

    def missing(self, candidate: Candidate, seeds: Iterable[int]) -> int:
        keys = ((candidate, place, seed) for place in self.places for seed in seeds)
        return sum(key not in self.run_ids for key in keys)


def sort_out(runs: Sequence[Run], policy: str) -> Trials:
    """Return the runs of `policy` as trials, the same in any order of the runs.

    A limit set to its default is no change. If two runs tried the same, the one whose name sorts
    first counts.
    """
    known: list[Run] = []
    others: list[Run] = []
    for run in sorted(runs, key=lambda run: run.run_id):
        is_usable = run.run["policy"] == policy and run.run["seed"] is not None
        is_whole = run.end["ended_by"] != "stopped"
        (known if is_usable and is_whole else others).append(run)
    defaults = _default_limits(known)
    found: dict[Key, Run] = {}
    repeated = []
    for run in known:
        key = (_candidate(run, defaults), _place(run), run.run["seed"])
        if found.setdefault(key, run) is not run:
            repeated.append(run.run_id)
    return Trials(
        run_ids={key: run.run_id for key, run in found.items()},
        commands={run.run_id: run.run["command"] for run in found.values()},
        default_limits=defaults,
        repeated=tuple(repeated),
        others=tuple(run.run_id for run in others),
        versions=tuple(sorted({run.run["flowguard_version"] for run in found.values()})),
        are_simulated=any(run.run["source"] != BROKER for run in found.values()),
    )


def plain(value: str) -> str:
    """One text for one value: 0.050 is 0.05, 50.0 is 50, None is absent."""
    if value in ("None", ABSENT):
        return ABSENT
    try:
        number = float(value)
    except ValueError:
        return value
    if not math.isfinite(number):
        return value
    return str(int(number)) if number.is_integer() else repr(number)


def _default_limits(runs: Sequence[Run]) -> dict[str, str]:
    """The limits of runs in which none was changed; those that depend on the scenario are left
    out."""
    limits = [
        {key: plain(value) for key, value in run.run["limits"].items()}
        for run in runs
        if not any(key.startswith(LIMIT) for key in run.run["parameters"])
    ]
    if not limits:
        return {}
    return {
        key: value
        for key, value in sorted(limits[0].items())
        if all(other.get(key) == value for other in limits)
    }


def _candidate(run: Run, defaults: Mapping[str, str]) -> Candidate:
    changed = {
        key.removeprefix(LIMIT): plain(value)
        for key, value in run.run["parameters"].items()
        if key.startswith(LIMIT)
    }
    pairs = sorted(changed.items())
    return Candidate(tuple((key, value) for key, value in pairs if defaults.get(key) != value))


def _place(run: Run) -> Place:
    pairs = sorted(run.run["parameters"].items())
    load = ", ".join(f"{key}={value}" for key, value in pairs if not key.startswith(LIMIT))
    return Place(run.run["scenario"], load)


def place_names(places: Sequence[Place]) -> dict[Place, str]:
    """Names for people: of the load only the part that not all places of the scenario have."""
    names = {}
    for scenario in sorted({place.scenario for place in places}):
        same = [place for place in places if place.scenario == scenario]
        for place, load in zip(same, distinct([place.load for place in same]), strict=True):
            names[place] = Place(scenario, load).name
    return {place: names[place] for place in places}


@dataclass(frozen=True, slots=True)
class Split:
    """Seeds to choose with, and seeds that the choice is judged by; both sorted."""

    training: tuple[int, ...] = field(default=())
    held_out: tuple[int, ...] = field(default=())


def split(seeds: Iterable[int], share: float) -> Split:
    """`share` of the seeds is held out, rounded up; which ones depends on nothing but the seeds."""
    order = sorted(set(seeds), key=lambda seed: (blake2b(str(seed).encode()).digest(), seed))
    count = math.ceil(round(len(order) * share, 9))
    return Split(tuple(sorted(order[count:])), tuple(sorted(order[:count])))

"""Loading: scenarios from files, with the changes of the command line.

A scenario is a TOML file with the keys of `Scenario`, or a Python file with a function
`scenario(**parameters) -> Scenario`, for values that have to be computed. Those of `library`
have names. Every error is a ConfigError of one line that names file and key.
"""

import inspect
import tomllib
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from json import dumps
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

from pydantic import ValidationError, validate_call

from flowguard.errors import ConfigError
from simulations.scenario import Scenario, TracePlan
from simulations.scenario_files.complaints import nearest, refusal
from simulations.scenario_files.kinds import NO_KIND, wrong_kind
from simulations.scenario_files.traces import What, read_trace

LIBRARY: Final = Path(__file__).parents[1] / "library"
SUFFIXES: Final = (".toml", ".py")
DIGEST_BYTES: Final = 6
"""Length of digests in a run's name: a sweep has tens of thousands of runs, and names must be
unique."""
_SAYS_NOTHING: Final = ("title", "description", "seed")
"""Keys of a scenario that change no run, or have a part of their own in its name."""
_TRUTHS: Final = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}

Table = dict[str, Any]
Changes = Mapping[str, Any]
"""Values by dotted key, or by the name of a parameter; a value of None removes the key."""


@dataclass(frozen=True, slots=True)
class LoadedScenario:
    name: str
    scenario: Scenario
    changes: dict[str, Any]
    """Differences from the file, by dotted key or parameter."""
    source: str
    """The name or file from which it can be loaded again."""
    digest: str | None
    """Digest of the files that are not the library's, or None if all are. It covers the scenario's
    file or, of a Python file, the result of its function without other `changes`, and the
    traces."""


def names() -> list[str]:
    return sorted(p.stem for p in LIBRARY.iterdir() if p.suffix in SUFFIXES)


def change(text: str) -> tuple[str, Any]:
    """Return the key and value of `key.path=value`: TOML, a spelling of people or Python, or a bare
    word; without a value the key is removed."""
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not key or not equals:
        raise ConfigError(f"--set {text}: expected KEY=VALUE, for example node.connect_s=0.002")
    if not value:
        return key, None
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        return key, _meant(value)


def _meant(word: str) -> Any:
    """Return the value of a word that is not TOML. It may be another spelling of a number or a
    truth value, the `str` of a value, as in recordings, or the word itself."""
    if word.lower() in _TRUTHS:
        return _TRUTHS[word.lower()]
    for number in (int, float):
        with suppress(ValueError):
            return number(word)
    if word == "None" or word[0] in "[{":
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return literal_eval(word)
    return word


def load(name: str, changes: Changes | None = None) -> LoadedScenario:
    """Load a scenario of the library, or a file. Raises ConfigError.

    In `changes`, `clients` that is neither key nor parameter is for all populations together.
    """
    path = _find(name)
    changed = {key: seen_from(Path(), key, value) for key, value in (changes or {}).items()}
    if path.suffix == ".py":
        function = _function(path)
        known = inspect.signature(function).parameters
        given = {key: value for key, value in changed.items() if key in known}
        table = _call(path, function, given).model_dump(mode="json", exclude_unset=True)
        rest = {key: value for key, value in changed.items() if key not in known}
        said = table
        if "seed" in given and known["seed"].default is not inspect.Parameter.empty:
            del given["seed"]
            said = _call(path, function, given).model_dump(mode="json", exclude_unset=True)
    else:
        table, rest = read_toml(path), changed
        said = table
    content = dumps(
        {key: value for key, value in said.items() if key not in _SAYS_NOTHING},
        sort_keys=True,
        default=str,
    )
    if rest:
        table.setdefault("populations", {"clients": {}})
    try:
        for key, value in rest.items():
            _change(table, key, value)
    except ConfigError as error:
        raise ConfigError(f"{_label(path)}: {error}") from error
    _require_no_policy(path, table)
    _read_traces(path, table)
    try:
        scenario = Scenario.model_validate(table)
    except ValidationError as error:
        raise refusal(_label(path), error, Scenario) from error
    return LoadedScenario(path.stem, scenario, changed, name, _digest(path, content, scenario))


def parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a Python scenario and their defaults; other files have none."""
    path = _find(name)
    if path.suffix != ".py":
        return {}
    known = inspect.signature(_function(path)).parameters
    return {key: parameter.default for key, parameter in known.items()}


def _find(name: str) -> Path:
    path = Path(name)
    if path.suffix in SUFFIXES or len(path.parts) > 1:
        if not path.is_file():
            raise ConfigError(f"{name}: there is no such file")
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"{name}: a scenario is a .toml or .py file")
        return path
    for suffix in SUFFIXES:
        found = LIBRARY / f"{name}{suffix}"
        if found.is_file():
            return found
    near = nearest(name, names()) or f"; there are {', '.join(names())}"
    raise ConfigError(f"{name}: no scenario of that name{near}")


def _label(path: Path) -> str:
    return path.name if path.parent == LIBRARY else str(path)


# --- files -----------------------------------------------------------------------------------


def read_toml(path: Path) -> Table:
    """Return the content of a file. Raises ConfigError with the file and its fault."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{_label(path)}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_label(path)}: is no text in UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{_label(path)}: is not valid TOML: {error}") from error


def _function(path: Path) -> Callable[..., Any]:
    spec = spec_from_file_location(f"flowguard_scenario_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(f"{_label(path)}: line {error.lineno}: {error.msg}") from error
    except Exception as error:
        raise ConfigError(_broken(path, error)) from error
    function = getattr(module, "scenario", None)
    if not callable(function):
        raise ConfigError(f"{_label(path)}: has no function scenario(...) -> Scenario")
    return function  # type: ignore[no-any-return]


def _call(path: Path, function: Callable[..., Any], given: Changes) -> Scenario:
    known = inspect.signature(function).parameters
    for key, value in given.items():
        kind = wrong_kind(known[key].annotation, value)
        if kind is not None:
            raise ConfigError(f"{_label(path)}: {key}: {value!r} is {NO_KIND[kind]}")
    try:
        made = validate_call(function)(**given)
    except ValidationError as error:
        raise refusal(_label(path), error, Scenario) from error
    except Exception as error:
        raise ConfigError(_broken(path, error)) from error
    if not isinstance(made, Scenario):
        raise ConfigError(f"{_label(path)}: scenario() gives no Scenario")
    return made


def _require_no_policy(path: Path, table: Table) -> None:
    """Reject a policy in a scenario: a run has the policy of its command, so it would change
    nothing."""
    flow = table.get("flow")
    given = flow if isinstance(flow, dict) else {}
    for key in ("policy", "shadow_policy"):
        if key in given:
            raise ConfigError(
                f"{_label(path)}: flow.{key} is not allowed in a scenario. Choose the "
                "policy with --policy (repeatable; in a grid: policies)."
            )


def _read_traces(path: Path, table: Table) -> None:
    """Insert the points of traces. A value that is no table is reported later."""
    populations = table.get("populations")
    for population in populations.values() if isinstance(populations, dict) else ():
        publish = population.get("publish") if isinstance(population, dict) else None
        plans: list[tuple[What, Any, str]] = [("clients", population, "arrivals")]
        plans.append(("messages", publish, "trace"))
        for what, place, key in plans:
            trace = place.get(key) if isinstance(place, dict) else None
            if isinstance(trace, dict) and isinstance(trace.get("file"), str):
                points = read_trace(path.parent / trace["file"], what)
                trace["points"] = points
                if what == "clients":
                    total = sum(count for _, count in points)
                    population.setdefault("clients", round(total * _scale_of(trace)))


def _digest(path: Path, content: str, scenario: Scenario) -> str | None:
    """Return a digest of `content`, the text of the file, and of all traces, or None if all of them
    are the library's."""
    found = [] if path.parent == LIBRARY else [content]
    for population in scenario.populations.values():
        publish = population.publish
        for trace in (population.arrivals, None if publish is None else publish.trace):
            if trace is not None and _is_foreign(path, trace):
                found.append(dumps(trace.points))
    text = dumps(found)
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest() if found else None


def _is_foreign(path: Path, trace: TracePlan) -> bool:
    return bool(trace.file) and (path.parent / trace.file).resolve().parent != LIBRARY


def _scale_of(trace: Table) -> float:
    scale = trace.get("scale", 1.0)
    return scale if isinstance(scale, int | float) else 1.0


def _broken(path: Path, error: Exception) -> str:
    """Return the error of the file's own code, and its line."""
    lines = [
        frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{_label(path)}: {where}{type(error).__name__}: {error}"


# --- changes ---------------------------------------------------------------------------------


def seen_from(folder: Path, key: str, value: Any) -> Any:
    """Return the value with paths relative to `folder`, not to the scenario's file."""
    if isinstance(value, dict):
        return {name: seen_from(folder, f"{key}.{name}", inner) for name, inner in value.items()}
    is_path = key.endswith(".file") and isinstance(value, str)
    return str((folder / value).resolve()) if is_path else value


def _change(table: Table, key: str, value: Any) -> None:
    if key == "clients":
        _share_out(_populations(table), value)
        return
    *path, last = key.split(".")
    if path[:1] == ["populations"]:
        _require_population(_populations(table), [*path, last][1])
    place: Any = table
    for depth, part in enumerate(path):
        place = _inside(place, part, path[:depth])
    if isinstance(place, list):
        place[_index(place, last, path)] = value
    elif value is None:
        place.pop(last, None)
    else:
        place[last] = value


def _inside(place: Any, part: str, path: Sequence[str]) -> Any:
    if isinstance(place, list):
        inside = place[_index(place, part, path)]
    else:
        inside = place.get(part)
        if inside is None:
            inside = place[part] = {}
    if not isinstance(inside, dict | list):
        raise ConfigError(f"{'.'.join([*path, part])}: is a value, no table")
    return inside


def _index(place: list[Any], part: str, path: Sequence[str]) -> int:
    if not part.isdecimal() or int(part) >= len(place):
        raise ConfigError(f"{'.'.join(path)}.{part}: there are {len(place)}, counted from 0")
    return int(part)


def _populations(table: Table) -> dict[str, Table]:
    populations = table["populations"]
    if not isinstance(populations, dict):
        raise ConfigError(f"populations: {populations!r} is no table")
    for name, population in populations.items():
        if not isinstance(population, dict):
            raise ConfigError(f"populations.{name}: {population!r} is no table")
    return populations


def _require_population(populations: Table, name: str) -> None:
    if name not in populations:
        near = nearest(name, list(populations)) or f"; there are {', '.join(populations)}"
        raise ConfigError(f"populations.{name}: no population of that name{near}")


def _share_out(populations: Table, clients: Any) -> None:
    """Divide `clients` among the populations, in the proportions of the file."""
    if not isinstance(clients, int) or isinstance(clients, bool):
        raise ConfigError(f"clients: {clients!r} is no whole number")
    if clients < 1:
        raise ConfigError(f"clients: {clients} is less than 1")
    default = 1_000
    before = {name: population.get("clients", default) for name, population in populations.items()}
    for name, count in before.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"populations.{name}.clients: {count!r} is no number of clients")
    total = sum(before.values())
    for name, population in populations.items():
        population["clients"] = max(1, round(clients * before[name] / total))

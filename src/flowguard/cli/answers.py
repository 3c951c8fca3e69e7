"""Whether an answer of the HTTP port is what this version of flowguard says there."""

from collections.abc import Collection
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from flowguard import __version__
from flowguard.cli.ask import NoAnswer

T = TypeVar("T")
FORMS: Final[dict[object, tuple[Any, str]]] = {
    dict: (dict, "an object"),
    list: (list, "a list"),
    int: (int | float, "a number"),
    float: (int | float, "a number"),
    bool: (bool, "true or false"),
    str: (str, "a text"),
    NoneType: (NoneType, "null"),
}
"""What JSON has for a type, and its name; other types may be anything."""


def understood(url: str, code: int, answer: object, form: type[T], read: Collection[str] = ()) -> T:
    """The answer, of the form that the TypedDict `form` has; raises NoAnswer: it is not.

    `read`: paths of what is looked at, with all below them, and nothing else is required; none:
    everything is.
    """
    if code != 200:
        raise turned_down(url, code, answer)
    wrong = misfit(answer, form, read=read)
    if wrong:
        raise NoAnswer(
            f"{url}: it does not say what flowguard {__version__} says there: {wrong}; it is "
            "another version of flowguard, or something else"
        )
    return cast(T, answer)


def turned_down(url: str, code: int, answer: object) -> NoAnswer:
    """An answer with a status that is not expected: an error of the broker, or no broker."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, str):
        return NoAnswer(f"{url}: status {code}: {error}")
    return NoAnswer(f"{url}: this is no HTTP port of flowguard (status {code})")


def misfit(answer: object, form: Any, path: str = "", read: Collection[str] = ()) -> str:
    """The first thing that is missing or of another form, with its path; empty: it fits.

    More keys than expected are none: a newer broker may say more. `read` is that of `understood`.
    """
    origin, arguments = get_origin(form) or form, get_args(form)
    if origin in (UnionType, Union):
        wrongs = [misfit(answer, each, path, read) for each in arguments]
        return "" if "" in wrongs else wrongs[0]
    expected, name = FORMS.get(dict if is_typeddict(form) else origin, (object, ""))
    is_odd = isinstance(answer, bool) and form is not bool
    if expected is not object and (is_odd or not isinstance(answer, expected)):
        return f"{path or 'the whole'} is not {name}"
    if isinstance(answer, list):
        return next(filter(None, (misfit(each, arguments[0], path, read) for each in answer)), "")
    return _misfit_within(answer, form, path, read) if isinstance(answer, dict) else ""


def _is_read(place: str, read: Collection[str]) -> bool:
    """Whether `place`, or something in it, is looked at."""
    return not read or any(
        f"{place}.".startswith(f"{each}.") or each.startswith(f"{place}.") for each in read
    )


def _misfit_within(answer: dict[str, object], form: Any, path: str, read: Collection[str]) -> str:
    if is_typeddict(form):
        keys = get_type_hints(form)
    else:
        keys = dict.fromkeys(answer, (get_args(form) or (str, object))[1])
    for key, wanted in keys.items():
        place = f"{path}.{key}" if path else key
        if not _is_read(place, read):
            continue
        wrong = misfit(answer[key], wanted, place, read) if key in answer else f"{place} is missing"
        if wrong:
            return wrong
    return ""

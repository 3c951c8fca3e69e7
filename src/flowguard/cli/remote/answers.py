"""Check that an answer of the HTTP port has the form that this version of flowguard expects."""

from collections.abc import Collection
from typing import TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from flowguard import __version__
from flowguard.cli.console import shown
from flowguard.cli.remote.ask import NoAnswer

T = TypeVar("T")


def understood(url: str, code: int, answer: object, form: type[T], read: Collection[str] = ()) -> T:
    """Return the answer of `checked`, with all its texts safe for a terminal."""
    return cast(T, _shown(checked(url, code, answer, form, read)))


def checked(url: str, code: int, answer: object, form: type[T], read: Collection[str] = ()) -> T:
    """Return the answer; raise NoAnswer unless it has the form of TypedDict `form`.

    `read`: paths that are used, with all below them; nothing else is required. Without paths,
    everything is required.
    """
    if code != 200:
        raise turned_down(url, code, answer)
    wrong = misfit(answer, form, read)
    if wrong:
        raise NoAnswer(
            f"{url}: the answer differs from that of flowguard {__version__}: {wrong}. "
            "Another version of flowguard or another program listens there."
        )
    return cast(T, answer)


def _shown(answer: object) -> object:
    if isinstance(answer, dict):
        return {key: _shown(each) for key, each in answer.items()}
    if isinstance(answer, list):
        return [_shown(each) for each in answer]
    return shown(answer) if isinstance(answer, str) else answer


def turned_down(url: str, code: int, answer: object) -> NoAnswer:
    """Return the error for an unexpected status: an error of the broker, or no broker."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, str):
        return NoAnswer(f"{url}: {error}", code)
    return NoAnswer(f"{url}: this is no HTTP port of flowguard (status {code})")


def misfit(answer: object, form: type[T], read: Collection[str] = ()) -> str:
    """Return the path and problem of the first missing or unexpected value, or "" if it fits.

    Additional keys are allowed, because a newer broker may send more. `read` is that of
    `understood`.
    """
    try:
        TypeAdapter(form).validate_python(answer, strict=True)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            keys = [part for part in each["loc"] if isinstance(part, str)]
            if _is_read(".".join(keys), read):
                place = ".".join(map(str, each["loc"])) or "the whole"
                return f"{place}: {each['msg']}"
    return ""


def _is_read(place: str, read: Collection[str]) -> bool:
    """True if `place`, or something in it, is used."""
    return not (place and read) or any(
        f"{place}.".startswith(f"{each}.") or each.startswith(f"{place}.") for each in read
    )

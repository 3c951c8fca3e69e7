"""Whether an answer of the HTTP port is what this version of flowguard says there."""

from collections.abc import Collection
from typing import TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from flowguard import __version__
from flowguard.cli.console import shown
from flowguard.cli.remote.ask import NoAnswer

T = TypeVar("T")


def understood(url: str, code: int, answer: object, form: type[T], read: Collection[str] = ()) -> T:
    """The answer, of the form that the TypedDict `form` has, to be shown; raises NoAnswer: it has
    another form.

    `read`: paths of what is looked at, with all below them, and nothing else is required; none:
    everything is.
    """
    if code != 200:
        raise turned_down(url, code, answer)
    wrong = misfit(answer, form, read)
    if wrong:
        raise NoAnswer(
            f"{url}: the answer differs from that of flowguard {__version__}: {wrong}. "
            "Another version of flowguard or another program listens there."
        )
    return cast(T, _shown(answer))


def _shown(answer: object) -> object:
    """Return the answer with all its texts as a terminal may show them."""
    if isinstance(answer, dict):
        return {key: _shown(each) for key, each in answer.items()}
    if isinstance(answer, list):
        return [_shown(each) for each in answer]
    return shown(answer) if isinstance(answer, str) else answer


def turned_down(url: str, code: int, answer: object) -> NoAnswer:
    """An answer with a status that is not expected: an error of the broker, or no broker."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, str):
        return NoAnswer(f"{url}: status {code}: {error}")
    return NoAnswer(f"{url}: this is no HTTP port of flowguard (status {code})")


def misfit(answer: object, form: type[T], read: Collection[str] = ()) -> str:
    """The first thing that is missing or of another form, with its path; empty: it fits.

    More keys than expected are none: a newer broker may say more. `read` is that of `understood`.
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
    """Whether `place`, or something in it, is looked at."""
    return not (place and read) or any(
        f"{place}.".startswith(f"{each}.") or each.startswith(f"{place}.") for each in read
    )

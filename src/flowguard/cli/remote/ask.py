"""Short requests to the HTTP port of a running broker."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from flowguard.cli.console import refused, shown

DEFAULT_URL: Final = os.environ.get("FLOWGUARD_URL", "http://127.0.0.1:9883")
Url = Annotated[str, typer.Option(help="The broker's HTTP port.")]
PATIENCE_S: Final = 5.0
POST_HEADERS: Final = {"Content-Type": "application/json", "X-Flowguard": "1"}
"""Headers of a request for a change; no form of a web page can send the second one."""
NOT_NOW: Final = (421, 503)
"""Codes of a broker that will not answer: under this host name, or at this moment."""
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
TOKEN: Final = "FLOWGUARD_TOKEN"
"""The environment variable with the token that a broker on another machine wants."""
HINTS: Final = {401: f"--token-file FILE, or {TOKEN}, has the token."}
"""Advice for a status code."""


class NoAnswer(Exception):
    """There is no answer, or an unexpected one; the text names the address and the reason."""

    refused = False
    """True if no process listens at the address."""

    def __init__(self, text: str, code: int | None = None) -> None:
        """`code`: the status code of a broker that has answered with a reason, or None."""
        self.code = code
        super().__init__(shown(text))


def _use_token_of(file: Path | None) -> None:
    """Take the token in the first line of the file instead of that of the environment."""
    if file is None:
        return
    try:
        token = file.read_bytes().partition(b"\n")[0].strip().decode("latin-1")
    except OSError as error:
        raise refused(f"--token-file: cannot read {file}: {error.strerror}", code=2) from error
    if not _is_token(token):
        raise refused(f"--token-file: {file} does not begin with a line of ASCII text", code=2)
    os.environ[TOKEN] = token


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and text != ""


def token_option(
    token_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File whose first line is the broker's token; default: {TOKEN}.",
            callback=_use_token_of,
            expose_value=False,
        ),
    ] = None,
) -> None:
    """The option of all commands that have a URL (`flowguard.cli.plugins`)."""


def _read_json(answer: IO[bytes]) -> Any:
    return json.loads(answer.read(ANSWER_BYTES_MAX))


def ask(
    url: str,
    path: str,
    body: object = None,
    patience_s: float = PATIENCE_S,
    read: Callable[[IO[bytes]], Any] = _read_json,
) -> tuple[int, Any]:
    """Return status code and JSON of `GET url/path`, or of a POST with `body`; raises NoAnswer.

    `read` reads the answer, and raises ValueError if it is not that of flowguard.
    """
    if "://" not in url:
        url = f"http://{url}"
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else dict(POST_HEADERS)
    if token := os.environ.get(TOKEN):
        if not _is_token(token):  # An error of the library would show it.
            raise NoAnswer(f"{url}: {TOKEN} is not a line of ASCII text")
        headers["Authorization"] = f"Bearer {token}"
    # Proxies of the environment are ignored, because they would look for the broker elsewhere.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}{path}", data, headers)
        with opener.open(request, timeout=patience_s) as answer:
            return answer.status, read(answer)
    except urllib.error.HTTPError as error:
        with error:
            said = _json_or_nothing(error.read(ANSWER_BYTES_MAX))
        if error.code in NOT_NOW and isinstance(said, dict):
            raise NoAnswer(f"{url}: {said.get('error')}", error.code) from error
        return error.code, said
    except urllib.error.URLError as error:
        reason = error.reason
        text = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
        answer = NoAnswer(f"{url}: {text}")
        answer.refused = isinstance(reason, ConnectionRefusedError)
        raise answer from error
    except (OSError, HTTPException) as error:
        raise NoAnswer(f"{url}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"{url}: this is no HTTP port of flowguard ({error})") from error


def _json_or_nothing(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


@contextmanager
def needs_answer(command: str, option: str = "--url http://HOST:PORT") -> Iterator[None]:
    """End the command if there is no answer; if none came, print the `option` that selects another
    broker."""
    try:
        yield
    except NoAnswer as error:
        if error.code is not None:
            hint = HINTS.get(error.code, "")
            raise refused(f"flowguard {command}: {error}", hint) from error
        raise refused(
            f"flowguard {command}: no answer from {error}",
            "Is a broker running? It prints `http on URL` when it starts; name that URL:\n"
            f"flowguard {command} {option}",
        ) from error

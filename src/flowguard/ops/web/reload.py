"""`POST /reload`: a running broker reloads certificates, users, keys and rules.

Like a backup, it is for this machine only, because the files are on this machine.
"""

from collections.abc import Awaitable, Callable
from typing import NotRequired

from typing_extensions import TypedDict

from flowguard.errors import ConfigError
from flowguard.ops.web.callers import audit
from flowguard.ops.web.http_connection import Request, Response, json_response


class Reloaded(TypedDict):
    """The answer: the number of reloaded items of each kind."""

    certificates: int
    """Certificates of listeners."""
    users: int
    keys: int
    """Keys of tokens."""
    roles: int
    limits: NotRequired[list[str]]
    """Keys of limits that a proxy has changed."""
    needs_restart: list[str]
    """Keys of settings that have changed since the start; they apply after a restart."""


Reload = Callable[[], Awaitable[Reloaded]]
"""Reloads all files; raises `ConfigError`, and then nothing has changed."""


async def reload_response(reload: Reload, request: Request) -> Response:
    """Return 200 with what was read, or 409 if a file is invalid."""
    try:
        response = json_response(await reload())
    except ConfigError as error:
        response = json_response({"error": str(error)}, 409)
    return audit(request, response)

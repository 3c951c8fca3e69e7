"""`POST /reload`: a running broker reads certificates, users, keys and rules anew.

For this machine only, like a copy of the store: whoever may write these files is here.
"""

from collections.abc import Awaitable, Callable

from typing_extensions import TypedDict

from flowguard.errors import ConfigError
from flowguard.ops.web.callers import refusal_of_change
from flowguard.ops.web.http_connection import Request, Response, json_response


class Reloaded(TypedDict):
    """The answer: what was read anew."""

    certificates: int
    """Of listeners."""
    users: int
    keys: int
    """Of tokens."""
    roles: int
    needs_restart: list[str]
    """Settings that are others than at the start, by their keys: they hold from the next one."""


Reload = Callable[[], Awaitable[Reloaded]]
"""Reads everything anew; raises `ConfigError`, and then nothing has changed."""


async def reload_response(reload: Reload, request: Request) -> Response:
    """200 with what was read; 403: the peer may not ask; 409: a file is wrong, nothing changed."""
    refusal = refusal_of_change(request)
    if refusal is not None:
        return refusal
    try:
        return json_response(await reload())
    except ConfigError as error:
        return json_response({"error": str(error)}, 409)

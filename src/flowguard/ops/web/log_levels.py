"""`GET /log` and `POST /log`: levels of the log, while the broker runs.

A level holds until the broker ends. Only callers of this machine may change it.
"""

import json

from flowguard.broker.logs import levels
from flowguard.ops.web.callers import audit, refusal_of_change
from flowguard.ops.web.http_connection import HttpConnection, Request, Response, json_response

WANTED = 'a body of JSON: {"kind": "clients", "level": "debug"}'


def levels_response() -> Response:
    """Return the level of each kind of events."""
    return json_response(dict(levels.levels()))


async def change_level(
    request: Request, connection: HttpConnection
) -> tuple[Response, tuple[str, str] | None]:
    """Return the response and, if a level has changed, its kind and level.

    The response is 200 with all levels, 400 for an unknown kind or level, or 403 for other callers.
    """
    refusal = refusal_of_change(request)
    if refusal is not None:
        return refusal, None
    try:
        asked = json.loads(await connection.body())
        kind, level = str(asked["kind"]), str(asked["level"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return json_response({"error": WANTED}, 400), None
    try:
        levels.change(kind, level)
    except ValueError as error:
        return json_response({"error": str(error)}, 400), None
    return audit(request, levels_response(), kind=kind, level=level), (kind, level)

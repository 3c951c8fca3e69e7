"""`GET /log` and `POST /log`: levels of the log, while the broker runs.

A level holds until the broker ends. Only callers of this machine may change it.
"""

from typing import Final

from typing_extensions import TypedDict

from flowguard.broker.logs import levels
from flowguard.ops.web.callers import audit
from flowguard.ops.web.http_connection import (
    HttpConnection,
    Request,
    Response,
    form_of,
    json_response,
)

WANTED: Final = '{"kind": "clients", "level": "debug"}'


class _Level(TypedDict):
    kind: str
    level: str


def levels_response() -> Response:
    """Return the level of each kind of events."""
    return json_response(dict(levels.levels()))


async def change_level(
    request: Request, connection: HttpConnection
) -> tuple[Response, tuple[str, str] | None]:
    """Return the response and, if a level has changed, its kind and level.

    The response is 200 with all levels, or 400 for an unknown kind or level. Raises BadRequest.
    """
    asked = form_of(await connection.body(), _Level, WANTED)
    kind, level = asked["kind"], asked["level"]
    try:
        levels.change(kind, level)
    except ValueError as error:
        return json_response({"error": str(error)}, 400), None
    return audit(request, levels_response(), kind=kind, to=level), (kind, level)

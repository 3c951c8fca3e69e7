"""`POST /drain`: the broker disconnects its clients over a time, then ends.

Other machines need the token, as for `ops.web.ask.changes`. It is a log event `audit`.
"""

from collections.abc import Callable
from typing import Annotated, Final

from pydantic import Field
from typing_extensions import TypedDict

from flowguard.ops.web.callers import audit
from flowguard.ops.web.http_connection import (
    HttpConnection,
    Request,
    Response,
    form_of,
    json_response,
)

OVER_MAX_S: Final = 86_400
WANTED: Final = f'{{"over_s": 0 to {OVER_MAX_S}}}, in seconds'

Drain = Callable[[float], bool]
"""Begins to drain over a time in seconds; False if the broker drains already."""


class _Over(TypedDict):
    over_s: Annotated[float, Field(ge=0, le=OVER_MAX_S)]


async def drain_response(drain: Drain, request: Request, connection: HttpConnection) -> Response:
    """Return 200, or 409 during a drain. Raises BadRequest."""
    over_s = form_of(await connection.body(), _Over, WANTED)["over_s"]
    began = drain(over_s)
    answer = {"over_s": over_s} if began else {"error": "the broker drains already"}
    return audit(request, json_response(answer, 200 if began else 409), over_s=over_s)

"""`POST /drain`: the broker disconnects its clients over a time, then ends.

Other machines need the token, as for `ops.web.clients`. It is a log event `audit`.
"""

import json
from collections.abc import Callable
from math import isfinite
from typing import Final

from flowguard.ops.web.callers import audit, refusal_of_change
from flowguard.ops.web.http_connection import HttpConnection, Request, Response, json_response

OVER_MAX_S: Final = 86_400
WANTED: Final = f'a body of JSON: {{"over_s": 0 to {OVER_MAX_S}}}, in seconds'

Drain = Callable[[float], bool]
"""Begins to drain over a time in seconds; False if the broker drains already."""


async def drain_response(
    drain: Drain, request: Request, connection: HttpConnection, *, with_token: bool
) -> Response:
    """Return 200, 400 for another body, 403 for callers that may not, 409 during a drain."""
    refusal = refusal_of_change(request, with_token=with_token)
    if refusal is not None:
        return refusal
    over_s = over_s_of(await connection.body())
    if over_s is None:
        return json_response({"error": WANTED}, 400)
    began = drain(over_s)
    answer = {"over_s": over_s} if began else {"error": "the broker drains already"}
    return audit(request, json_response(answer, 200 if began else 409), over_s=over_s)


def over_s_of(body: bytes) -> float | None:
    """Return the time that `body` names, or None."""
    try:
        over_s = float(json.loads(body)["over_s"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return over_s if isfinite(over_s) and 0 <= over_s <= OVER_MAX_S else None

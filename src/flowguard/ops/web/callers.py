"""Callers of the HTTP port: which may read, and which may make changes.

It rejects two kinds of callers: other machines without a token, and foreign web pages in a local
browser. A browser sends requests for any page, and names the page's origin: in `Origin` [RFC 6454,
7] and, with every request to this machine, in `Sec-Fetch-Site` [Fetch Metadata]. Another port of
this machine is another origin.
"""

from base64 import b64decode
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from typing import Final

import structlog

from flowguard.ops.web.http_connection import Request, Response, json_response

log = structlog.get_logger()

CSRF_HEADER: Final = "x-flowguard"
"""A header that no form can send, and that a script can send only to its own site."""
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
PAGE: Final = "/"
EVENTS: Final = "/events"
TRACE: Final = "/trace"
OF_THE_PAGE: Final = (PAGE, EVENTS, TRACE)
"""Paths that other machines can only read with a token, even if the rest is open to them."""
THERE_IS: Final = "GET / (the page), "
"""Begin of the answer to an unknown path, which lists all paths."""
CHALLENGE: Final = 'Basic realm="flowguard", charset="UTF-8"'
"""Makes a browser ask for a password, which is the token; the user name is ignored."""


def refusal_of_change(request: Request, *, with_token: bool = False) -> Response | None:
    """Return 403 for a caller that may not make changes, or None.

    `with_token`: callers of other machines have shown a token, and may make this change.
    """
    if not is_from_here(request) and not with_token:
        return json_response({"error": "only requests from this machine may do this"}, 403)
    if request.headers.get(CSRF_HEADER) != "1":
        return json_response(
            {"error": "a request that changes something needs the header X-Flowguard: 1"}, 403
        )
    return None


def caller_of(request: Request) -> str:
    """Return the caller for the audit."""
    if request.caller or is_from_here(request):
        return request.caller or request.peer
    return f"{request.peer}, with the token"


def audit(request: Request, response: Response, **what: object) -> Response:
    """Log a change that a caller asked for, with its outcome; return the response."""
    log.info(
        "audit",
        action=request.path.removeprefix("/"),
        **what,
        by=caller_of(request),
        status=response.code,
    )
    return response


def is_from_here(request: Request) -> bool:
    """True if it comes from this machine, and not through a proxy that names another client."""
    if any(name in request.headers for name in FORWARDED):
        return False
    address = ip_address(request.peer)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def refusal_of_origin(request: Request) -> Response | None:
    """Return 403 for a request of a page of another origin, or None.

    A link to the page itself may be followed from anywhere. The user sees it then, but the linking
    page cannot read it (`ops.web.page`).
    """
    headers = request.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_foreign = origin is not None and origin.partition("://")[2] != headers.get("host")
    followed = headers.get("sec-fetch-mode") == "navigate" and request.path == PAGE
    if is_foreign or (site not in ("none", "same-origin") and not followed):
        return json_response({"error": "a web page of another origin gets nothing here"}, 403)
    return None


def refusal_of_stranger(request: Request, token: bytes | None) -> Response | None:
    """Return 401 for another machine without the token, or None if the caller may read.

    If no token is configured, the page is for this machine only (403), and the rest is open to all
    callers that reach the port.
    """
    if is_from_here(request):
        return None
    if token is not None:
        if compare_digest(_said(request.headers.get("authorization", "")), token):
            return None
        return json_response({"error": "a token is wanted"}, 401, www_authenticate=CHALLENGE)
    if request.path in OF_THE_PAGE:
        why = "this is for this machine; others need a token: http.token_file"
        return json_response({"error": why}, 403)
    return None


def _said(authorization: str) -> bytes:
    """Return the token of `Bearer TOKEN`, or the password of `Basic` [RFC 6750, 2.1; RFC 7617]."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")
    if scheme.lower() != "basic":
        return b""
    try:
        return b64decode(value, validate=True).partition(b":")[2]
    except ValueError:
        return b""

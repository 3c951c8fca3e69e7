"""Callers of the HTTP port: who may read, and who may change something.

Two kinds of callers are kept out: other machines, without a token, and web pages of others that
somebody's browser shows. A browser sends its requests wherever a page wants, and says for which
page: `Origin` [RFC 6454, 7] and, with every request to this machine, `Sec-Fetch-Site` [Fetch
Metadata]. Another port of this machine is another origin.
"""

from base64 import b64decode
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from typing import Final

from flowguard.ops.web.http_connection import Request, Response, json_response

CSRF_HEADER: Final = "x-flowguard"
"""A header that no form can send, and a script only to the site that it is from."""
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
PAGE: Final = "/"
EVENTS: Final = "/events"
OF_THE_PAGE: Final = (PAGE, EVENTS)
"""Paths that other machines get with a token only, even where the rest is open to them."""
CHALLENGE: Final = 'Basic realm="flowguard", charset="UTF-8"'
"""Makes a browser ask for a password: the token. The user name is not looked at."""


def refusal_of_change(request: Request) -> Response | None:
    """403 for who may not ask for a change; None: it may."""
    if not is_from_here(request):
        return json_response({"error": "only requests from this machine may do this"}, 403)
    if request.headers.get(CSRF_HEADER) != "1":
        return json_response(
            {"error": "a request that changes something needs the header X-Flowguard: 1"}, 403
        )
    return None


def is_from_here(request: Request) -> bool:
    """Whether it comes from this machine, and not through a proxy that names another client."""
    if any(name in request.headers for name in FORWARDED):
        return False
    address = ip_address(request.peer)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def refusal_of_origin(request: Request) -> Response | None:
    """403 for what a page of another origin asks; None: nothing says so.

    A link to the page itself may be followed from anywhere: whoever follows it looks at it, and no
    other page can (`ops.web.page`).
    """
    headers = request.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_foreign = origin is not None and origin.partition("://")[2] != headers.get("host")
    followed = headers.get("sec-fetch-mode") == "navigate" and request.path == PAGE
    if is_foreign or (site not in ("none", "same-origin") and not followed):
        return json_response({"error": "a web page of another origin gets nothing here"}, 403)
    return None


def refusal_of_stranger(request: Request, token: bytes | None) -> Response | None:
    """401 for who comes from another machine and does not say the token; None: it may read.

    Without a token the page is for this machine only (403), the rest for whoever reaches the port.
    """
    if is_from_here(request):
        return None
    if token is not None:
        if compare_digest(_said(request.headers.get("authorization", "")), token):
            return None
        return json_response({"error": "a token is wanted"}, 401, www_authenticate=CHALLENGE)
    if request.path in OF_THE_PAGE:
        why = "the page is for this machine; others need a token: http.token_file"
        return json_response({"error": why}, 403)
    return None


def _said(authorization: str) -> bytes:
    """The token in `Bearer TOKEN`, or in `Basic` as the password [RFC 6750, 2.1; RFC 7617]."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")
    if scheme.lower() != "basic":
        return b""
    try:
        return b64decode(value, validate=True).partition(b":")[2]
    except ValueError:
        return b""

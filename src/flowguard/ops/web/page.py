"""The page: one document with its style and script, which sends requests to this port only.

The policy allows the browser only this script and style, by their digests, whatever a client id or
a topic contains. No other page may show it in a frame.
"""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Final

from flowguard.ops.web.http_connection import Response

HERE: Final = Path(__file__).parent
HTML_TYPE: Final = "text/html; charset=utf-8"


@cache
def page_response() -> Response:
    style, script = (_text(name) for name in ("page.css", "page.js"))
    body = Template(_text("page.html")).substitute(style=style, script=script)
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    headers = (
        ("content-security-policy", policy),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    )
    return Response(200, body.encode(), HTML_TYPE, headers)


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

"""The page: one document with its style and script, which sends requests to this port only.

The policy allows the browser only this script and style, by their digests, whatever a client id or
a topic contains. No other page may show it in a frame.
"""

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from flowguard.ops.common.measurement import Measurement
from flowguard.ops.web.http_connection import Response

HERE: Final = Path(__file__).parent
HTML_TYPE: Final = "text/html; charset=utf-8"


@cache
def page_response() -> Response:
    style, script = _text("page.css"), _text("page_clients.js") + _text("page.js")
    body = Template(_text("page.html")).substitute(style=style, script=script)
    policy = (
        f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; "
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


def help_response(catalogue: Sequence[Measurement[Any]], paths: str) -> Response:
    """Return the meaning of each metric, and the paths of this port."""
    style = _text("page.css")
    rows = "".join(
        f"<tr><th scope=row>flowguard_{each.metric}<td>{escape(each.help)}"
        for each in catalogue
        if each.metric
    )
    body = (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>flowguard: help</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<style>{style}</style><main class="help"><h1>What the figures mean</h1>'
        f'<p><a href="./">Back to the page</a>. This port also answers {escape(paths)}.</p>'
        f"<table>{rows}</table></main>"
    )
    policy = f"default-src 'none'; style-src {digest(style)}; frame-ancestors 'none'"
    return Response(200, body.encode(), HTML_TYPE, (("content-security-policy", policy),))


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """Return the word of a policy that allows this style or script."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

"""`POST /backup`: a copy of the store of a running broker.

It writes on this machine's disk, so it is for this machine only: not for others, not for a proxy on
this one that asks for others, and not for a web page that somebody here has open.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flowguard.errors import StoreError

BODY_BYTES_MAX: Final = 16 * 1024
JSON_TYPE: Final = "application/json"
"""Which no web page can send to another site without being asked whether it may."""
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
Backup = Callable[[Path], Awaitable[None]]
"""Makes a copy in a new folder; raises `StoreError`."""


async def back_up(request: Request, backup: Backup) -> Response:
    """200 with the folder; 400: it names none; 403: who asks is elsewhere; 409: why there is none.

    A peer that does not wait gets its copy all the same.
    """
    if not is_from_here(request):
        return JSONResponse({"error": "only for who asks from this machine"}, 403)
    folder = await _folder_of(request)
    if folder is None:
        body = {"error": f'{JSON_TYPE}: {{"folder": "an absolute path"}}'}
        return JSONResponse(body, 400)
    try:
        await backup(folder)
    except StoreError as error:
        return JSONResponse({"error": str(error)}, 409)
    return JSONResponse({"folder": str(folder)})


def is_from_here(request: Request) -> bool:
    """From this machine, and not through a proxy that says for whom it asks."""
    if request.client is None or any(name in request.headers for name in FORWARDED):
        return False
    address = ip_address(request.client.host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


async def _folder_of(request: Request) -> Path | None:
    """What the body names; None: nothing that a folder could be made as."""
    if request.headers.get("content-type") != JSON_TYPE:
        return None
    body = b""
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                return None
    try:
        asked = json.loads(body)
    except ValueError:
        return None
    name = asked.get("folder") if isinstance(asked, dict) else None
    if not isinstance(name, str) or "\0" in name or not Path(name).is_absolute():
        return None
    try:
        name.encode()
    except UnicodeEncodeError:
        return None  # JSON can spell half a character, which no folder can be called.
    return Path(name)

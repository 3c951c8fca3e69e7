"""`POST /backup`: a copy of the store of a running broker.

It writes to this machine's disk, so it rejects other machines, proxies that forward their requests,
and web pages in a browser on this machine. All commits wait during a copy, so only one runs at a
time, with a pause after each.
"""

from collections.abc import Awaitable, Callable
from math import ceil
from pathlib import Path
from typing import Annotated, final

from pydantic import AfterValidator
from typing_extensions import TypedDict

from flowguard.errors import StoreError
from flowguard.ops.web.callers import audit
from flowguard.ops.web.http_connection import (
    HttpConnection,
    Request,
    Response,
    form_of,
    json_response,
)

Backup = Callable[[Path], Awaitable[None]]
"""Copies the store to a new folder; raises `StoreError`."""


def _absolute(name: str) -> str:
    if "\0" in name or not Path(name).is_absolute():
        raise ValueError(name)
    return name


class _Folder(TypedDict):
    folder: Annotated[str, AfterValidator(_absolute)]


@final
class Backups:
    """Answers requests for copies; runs one at a time."""

    def __init__(self, backup: Backup, clock: Callable[[], float], interval_s: float) -> None:
        self._backup = backup
        self._clock = clock
        self._interval_s = interval_s
        self._is_under_way = False
        self._free_at_s = clock()

    async def answer(self, request: Request, connection: HttpConnection) -> Response:
        """Return 200 with the folder, 409 with the reason if no copy was made, or 429 if it is too
        soon.

        The copy is made even if the peer does not wait. Raises BadRequest.
        """
        folder = folder_of(await connection.body())
        wait_s = self._free_at_s - self._clock()
        if self._is_under_way or wait_s > 0:
            return self._too_soon(max(1, ceil(wait_s)))
        self._is_under_way = connection.is_served = True
        try:
            await self._backup(folder)
        except StoreError as error:
            return audit(request, json_response({"error": str(error)}, 409), folder=str(folder))
        finally:
            self._is_under_way = connection.is_served = False
            self._free_at_s = self._clock() + self._interval_s
        return audit(request, json_response({"folder": str(folder)}), folder=str(folder))

    def _too_soon(self, wait_s: int) -> Response:
        why = (
            "a copy is being made, and there is one at a time"
            if self._is_under_way
            else f"between two copies are {self._interval_s:g} s (http.backup_interval_s): "
            f"ask again in {wait_s} s"
        )
        return json_response({"error": why}, 429, retry_after=str(wait_s))


def folder_of(body: bytes) -> Path:
    """Return the folder that `body` names. Raises BadRequest."""
    return Path(form_of(body, _Folder, '{"folder": "an absolute path"}')["folder"])

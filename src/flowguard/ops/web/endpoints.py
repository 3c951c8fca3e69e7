"""The answers of the HTTP port to read requests; each is made in one synchronous step."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, final

from prometheus_client.exposition import choose_encoder

from flowguard.ops.common.view import Subject
from flowguard.ops.metrics import registry_of
from flowguard.ops.status import status_at
from flowguard.ops.web.callers import PAGE, THERE_IS
from flowguard.ops.web.http_connection import Request, Response, json_response, text_response
from flowguard.ops.web.log_levels import levels_response
from flowguard.ops.web.page import help_response, page_response

HEALTH: Final = "/health"
READY: Final = "/ready"
PROBES: Final = (HEALTH, READY)
"""Paths that need no token and never wait."""
BACKUP: Final = "/backup"
RELOAD: Final = "/reload"
LOG: Final = "/log"
LOCAL_CHANGES: Final = (BACKUP, RELOAD, LOG)
"""Changes that only callers of this machine may make, with or without a token."""
HELP: Final = "/help"
ICON: Final = "/favicon.ico"
NO_ICON: Final = Response(204, b"", "image/x-icon")
DRAIN: Final = "/drain"
EXPLAIN: Final = "/explain/"
READS: Final = ("GET", "HEAD")


def there_is(reads: Iterable[str], changes: Iterable[str]) -> dict[str, str]:
    """Return the answer to an unknown path."""
    return {"error": f"{THERE_IS}{', '.join(reads)}; POST {', '.join(changes)}"}


@final
class Endpoints:
    """Reads the node between two turns of its event loop."""

    def __init__(
        self,
        view: Subject,
        reads: Collection[str],
        changes: Collection[str],
        origins: Mapping[str, str] | None = None,
    ) -> None:
        """`reads` and `changes`: paths for GET and POST requests, answered elsewhere. `origins`:
        the file, variable or option of each setting that has one."""
        self._view = view
        self._reads = reads
        self._changes = changes
        own = ("/metrics", "/status", "/limits", HELP, f"{EXPLAIN}CLIENT_ID", HEALTH, READY, LOG)
        self._there_is = there_is((*own, *reads), changes)
        self._origins = origins or {}
        self._registry = registry_of(view)
        self._answers = {
            PAGE: lambda _: page_response(),
            "/metrics": self._metrics,
            "/status": self._status,
            "/limits": self._limits,
            ICON: lambda _: NO_ICON,
            HELP: lambda _: help_response(view.catalogue, self._there_is["error"]),
            LOG: lambda _: levels_response(),
            HEALTH: self.probe,
            READY: self.probe,
        }

    def answer(self, request: Request) -> Response:
        """Return the answer; 404 for an unknown path, 405 for another method."""
        answer = self._answers.get(request.path)
        if request.path.startswith(EXPLAIN):
            answer = self._explain
        if answer is None and request.path not in (*self._reads, *self._changes):
            return json_response(self._there_is, 404)
        if answer is None or request.method not in READS:
            allowed = "POST" if request.path in self._changes else ", ".join(READS)
            return json_response(self._there_is, 405, allow=allowed)
        return answer(request)

    def probe(self, request: Request) -> Response:
        """Return that the loop runs (`/health`), or whether the node takes clients (`/ready`)."""
        if request.path == HEALTH:
            return text_response("alive")
        why = self._view.not_ready()
        return text_response(f"not ready: {why}", 503) if why else text_response("ready")

    def _metrics(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(200, encode(self._registry), content_type)

    def _status(self, _: Request) -> Response:
        return json_response(status_at(self._view.catalogue, self._view.look()))

    def _limits(self, _: Request) -> Response:
        """Return the settings in force with a value, each with its origin."""
        bounds = self._view.bounds
        found: dict[str, dict[str, object]] = {}
        for section in ("flow", "session", "node"):
            asked = getattr(bounds.asked, section).model_dump(mode="json")
            for name, value in getattr(bounds.settings, section).model_dump(mode="json").items():
                key = f"{section}.{name}"
                given = self._origins.get(key, "default")
                origin = given if asked[name] == value else "computed from the memory limit"
                if value is not None:
                    found[key] = {"value": value, "origin": origin}
        return json_response(found)

    def _explain(self, request: Request) -> Response:
        client_id = request.path.removeprefix(EXPLAIN)  # It may contain a slash.
        explanation = self._view.explained(client_id)
        if explanation is None:
            return json_response({"error": "no session of this client here"}, 404)
        return json_response(explanation, 404 if "error" in explanation else 200)

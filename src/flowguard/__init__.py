"""flowguard: an MQTT 5.0 and 3.1.1 broker that stays stable under overload.

Every client has a window of work in process, which shrinks as the node's load grows. A client at
its limit is not read until work is done, and a client that cannot be accepted is rejected with a
reason. Only `broker` and the packages above it use trio. All others are plain synchronous Python:
bytes and time in, decisions out.

`open_broker` and `run_broker` run a broker inside another program (docs/operate/embedding.md).
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PLACES = {"open_broker": "flowguard.app.embedded", "run_broker": "flowguard.app.in_thread"}


def __getattr__(name: str) -> Any:
    """Import functions on demand, so that importing `flowguard.flow` does not import trio."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)

"""flowguard: an MQTT 5.0 and 3.1.1 broker that stays itself under overload.

Every client has a window of work in process, which shrinks as the node's load grows; whoever is at
its limit is not read until work is done, and who cannot be taken in is told so. Below `broker`, the
only room with trio, all of it is plain synchronous Python: bytes and time in, decisions out.

`open_broker` and `run_broker` are a broker inside another program (docs/operate/embedding.md).
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PLACES = {"open_broker": "flowguard.app.embedded", "run_broker": "flowguard.app.in_thread"}


def __getattr__(name: str) -> Any:
    """Imported when they are asked for: whoever wants `flowguard.flow` needs no trio."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)

"""Layers (`flowguard.broker.layers.layer`) for tests."""

from typing import Any

BROKEN_AT = [
    ("made", True),
    ("recv", False),
    ("recv", True),
    ("send", True),
    ("flush", True),
    ("shutdown", True),
]
"""The place at which a `BrokenLayer` fails, and True if its handshake is complete."""


class BrokenLayer:
    """A layer that adds nothing to its socket, and fails at one of the methods."""

    identity = None

    def __init__(self, sock: Any, method: str, established: bool) -> None:
        self._sock = sock
        self._method = method
        self.established = self.begun = established
        self._meet("made")

    def _meet(self, method: str) -> None:
        if method == self._method:
            raise LookupError(method)

    def flush(self) -> bool:
        self._meet("flush")
        return True

    def __getattr__(self, name: str) -> Any:
        self._meet(name)
        return getattr(self._sock, name)

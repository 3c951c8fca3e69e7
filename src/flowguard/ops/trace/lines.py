"""TraceLines: the lines of one trace that wait for its reader, bounded in number and in bytes."""

import json
import re
from collections import deque
from collections.abc import Mapping
from fnmatch import translate
from typing import Final, final

LINES_MAX: Final = 500
BYTES_MAX: Final = 256 * 1024
"""Bounds of the lines that wait; further ones are dropped and counted."""


@final
class TraceLines:
    """One trace: the client ids that it is for, and its lines."""

    def __init__(self, pattern: str, payload_max: int) -> None:
        """`pattern`: a client id, or a pattern with * and ?; `payload_max`: bytes of each payload
        that are shown, or 0."""
        self.pattern = pattern
        self.payload_max = payload_max
        self._matches = re.compile(translate(pattern)).match
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._unwritten = 0
        """Dropped lines since `take`."""
        self.dropped = 0
        """Dropped lines, in all."""
        self.untraced = 0
        """Connections that it is for, but that were too many to be traced."""
        self.error: Exception | None = None
        """The error that ends it, or None."""

    def is_for(self, client_id: str) -> bool:
        return client_id == self.pattern or self._matches(client_id) is not None

    @property
    def is_exact(self) -> bool:
        """True if the pattern matches only one client id."""
        return not any(char in self.pattern for char in "*?[")

    def has_room(self) -> bool:
        """Return True if a line may be put; otherwise count it as dropped."""
        if len(self._waiting) < LINES_MAX and self._waiting_bytes < BYTES_MAX:
            return True
        self.dropped += 1
        self._unwritten += 1
        return False

    def put(self, at_s: float, event: str, client_id: str, fields: Mapping[str, object]) -> None:
        """Add a line, for which `has_room` was true."""
        self._append({"at_s": at_s, "event": event, "client_id": client_id, **fields})

    def _append(self, line: Mapping[str, object]) -> None:
        data = json.dumps(line).encode() + b"\n"
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def take(self, at_s: float) -> bytes:
        """Return all waiting lines and one with the number of dropped ones, and remove them."""
        if self._unwritten:
            count, self._unwritten = self._unwritten, 0
            self._append({"at_s": at_s, "event": "dropped lines", "lines": count})
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return data

"""`python -m benchmarks.ungated serve ...`: flowguard without its gate for handshakes, a control.

Whatever comes of a handshake is worked on when it is read, as by brokers that have no such gate.
Only in pure Python: the compiled rooms are not open to this.
"""

from typing import Any

from flowguard.__main__ import run
from flowguard.broker.sockets.socket_set import SocketSet


def _read_at_once(_: SocketSet[Any], __: object) -> bool:
    return False


SocketSet.is_left_unread = _read_at_once  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    run()

"""Sockets between workers, in a loop of the test."""

import errno
import os
import select
from pathlib import Path
from socket import socket

from structlog.testing import capture_logs

from flowguard.broker.sockets.other_sockets import OtherSockets
from flowguard.broker.workers.unix_sockets import WorkerListener, connect_unix, listen_unix


def test_listener_without_a_watch_for_a_connection_rests_until_the_tick(tmp_path: Path) -> None:
    taken: list[socket] = []
    failures = 2

    def take(sock: socket) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.append(sock)

    with select.epoll() as epoll, capture_logs() as lines:
        others = OtherSockets(epoll)
        listener = WorkerListener(listen_unix(tmp_path / "socket"), others, take)
        for _ in range(2):
            client = connect_unix(tmp_path / "socket")
            assert client is not None
            listener.tick()
            serve(epoll, others)
            with client:
                assert client.recv(1) == b""
        waiting = connect_unix(tmp_path / "socket")
        assert waiting is not None
        assert epoll.poll(0) == []
        listener.tick()
        serve(epoll, others)
        listener._sock.close()
    (accepted,) = taken
    with accepted, waiting:
        waiting.send(b"x")
        assert accepted.recv(1) == b"x"
    assert [line["event"] for line in lines] == ["worker connection not accepted"]


def serve(epoll: select.epoll, others: OtherSockets) -> None:
    for fd, _ in epoll.poll(0):
        assert others.serve(fd)

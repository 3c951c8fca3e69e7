"""Frames with descriptors, over real sockets."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket, socketpair

import pytest

from flowguard.broker.workers.fd_frames import (
    NO_DESCRIPTOR,
    READS_MAX,
    FdFrame,
    FdFrameReader,
    frame_bytes,
    send_fd,
)

BYTES_MAX = 1_000_000


@contextmanager
def channel() -> Iterator[tuple[socket, FdFrameReader]]:
    ours, theirs = socketpair()
    reader = FdFrameReader(theirs, BYTES_MAX)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, reader
    reader.close()


def send(sock: socket, reader: FdFrameReader, data: bytes, fd: int) -> list[FdFrame]:
    """Send a frame whatever its size; return the frames that arrive meanwhile."""
    rest = frame_bytes({"size": len(data)}, data)
    found: list[FdFrame] = []
    while not (sent_bytes := send_fd(sock, rest, fd)):
        found += reader.read() or []
    rest = rest[sent_bytes:]
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            found += reader.read() or []
    return found


def read_all(reader: FdFrameReader, count: int) -> list[FdFrame]:
    found: list[FdFrame] = []
    while len(found) < count:
        found += reader.read() or []
    return found


def test_each_frame_keeps_its_descriptor() -> None:
    sizes = [0, 10, 500_000, 3, 70_000, 1]
    pipes = [os.pipe() for _ in sizes]
    with channel() as (ours, reader):
        found: list[FdFrame] = []
        for size, (end, _) in zip(sizes, pipes, strict=True):
            found += send(ours, reader, bytes(size), end)
        found += read_all(reader, len(sizes) - len(found))
    assert [len(frame.data) for frame in found] == sizes
    assert [frame.head["size"] for frame in found] == sizes
    for number, (frame, (end, other)) in enumerate(zip(found, pipes, strict=True)):
        os.write(other, bytes((number,)))
        assert os.read(frame.fd, 1) == bytes((number,))
        for fd in (frame.fd, end, other):
            os.close(fd)


def test_full_socket_takes_no_descriptor() -> None:
    with channel() as (ours, reader):
        count = 0
        while send_fd(ours, frame_bytes({}, bytes(1_000)), ours.fileno()):
            count += 1
        found = read_all(reader, count)
    assert len(found) == count
    for frame in found:
        os.close(frame.fd)


def test_frame_without_a_free_descriptor_is_marked() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with channel() as (ours, reader):
        send(ours, reader, b"a", ours.fileno())
        send(ours, reader, b"b", ours.fileno())
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            first = reader.read()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        (second,) = read_all(reader, 1)
    assert first is not None
    assert [frame.fd for frame in first] == [NO_DESCRIPTOR]
    assert second.data == b"b"
    os.close(second.fd)


def test_damaged_sizes_are_rejected() -> None:
    with channel() as (ours, reader):
        ours.sendall(b"\xff" * 8)
        with pytest.raises(ValueError, match="a frame of"):
            reader.read()


def test_end_of_the_stream_closes_what_was_not_taken() -> None:
    read, write = os.pipe()
    with channel() as (ours, reader):
        send_fd(ours, frame_bytes({}, bytes(100))[:20], write)
        os.close(write)
        assert reader.read() == []
        ours.close()
        assert reader.read() is None
    assert os.read(read, 1) == b""  # The other end of the pipe is closed.
    os.close(read)


def test_one_read_returns_many_frames() -> None:
    with channel() as (ours, reader):
        for _ in range(READS_MAX + 1):
            assert send_fd(ours, frame_bytes({}, b""), ours.fileno())
        found = [reader.read() or [] for _ in range(2)]
    assert [len(frames) for frames in found] == [READS_MAX, 1]
    for frame in (*found[0], *found[1]):
        os.close(frame.fd)

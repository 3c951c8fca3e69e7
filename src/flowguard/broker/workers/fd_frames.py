"""Frames that carry one descriptor each, over a Unix socket: a head in JSON, and bytes.

    u32 size of the head, u32 size of the bytes, head, bytes

The descriptor comes with the first byte of its frame (unix(7), SCM_RIGHTS). One `recvmsg` returns
the descriptor of one frame at most: the kernel ends a read behind the data that brought one.
"""

import errno
import json
import os
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from socket import (
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_CTRUNC,
    MSG_NOSIGNAL,
    SCM_RIGHTS,
    SOL_SOCKET,
    socket,
)
from struct import Struct
from typing import Any, Final, final

SIZES: Final = Struct(">II")
READ_BYTES: Final = 64 * 1024
READS_MAX: Final = 16
"""Maximum number of frames per read of a reader."""
NO_DESCRIPTOR: Final = -1
SPACE_BYTES: Final = CMSG_SPACE(array("i").itemsize)
FULL: Final = (errno.EAGAIN, errno.ETOOMANYREFS)
"""The peer has not read yet; the second one concerns descriptors."""


@dataclass(frozen=True, slots=True)
class FdFrame:
    head: Mapping[str, Any]
    data: bytes
    fd: int
    """The descriptor, which the receiver must close, or NO_DESCRIPTOR if this process had none."""


def frame_bytes(head: Mapping[str, Any], data: bytes) -> bytes:
    text = json.dumps(head).encode()
    return SIZES.pack(len(text), len(data)) + text + data


def send_fd(sock: socket, data: bytes, fd: int) -> int:
    """Send the first bytes of a frame with its descriptor; return their number, or 0 if the peer
    takes nothing now. Raises OSError.
    """
    rights = (SOL_SOCKET, SCM_RIGHTS, array("i", [fd]))
    try:
        return sock.sendmsg([data], [rights], MSG_NOSIGNAL)
    except OSError as error:
        if error.errno in FULL:
            return 0
        raise


@final
class FdFrameReader:
    """Frames of one connection; descriptors that are not taken are closed by `close`."""

    def __init__(self, sock: socket, bytes_max: int) -> None:
        """`bytes_max` is the maximum size of a frame."""
        self._sock = sock
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    def read(self) -> list[FdFrame] | None:
        """Return frames that are complete, `READS_MAX` at most, or None at the end of the stream.

        Raises OSError, and ValueError for damaged frames.
        """
        for reads_count in range(READS_MAX):
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(
                    READ_BYTES, SPACE_BYTES, MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                break
            if not data:
                if reads_count:
                    break  # The next call finds the end again.
                return None
            self._buffer += data
            fds = array("i")
            for level, kind, rights in ancillary:
                if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
                    fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
            self._fds.extend(fds)
            if not fds and flags & MSG_CTRUNC:
                self._fds.append(NO_DESCRIPTOR)
                break  # The next frame may find a descriptor later.
        return self._frames()

    def _frames(self) -> list[FdFrame]:
        frames: list[FdFrame] = []
        while len(self._buffer) >= SIZES.size:
            head_bytes, data_bytes = SIZES.unpack_from(self._buffer)
            if head_bytes + data_bytes > self._bytes_max:
                raise ValueError(f"a frame of {head_bytes + data_bytes} bytes")
            start = SIZES.size + head_bytes
            end = start + data_bytes
            if len(self._buffer) < end:
                break
            head = json.loads(self._buffer[SIZES.size : start])
            data = bytes(self._buffer[start:end])
            del self._buffer[:end]
            frames.append(FdFrame(head, data, self._fds.popleft()))
        return frames

    def close(self) -> None:
        for fd in self._fds:
            if fd != NO_DESCRIPTOR:
                os.close(fd)
        self._fds.clear()

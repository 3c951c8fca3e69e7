"""The effects of a full disk on RocksDB, without filling one."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_size_limit(folder: Path, room_bytes: int = 65_536) -> Iterator[None]:
    """No file of this process may be larger than the largest of `folder` and `room_bytes`."""
    limit_bytes = max(path.stat().st_size for path in folder.iterdir()) + room_bytes
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

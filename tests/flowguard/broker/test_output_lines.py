"""Standard output and standard error: no reader, however slow, delays the caller."""

import os
from collections.abc import Iterator

import pytest
import structlog

from flowguard.broker.logs import output_lines
from flowguard.broker.logs.output_lines import LINES_BYTES_MAX, LINES_MAX, OutputLines

PIPE_BYTES = 64 * 1024


@pytest.fixture(autouse=True)
def other_configuration() -> Iterator[None]:
    """The log of other tests is as it was."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def log_to(lines: OutputLines) -> None:
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=lambda *_: lines
    )


def read_until_report(fd: int) -> list[bytes]:
    """The lines that were kept, and the report of those that were dropped."""
    found = b""
    while not (b"log lines dropped" in found and found.endswith(b"\n")):
        found += os.read(fd, PIPE_BYTES)
    return found.splitlines()


@pytest.mark.parametrize(
    "sizes_bytes",
    [2 * LINES_MAX * [10], 100 * [50_000], [10, 2 * LINES_BYTES_MAX, 10]],
    ids=["many", "large", "too large"],
)
def test_lines_beyond_the_bounds_are_dropped_and_counted_when_the_reader_stands_still(
    sizes_bytes: list[int],
) -> None:
    reader, writer = os.pipe()
    lines = OutputLines(writer)
    log_to(lines)
    full = bytes(PIPE_BYTES)
    assert os.write(writer, full) == PIPE_BYTES
    expected = []
    for number, size_bytes in enumerate(sizes_bytes):
        before = lines.dropped
        lines.msg(f"{number:<{size_bytes}}")
        if lines.dropped == before:
            expected.append(b"%d" % number)
        assert len(lines._lines) <= LINES_MAX
        assert lines._size_bytes <= LINES_BYTES_MAX
    dropped = lines.dropped
    assert dropped == len(sizes_bytes) - len(expected) > 0
    assert os.read(reader, PIPE_BYTES) == full
    *kept, report = read_until_report(reader)
    assert [line.split()[0] for line in kept] == expected
    assert f'"count": {dropped}' in report.decode()


@pytest.mark.parametrize("place", ["/dev/full", "a pipe without a reader"])
def test_lines_are_dropped_and_counted_when_they_cannot_be_written(place: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    fd = os.open(place, os.O_WRONLY) if place.startswith("/") else writer
    lines = OutputLines(fd)
    log_to(lines)
    for _ in range(3):
        lines.msg("x")
        lines.flush()
    assert lines.dropped == 3
    assert not lines._lines


def test_a_line_that_is_no_unicode_is_written() -> None:
    reader, writer = os.pipe()
    lines = OutputLines(writer)
    lines.msg("\ud800")
    lines.flush()
    assert os.read(reader, 100) == b"\\ud800\n"


def test_standard_streams_have_their_descriptors() -> None:
    assert (output_lines.STDOUT._fd, output_lines.STDERR._fd) == (1, 2)

"""A broker inside a program: its log events reach the program's loggers, and not its output."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
import structlog, trio
import flowguard
{before}
async def main():
    async with flowguard.open_broker() as broker:
        structlog.get_logger().warning("store unavailable", seconds=3)
        try:
            1 / 0
        except ZeroDivisionError:
            structlog.get_logger().exception("task failed")
trio.run(main)
"""
LOGGING = 'logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stderr)'
STRUCTLOG = "structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))"


def run(before: str) -> tuple[str, str]:
    words = [sys.executable, "-c", PROGRAM.format(before=before)]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    return ended.stdout, ended.stderr


@pytest.mark.slow
def test_events_reach_the_logger_of_the_program() -> None:
    output, errors = run(LOGGING)
    assert output == ""
    assert "flowguard WARNING store unavailable seconds=3\n" in errors
    assert "flowguard ERROR task failed\nTraceback" in errors


@pytest.mark.slow
def test_structlog_of_the_program_stays_in_force() -> None:
    output, errors = run(STRUCTLOG)
    assert output == ""
    assert "store unavailable" in errors
    assert "flowguard WARNING" not in errors

"""A real broker's HTTP port, and `flowguard` commands that ask it."""

from pathlib import Path

from tests.interop.broker import Broker
from tests.support.commands import flowguard

ANNOUNCEMENT = "http on http://"


def http_address(broker: Broker) -> str:
    """HOST:PORT, from the second line that the broker prints."""
    assert broker.process.stdout is not None
    line = broker.process.stdout.readline()
    assert line.startswith(ANNOUNCEMENT), line + Path(broker.log).read_text()
    return line.removeprefix(ANNOUNCEMENT).removesuffix("/\n")


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and complaints of `flowguard ARGUMENTS`."""
    code, stdout, stderr = flowguard(*arguments, environment={"COLUMNS": "100"})
    assert "Traceback" not in stderr, stderr
    return code, stdout, stderr

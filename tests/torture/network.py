"""A network of nodes in which the way between any two of them can be cut, without a notice.

Each node is in a network namespace of its own, with an address of its own. The process that makes
the network routes their packets, and is in a namespace itself: see `enter`. A rule of its routing
table drops the packets from one address to another (`blackhole`), or answers them with an error
(`unreachable`). That is what a lost line does: no proxy acknowledges what the other end never got.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.interop.broker import OURS
from tests.support.patience import HANG_S

INSIDE = "INSIDE_NETWORK_OF_TESTS"
REDIS = "10.77.0.1"
"""The address at which nodes reach Redis. Clients use other addresses, so they are never cut."""
PROGRAMS = ("unshare", "nsenter", "ip")
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")


def is_possible() -> bool:
    """Return True if this system lets a process make namespaces."""
    if not all(shutil.which(each) for each in PROGRAMS):
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def enter(module: str, arguments: Sequence[str]) -> None:
    """Start the module again in namespaces of its own, if this process is in none."""
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp(UNSHARE[0], [*UNSHARE, sys.executable, "-m", module, *arguments])


class Network:
    """Ways between nodes, each of which is named by its address."""

    def __init__(self, count: int) -> None:
        assert INSIDE in os.environ, "enter first"
        self._holders: list[subprocess.Popen[bytes]] = []
        self._cuts: dict[tuple[str, str], str] = {}
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _run("ip", "link", "set", "lo", "up")
        # Rules come before the table of this machine's own addresses, of which Redis has one.
        _run("ip", "rule", "add", "pref", "100", "lookup", "local")
        _run("ip", "rule", "del", "pref", "0")
        _run("ip", "addr", "add", f"{REDIS}/32", "dev", "lo")
        for index in range(count):
            self._join(index)

    def _join(self, index: int) -> None:
        own = os.stat("/proc/self/ns/net").st_ino
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._holders.append(holder)
        end_s = time.monotonic() + HANG_S
        while os.stat(f"/proc/{holder.pid}/ns/net").st_ino == own:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        inside = self._inside(index)
        names = ("name", "inner", "netns", str(holder.pid))
        _run("ip", "link", "add", f"outer{index}", "type", "veth", "peer", *names)
        _run("ip", "addr", "add", f"{_gate(index)}/24", "dev", f"outer{index}")
        _run("ip", "link", "set", f"outer{index}", "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "addr", "add", f"{self.host(index)}/24", "dev", "inner")
        _run(*inside, "ip", "link", "set", "inner", "up")
        _run(*inside, "ip", "route", "add", "default", "via", _gate(index))

    def _inside(self, index: int) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self._holders[index].pid), "-n")

    @staticmethod
    def host(index: int) -> str:
        return f"10.77.{index + 1}.1"

    def program(self, index: int) -> tuple[str, ...]:
        """Return the words with which a node begins in its namespace."""
        return (*self._inside(index), *OURS)

    def cut(self, source: str, target: str, *, refuses: bool = False) -> None:
        """Drop the packets of one address to another one; `refuses`: the source gets an error."""
        if (source, target) not in self._cuts:
            self._cuts[source, target] = "unreachable" if refuses else "blackhole"
            _run("ip", "rule", "add", *self._rule(source, target))

    def heal(self, source: str, target: str) -> None:
        if (source, target) in self._cuts:
            _run("ip", "rule", "del", *self._rule(source, target))
            del self._cuts[source, target]

    def is_cut(self, host: str) -> bool:
        """Return True if something does not reach this address, or is not reached by it."""
        return any(host in pair for pair in self._cuts)

    def _rule(self, source: str, target: str) -> tuple[str, ...]:
        return ("pref", "10", "from", source, "to", target, self._cuts[source, target])

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()


def _gate(index: int) -> str:
    return f"10.77.{index + 1}.254"


def _run(*words: str) -> None:
    subprocess.run(words, check=True)

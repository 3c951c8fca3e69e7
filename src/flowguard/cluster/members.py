"""Members of a cluster: which nodes there are, how they are, and which of them owns a session.

The nodes are those of the configuration. Each start of a node is an incarnation, with a number
above all before. A lower one than the highest known is fenced: nothing that it sends counts.

The owner of a session is the same on every node: rendezvous hashing (Thaler and Ravishankar, "A
name-based mapping scheme for rendezvous", 1996) gives it to the node with the highest hash of node
and client id. If a node is added or removed, only sessions of its own share move. A node that is
down keeps its sessions, because they are in its own store.
"""

from collections.abc import Iterable
from enum import Enum
from hashlib import blake2b
from math import inf
from typing import Final, final

SUSPECT_S: Final = 1.0
"""Silence after which a peer is suspect, seconds."""
_HASH_BYTES: Final = 8


class MemberState(Enum):
    UNKNOWN = "unknown"
    """This node has had no link from it since its own start."""
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Silent. It may be alive, so this node waits for it."""
    DEAD = "dead"
    """The process of its last known incarnation has ended."""


@final
class Member:
    __slots__ = ("name", "incarnation", "heard_s", "is_dead")

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 0
        """The highest known; 0 if none is known."""
        self.heard_s = -inf
        self.is_dead = False


def owner_among(names: Iterable[str], key: str) -> str:
    """Return the node with the highest hash of its name and a key. Cost: one hash per node."""
    what = key.encode()
    owner, highest = "", b""
    for name in names:
        digest = blake2b(name.encode() + b"\0" + what, digest_size=_HASH_BYTES).digest()
        if digest > highest:
            owner, highest = name, digest
    return owner


class Members:
    """All nodes, by name; `peers` are the nodes besides this one."""

    def __init__(self, name: str, incarnation: int, names: Iterable[str]) -> None:
        """`names` has all nodes, also this one."""
        self._names = sorted(names)
        assert name in self._names
        assert incarnation > 0
        self.name = name
        self.incarnation = incarnation
        self.peers = {each: Member(each) for each in self._names if each != name}

    def owner_of(self, client_id: str) -> str:
        """Return the node that owns the session of a client. Cost: one hash per node."""
        return owner_among(self._names, client_id)

    def meet(self, name: str, incarnation: int, now_s: float) -> str:
        """A node has said hello; return "", or why it is rejected."""
        member = self.peers.get(name)
        if member is None:
            return f"{name!r} is not a peer of this node"
        if incarnation < member.incarnation or (
            incarnation == member.incarnation and member.is_dead
        ):
            return f"incarnation {incarnation} of {name!r} has ended"
        member.incarnation = incarnation
        member.is_dead = False
        member.heard_s = now_s
        return ""

    def received(self, name: str, now_s: float) -> None:
        """Bytes of the current incarnation of a peer have arrived."""
        self.peers[name].heard_s = now_s

    def died(self, name: str, incarnation: int) -> bool:
        """The process of an incarnation has ended; False if a newer one is known already."""
        member = self.peers[name]
        if incarnation < member.incarnation:
            return False
        member.incarnation = incarnation
        member.is_dead = True
        return True

    def state(self, name: str, now_s: float) -> MemberState:
        member = self.peers[name]
        if member.is_dead:
            return MemberState.DEAD
        if not member.incarnation:
            return MemberState.UNKNOWN
        silent_s = now_s - member.heard_s
        return MemberState.SUSPECT if silent_s > SUSPECT_S else MemberState.ALIVE

    def living(self) -> list[str]:
        """Return the peers that may be alive: all that are not known to be dead."""
        return [name for name, member in self.peers.items() if not member.is_dead]

"""Cluster: the load of the other nodes, and the window of a client of this node.

Each node computes its window from its own pressure and sends both to the others (`announce`). So
the delay of a record is in no control loop (docs/explain/overload.md, 1.7). The rules for records
of other nodes:
- `merge` keeps the highest (incarnation, sequence) of each node: commutative, associative,
  idempotent. A record that arrives again is not news, and does not make its node younger.
- A record counts in full for 1 s. From 1 s to 5 s it drifts to the values of this node: the window
  geometrically, the pressure linearly. After 5 s its node is lost and limits no client.
- The window of a client is the least window of the nodes that its work touches, always with this
  one: rule `path`. With rule `max` all nodes are on each path. Load of a node off the path does
  not count.
- After a loss, windows are at most half the maximum for 30 s. Then this limit doubles over 10 s,
  0.7 % a tick, slower than the law lets a window grow. The loss of all peers is the same. A node
  that has stopped in good order is not lost.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final, Self, final

from flowguard.cluster.members import Members
from flowguard.config import FlowSettings
from flowguard.flow.load.signals import TICK_S, Signal

REPEAT_S: Final = 1.0
"""A node that has nothing new to tell does so at least this often."""
NEWS_SHARE: Final = 0.10
"""A window or pressure that moved by more than this share since it was told is news."""
NEWS_PRESSURE: Final = 0.5
"""Shares of a pressure are of this at least: on half its objective no law depends any more."""
FRESH_S: Final = 1.0
LOST_S: Final = 5.0
GUARD_SHARE: Final = 0.5
"""Of the maximum window, while a lost peer's clients may be on their way to this node."""
GUARD_S: Final = 30.0
RELEASE_S: Final = 10.0
PEERS_MAX: Final = 256

_NODE_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class PressureRecord:
    node: str
    """1 to 255 bytes of UTF-8."""
    incarnation: int
    """Higher at every start of the node, such as milliseconds of its clock; 64 bits."""
    sequence: int
    """Counts the records of an incarnation, from 1; 64 bits."""
    window: float
    """Cost units of one client in process, above 0, to 65,535."""
    pressure: float
    """0 to 16."""
    cause: Signal | None
    connects_limit: int
    """CONNECTs the node works on at once; 32 bits."""
    leaving: bool = False
    """The node's last word: it stops in good order."""

    def supersedes(self, other: Self) -> bool:
        """Whether this is the newer of two records of one node."""
        return (self.incarnation, self.sequence) > (other.incarnation, other.sequence)


@final
class _Peer:
    """Another node: its newest record, and since when that is known."""

    __slots__ = ("gone", "heard_s", "record")

    def __init__(self, record: PressureRecord, now_s: float) -> None:
        self.hear(record, now_s)

    def hear(self, record: PressureRecord, now_s: float) -> None:
        self.record = record
        self.heard_s = now_s
        self.gone = record.leaving
        """Lost, or left. Its record stays, so that an echo of it is not taken for the node."""


@final
class Cluster:
    """The other nodes, as this one knows them; `node` is its own id.

    A node without peers pays one look into an empty table, and has its own window.
    """

    def __init__(
        self, node: str, incarnation: int, settings: FlowSettings, peers_max: int = PEERS_MAX
    ) -> None:
        assert 1 <= len(node.encode()) <= _NODE_BYTES_MAX
        self.node = node
        self.incarnation = incarnation
        self.path: frozenset[str] | None = frozenset((node,))
        """Nodes that the work of this one's clients touches, whichever client it is: itself, its
        replicas, those it forwards to. Whoever knows replaces it; None: unknown, so all."""
        self._is_max_rule = settings.cluster_rule == "max"
        self._window_max = float(settings.window_max)
        self._window_floor = min(settings.window_floor, self._window_max)
        self._peers_max = peers_max
        self._peers: dict[str, _Peer] = {}
        self.dropped = 0
        """Records of nodes beyond `peers_max`, since the start."""
        self.duplicate: PressureRecord | None = None
        """The newest record somebody else sent under this node's id."""
        self.duplicates = 0
        """How many such: 1 may be the node's own former life, a growing count is a second node."""
        self._own = PressureRecord(node, incarnation, 0, self._window_max, 0.0, None, 0)
        """What is true here now; its sequence is that of the last record sent."""
        self._sent: PressureRecord | None = None
        self._sent_s = -inf
        self._lost = 0
        self._guard_from_s = -inf
        # The peers that count, aged to a moment; true until `_valid_until_s`.
        self._view: dict[str, tuple[float, float]] = {}
        self._window_of_all = self._window_max
        self._valid_until_s = -inf

    @classmethod
    def of(cls, members: Members, settings: FlowSettings) -> "Cluster":
        """Return the load of nodes among which no client's work touches another node yet."""
        cluster = cls(members.name, members.incarnation, settings)
        cluster.path = frozenset()
        return cluster

    def announce(
        self,
        window: float,
        pressure: float,
        cause: Signal | None,
        connects_limit: int,
        now_s: float,
    ) -> PressureRecord | None:
        """Every `TICK_S`: what is true here now; a record if the others should hear of it."""
        self._own = replace(
            self._own,
            window=window,
            pressure=pressure,
            cause=cause,
            connects_limit=connects_limit,
        )
        self._valid_until_s = -inf
        sent, since_s = self._sent, now_s - self._sent_s
        # The next tick may be 10 % late; one after less than half a tick is the same tick again.
        due = since_s + 1.1 * TICK_S > REPEAT_S
        if sent is not None and (
            sent.leaving or since_s < TICK_S / 2 or not (due or _is_news(sent, self._own))
        ):
            return None
        return self._send(now_s, leaving=False)

    def leave(self, now_s: float) -> PressureRecord:
        """The node stops in good order: its last record. It announces nothing any more."""
        return self._send(now_s, leaving=True)

    def merge(self, record: PressureRecord, now_s: float) -> bool:
        """Somebody's record arrived, in any order, any number of times; whether it was news."""
        if record.node == self.node:
            self._meet_self(record)
            return False
        peer = self._peers.get(record.node)
        if peer is not None:
            if not record.supersedes(peer.record):
                return False
            peer.hear(record, now_s)
        else:
            if len(self._peers) >= self._peers_max and not self._forget_one():
                self.dropped += 1
                return False
            self._peers[record.node] = _Peer(record, now_s)
        self._valid_until_s = -inf
        return True

    def window_for(self, path: frozenset[str] | None, now_s: float) -> float:
        """The window of a client whose work touches the nodes of `path`; None: unknown, so all.

        Cost units, before the client's weight. This node is always on the path; nodes that are
        lost, have left or were never heard of hold nobody back.
        """
        if not self._peers:
            return self._own.window
        if now_s > self._valid_until_s:
            self._refresh(now_s)
        if path is None or self._is_max_rule:
            window = self._window_of_all
        else:
            window = self._own.window
            for node in path:
                entry = self._view.get(node)
                if entry is not None:
                    window = min(window, entry[0])
        return max(self._window_floor, min(window, self._cap(now_s)))

    def lost(self, now_s: float) -> int:
        """Peers lost since the start; a policy that sees it grow halves its window, ramps its gate.

        The cap of the guard holds whether or not it does.
        """
        if now_s > self._valid_until_s:
            self._refresh(now_s)
        return self._lost

    def peers(self, now_s: float) -> list[PressureRecord]:
        """The other nodes that count now, by name, with window and pressure as aged."""
        if now_s > self._valid_until_s:
            self._refresh(now_s)
        return [
            replace(self._peers[node].record, window=window, pressure=pressure)
            for node, (window, pressure) in sorted(self._view.items())
        ]

    def _send(self, now_s: float, *, leaving: bool) -> PressureRecord:
        self._own = replace(self._own, sequence=self._own.sequence + 1, leaving=leaving)
        self._sent = self._own
        self._sent_s = now_s
        return self._own

    def _meet_self(self, record: PressureRecord) -> None:
        """An echo, or somebody else under this node's id."""
        own = record.incarnation == self.incarnation and record.sequence <= self._own.sequence
        known = self.duplicate
        if not own and (known is None or record.supersedes(known)):
            self.duplicate = record
            self.duplicates += 1

    def _forget_one(self) -> bool:
        """Make room: of the peers that are gone, forget the one unheard of for longest."""
        gone = [(peer.heard_s, node) for node, peer in self._peers.items() if peer.gone]
        if not gone:
            return False
        del self._peers[min(gone)[1]]
        return True

    def _refresh(self, now_s: float) -> None:
        own = self._own
        self._view = {}
        self._valid_until_s = inf
        self._window_of_all = own.window
        for node, peer in self._peers.items():
            if peer.gone:
                continue
            age_s = now_s - peer.heard_s
            if age_s >= LOST_S:
                peer.gone = True
                self._lost += 1
                self._guard_from_s = now_s
                continue
            window, pressure = peer.record.window, peer.record.pressure
            if age_s <= FRESH_S:
                self._valid_until_s = min(self._valid_until_s, peer.heard_s + FRESH_S)
            else:
                drift = (age_s - FRESH_S) / (LOST_S - FRESH_S)
                window *= (own.window / window) ** drift
                pressure += (own.pressure - pressure) * drift
                self._valid_until_s = now_s
            self._view[node] = (window, pressure)
            self._window_of_all = min(self._window_of_all, window)

    def _cap(self, now_s: float) -> float:
        """The part of the maximum that the guard leaves; `inf`: it is off."""
        released_s = now_s - self._guard_from_s - GUARD_S
        if released_s >= RELEASE_S:
            return inf
        share: float = GUARD_SHARE ** (1 - max(0.0, released_s) / RELEASE_S)
        return self._window_max * share


def _is_news(sent: PressureRecord, now: PressureRecord) -> bool:
    """Whether window or pressure moved enough since `sent`."""
    return abs(now.window - sent.window) > NEWS_SHARE * sent.window or abs(
        now.pressure - sent.pressure
    ) > NEWS_SHARE * max(NEWS_PRESSURE, sent.pressure)

"""Grouping: from the subscriptions that match a topic to the sessions that get the same packet.

A session with overlapping subscriptions gets one delivery of the highest QoS with all identifiers
([MQTT-3.3.4-2], [MQTT-3.3.4-4]). The caller merges all matches first and groups the result then.
It may cut both steps into any number of pieces.
"""

from dataclasses import dataclass
from typing import final

from flowguard.session.session import Session
from flowguard.types import SubscriptionOptions

Match = tuple[Session, SubscriptionOptions]


@dataclass(slots=True)
class Group:
    """Sessions that get the same packet; if `no_local`, except the publisher itself."""

    qos: int
    retain_as_published: bool
    no_local: bool
    identifiers: tuple[int, ...]
    sessions: list[Session]

    def part(self, sessions: list[Session]) -> "Group":
        """Return a group of some of its sessions."""
        return Group(self.qos, self.retain_as_published, self.no_local, self.identifiers, sessions)


@final
class Grouping:
    """The matches of one topic."""

    __slots__ = ("_extra", "_groups", "_merged", "mixed", "ops")

    def __init__(self) -> None:
        self._merged: dict[Session, SubscriptionOptions] = {}
        self._extra: dict[Session, list[int]] = {}
        self._groups: dict[tuple[int, bool, bool, tuple[int, ...]], Group] = {}
        self.mixed: set[Session] = set()
        """Sessions with No Local on some of their subscriptions but not on all."""
        self.ops = 0
        """Number of store operations of a QoS 1 or 2 message for the sessions in groups."""

    def merge(self, matches: list[Match]) -> None:
        """Merge more matches. O(matches), even if many of them are of one session."""
        merged, extra = self._merged, self._extra
        for session, options in matches:
            first = merged.get(session)
            if first is None:
                merged[session] = options
                continue
            several = extra.get(session)
            if several is None:
                several = extra[session] = [first.identifier] if first.identifier else []
            if options.identifier:
                several.append(options.identifier)
            if first.no_local != options.no_local:
                self.mixed.add(session)
            merged[session] = SubscriptionOptions(
                qos=max(first.qos, options.qos),
                no_local=first.no_local or options.no_local,
                retain_as_published=first.retain_as_published or options.retain_as_published,
            )

    def merged(self) -> list[Match]:
        """Return the result of all matches, each session once."""
        return list(self._merged.items())

    def group(self, matches: list[Match]) -> None:
        """Group more matches of `merged`."""
        groups, extra = self._groups, self._extra
        ops = 0
        for session, options in matches:
            several = extra.get(session) if extra else None
            one = (options.identifier,) if options.identifier else ()
            identifiers = one if several is None else tuple(several)
            key = (options.qos, options.retain_as_published, options.no_local, identifiers)
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(*key, sessions=[])
            group.sessions.append(session)
            if options.qos and session.durable:
                ops += 1
        self.ops += ops

    def groups(self) -> list[Group]:
        return list(self._groups.values())

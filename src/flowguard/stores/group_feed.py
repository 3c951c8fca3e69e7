"""GroupFeed: the interface of shared subscriptions (groups) that several brokers have.

A published message is added by an `Append` with the group's key (`SinkKind.SPREAD`). The position
is any number that is the same for all messages of a publisher. The messages that this broker has to
deliver come as news, with the positions by which they are settled. A broker announces its members
by `PutSession` and `DropSession` with another key (`SinkKind.MEMBERS`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, final

from flowguard.records import Delivery


@final
@dataclass(frozen=True, slots=True)
class GroupBegan:
    """A broker has members; write matching messages to the group from now on."""

    filter: str


@final
@dataclass(frozen=True, slots=True)
class GroupEnded:
    """No broker has members any more."""

    filter: str


@final
@dataclass(frozen=True, slots=True)
class GroupCame:
    """Messages to be delivered, in order."""

    filter: str
    messages: list[tuple[int, Delivery]]
    """Positions and messages."""
    is_replay: bool
    """True if older messages are left; they do not slow publishers down, but limit members."""


@final
@dataclass(frozen=True, slots=True)
class GroupGone:
    """Another broker delivers these from now on, unless a member has them already."""

    filter: str
    positions: list[int]


@final
@dataclass(frozen=True, slots=True)
class GroupPaused:
    """Start or end of a rebalance between brokers, during which nothing is delivered."""

    filter: str
    is_paused: bool


class Trouble(StrEnum):
    """The kinds of faults of a group."""

    READING = "reading"
    """The group cannot be read; its messages wait."""
    COMMITS = "commits"
    """Acknowledgements of members cannot be stored; messages may be delivered again, to others."""
    TOPIC = "topic"
    """The topic has wrong settings, or cannot be created."""
    HELD = "held"
    """A record of a later version or a damaged batch delays the messages after it."""
    RECORD = "record"
    """A record was damaged, and is lost."""


@final
@dataclass(frozen=True, slots=True)
class GroupTrouble:
    """The start or end of a fault of a group on this broker."""

    filter: str
    """Filter of the group, or "" for all groups."""
    trouble: Trouble
    why: str
    """Description of the fault, or "" at its end."""


GroupNews = GroupBegan | GroupEnded | GroupCame | GroupGone | GroupPaused | GroupTrouble


class GroupFeed(Protocol):
    """The news of groups. Never blocks; may be called from any thread."""

    def take_news(self) -> list[GroupNews]:
        """Return the news since the last call, in order; at first, all existing groups."""

    def on_news(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from another thread, whenever there is news."""

    def want(self, filter: str, is_wanted: bool) -> None:
        """Set whether a member is connected to this broker, which can get messages."""

"""GroupFeed: shared subscriptions that several brokers have together, as a node sees their store.

What is published enters one with an `Append` under its key (`SinkKind.SPREAD`); its position is
any number that is the same for all messages of a publisher. What this broker is given to hand out
comes as news, with the positions by which it is to be settled. A broker that has members says so by
`PutSession` and `DropSession` under another key (`SinkKind.MEMBERS`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, final

from flowguard.records import Delivery


@final
@dataclass(frozen=True, slots=True)
class GroupBegan:
    """Somebody has members: what matches the filter is to be written from now on."""

    filter: str


@final
@dataclass(frozen=True, slots=True)
class GroupEnded:
    """Nobody has any more."""

    filter: str


@final
@dataclass(frozen=True, slots=True)
class GroupCame:
    """Messages to be handed out, in order."""

    filter: str
    messages: list[tuple[int, Delivery]]
    """With their positions."""
    is_replay: bool
    """Whether there is more that has waited: nobody is slowed down for that, so members are."""


@final
@dataclass(frozen=True, slots=True)
class GroupGone:
    """Another broker hands these out from now on, as far as nobody has them."""

    filter: str
    positions: list[int]


@final
@dataclass(frozen=True, slots=True)
class GroupPaused:
    """Whether it is being decided who hands out what: nothing more until then."""

    filter: str
    is_paused: bool


class Trouble(StrEnum):
    """The kinds of what may be wrong with a group."""

    READING = "reading"
    """Nothing of it can be read: it waits."""
    COMMITS = "commits"
    """What members have acknowledged cannot be kept: it may come again, to others."""
    TOPIC = "topic"
    """Its topic is not as it is to be, or cannot be made."""
    HELD = "held"
    """A record of a later version, or a batch that is damaged: what is behind it waits."""
    RECORD = "record"
    """A record was damaged, and is lost."""


@final
@dataclass(frozen=True, slots=True)
class GroupTrouble:
    """Something is wrong with a group on this broker, or is not any more."""

    filter: str
    """Empty: with all of them."""
    trouble: Trouble
    why: str
    """For people; empty: it is over."""


GroupNews = GroupBegan | GroupEnded | GroupCame | GroupGone | GroupPaused | GroupTrouble


class GroupFeed(Protocol):
    """The news of such groups. Never blocks; from any thread."""

    def take_news(self) -> list[GroupNews]:
        """Return what has happened since, in order; the first time, which groups there are."""

    def on_news(self, wake: Callable[[], None]) -> None:
        """Call this, from another thread, whenever something has happened."""

    def want(self, filter: str, is_wanted: bool) -> None:
        """Whether a member is connected here, who could be given something."""

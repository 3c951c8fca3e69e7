"""Engine: virtual time. Future events are a heap of (time, sequence, action, argument).

Events run in the order of their time, and at the same instant in the order in which they were
scheduled; nothing else decides, no hash and no address. So the same calls give the same run. An
action may schedule further events, now or later, never in the past.

An event costs about a microsecond. Events that all wait equally long need no heap at all and are a
`Lane`. The heap itself holds the near future only: later events lie unordered in sections of time,
so that a crowd of retries does not make every push and pop dearer.
"""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from math import inf
from struct import Struct
from typing import Any, Final, Generic, TypeVar, final

A = TypeVar("A")
Action = Callable[[A], None]
Event = tuple[float, int, Action[Any], Any]

_MARK: Final = Struct("<dQ")
_WATCHES: Final = -(1 << 62)
"""Sequence numbers of watches begin here, those of events at 1."""
SECTION_S: Final = 0.25
"""Length of the part of the future that becomes near at a time; a power of two divides exactly."""


@final
class Engine:
    """The clock, and the events to come; `now_s` starts at 0."""

    def __init__(self, *, traced: bool = False) -> None:
        """`traced` keeps a hash of all events, at half the speed."""
        self.now_s = 0.0
        self.events_count = 0
        self._heap: list[Event] = []
        """Events due before `_near_s`."""
        self._near_s = 0.0
        self._later: dict[int, list[Event]] = {}
        """Later events, by their section."""
        self._sequence = 0
        self._watch_sequence = _WATCHES
        self._looks_count = 0
        """Calls of watches, in this run; they are no events."""
        self._until_s = 0.0
        self._digest = blake2b(digest_size=16) if traced else None

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._later.values()))

    def at(self, when_s: float, action: Action[A], argument: A) -> None:
        """Schedule `action(argument)` at `when_s`, which is not in the past."""
        assert when_s >= self.now_s
        self._sequence += 1
        if self._digest is None:
            self._add((when_s, self._sequence, action, argument))
        else:
            self._add((when_s, self._sequence, self._act, (self._sequence, action, argument)))

    def _add(self, event: Event) -> None:
        when_s = event[0]
        if when_s < self._near_s:
            heappush(self._heap, event)
        else:
            self._later.setdefault(int(when_s / SECTION_S), []).append(event)

    def _approach(self) -> bool:
        """Make the next section the near one if no event is due before. Return False if there is
        none."""
        if not self._later:
            return False
        number = min(self._later)
        self._near_s = (number + 1) * SECTION_S
        self._heap += self._later.pop(number)
        heapify(self._heap)
        return True

    def watch(self, when_s: float, action: Action[A], argument: A) -> None:
        """Schedule a call that only observes. It runs before all events of that instant.

        It is no event: it is not counted, leaves no trace, and must change nothing that events see.
        """
        assert when_s >= self.now_s
        self._watch_sequence += 1
        self._add((when_s, self._watch_sequence, self._look, (action, argument)))

    def _look(self, watch: tuple[Action[Any], Any]) -> None:
        self._looks_count += 1
        action, argument = watch
        action(argument)

    def _act(self, event: tuple[int, Action[Any], Any]) -> None:
        """Run an event and add it to the trace."""
        sequence, action, argument = event
        assert self._digest is not None
        self._digest.update(_MARK.pack(self.now_s, sequence))
        self._digest.update(action.__qualname__.encode())
        action(argument)

    def run(self, until_s: float) -> bool:
        """Run the events up to and at `until_s`. Return False if `stop` ended the run.

        The clock then shows `until_s`, or the time of the last event.
        """
        heap = self._heap
        self._until_s = until_s
        count = 0
        while (heap or self._approach()) and heap[0][0] <= self._until_s:
            self.now_s, _, action, argument = heappop(heap)
            count += 1
            action(argument)
        self.events_count += count - self._looks_count
        self._looks_count = 0
        done = self._until_s == until_s
        if done:
            self.now_s = max(self.now_s, until_s)
        return done

    def stop(self) -> None:
        """End the run with the event that happens now; scheduled events stay."""
        self._until_s = -inf

    @property
    def trace(self) -> str:
        """Hash of every event that has happened: its time, its sequence and its name."""
        assert self._digest is not None, "the engine was made without traced=True"
        return self._digest.hexdigest()


@final
class Lane(Generic[A]):
    """Events that come in the order of their time anyway, such as a time-out equal for all.

    One place in the heap serves the whole lane. At the same instant its events keep their order,
    and come after what was in the heap before the first of them was due.
    """

    __slots__ = ("_action", "_engine", "_is_dead", "_items")

    def __init__(
        self, engine: Engine, action: Action[A], is_dead: Callable[[A], bool] | None = None
    ) -> None:
        """`is_dead` returns True for arguments that need no event any more; they are dropped."""
        self._engine = engine
        self._action = action
        self._is_dead = is_dead
        self._items: deque[tuple[float, A]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, when_s: float, argument: A) -> None:
        """Schedule `action(argument)` at `when_s`, which is not before any other of this lane."""
        items = self._items
        if not items:
            self._engine.at(when_s, self._due, None)
        assert not items or when_s >= items[-1][0]
        items.append((when_s, argument))

    def _due(self, _: None) -> None:
        items, engine, is_dead = self._items, self._engine, self._is_dead
        now_s = engine.now_s
        while items:
            when_s, argument = items[0]
            if is_dead is not None and is_dead(argument):
                items.popleft()
            elif when_s <= now_s:
                # Taken out only after its action: an `add` in it must not arm the lane twice.
                self._action(argument)
                items.popleft()
            else:
                engine.at(when_s, self._due, None)
                return

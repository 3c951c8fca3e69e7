"""Logs in all layouts against a plain list: random topics, filters, restarts, time, retention.

At any moment each reader, even a slow one, has read of each topic the messages of the list, in
order, except for those that retention has dropped behind it, of which it got the number.
"""

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from flowguard.stores.log.generations import Retention
from flowguard.stores.log.iterators import Ahead, LogIterator, Stream
from flowguard.stores.log.layout import instant_of
from tests.flowguard.stores.log.logs import LAYOUTS, MemoryLog
from tests.flowguard.stores.log.texts import match_any

TOPICS = st.sampled_from(["a", "b", "a/b", "a/c", "b/c", "a/b/c", "$s/b"])
FILTERS = st.sampled_from(["#", "+", "a", "a/#", "+/b", "+/+", "a/+/c", "$s/#", "b/c"])


class Reader:
    """A position in each stream, of which those of lower generations are read first."""

    def __init__(self, wanted: tuple[str, ...], start: int) -> None:
        self.wanted, self.start = wanted, start
        self.iterators: dict[Stream, LogIterator] = {}
        self.ended: set[Stream] = set()
        self.read: list[tuple[int, str, str]] = []
        self.is_robbed = False

    def step(self, log: MemoryLog, count: int) -> None:
        for stream in log.log.get_streams(self.start):
            if stream not in self.iterators:
                self.iterators[stream] = log.log.make_iterator(stream, self.wanted, self.start)
        open_streams = sorted(
            self.iterators.keys() - self.ended, key=lambda each: (each.generation, each.shard)
        )
        lowest = [s for s in open_streams if s.generation == open_streams[0].generation]
        for stream in lowest:
            page = log.log.next(self.iterators[stream], count, 2**40)
            self.read += [(m.stamp, m.publisher, m.message.topic) for m in page.messages]
            self.iterators[stream] = page.iterator
            self.is_robbed |= page.lost_count > 0
            if page.ahead is Ahead.END:
                self.ended.add(stream)

    def is_behind(self, log: MemoryLog) -> bool:
        return any(
            iterator.after < log.log.high
            for stream, iterator in self.iterators.items()
            if stream not in self.ended
        )


class AgainstList(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        layout=st.sampled_from(LAYOUTS),
        shards=st.integers(1, 3),
        period_s=st.sampled_from([0.5, 8, 10_000]),
    )
    def start(self, layout: str, shards: int, period_s: float) -> None:
        self.log = MemoryLog(layout, shards=shards, retention=Retention(period_s, 20_000))
        self.plain: list[tuple[int, str, str]] = []
        self.readers: list[Reader] = []

    @rule(publisher=st.sampled_from("pqr"), topics=st.lists(TOPICS, min_size=1, max_size=5))
    def append(self, publisher: str, topics: list[str]) -> None:
        stamps_of = self.log.append(publisher, *topics)
        self.plain += [
            (stamp, publisher, topic) for stamp, topic in zip(stamps_of, topics, strict=True)
        ]

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.1, 1, 3]))
    def pass_time(self, seconds: float) -> None:
        self.log.pass_s(seconds)

    @rule(layout=st.sampled_from(LAYOUTS), shards=st.integers(1, 3))
    def crash(self, layout: str, shards: int) -> None:
        """And open with other settings, which hold from the next generation on."""
        self.log.layout, self.log.shards = layout, shards
        self.log.reopen()

    @rule()
    def roll(self) -> None:
        self.log.log.roll()

    @rule(slices=st.integers(1, 4))
    def maintain(self, slices: int) -> None:
        for _ in range(slices):
            self.log.log.maintain(instant_of(self.log.stamp))

    @rule(wanted=st.lists(FILTERS, min_size=1, max_size=2), which=st.integers(0, 30))
    def begin_to_read(self, wanted: list[str], which: int) -> None:
        start = self.plain[which][0] if which < len(self.plain) else 0
        self.readers.append(Reader(tuple(wanted), start))

    @rule(which=st.integers(0, 9), steps=st.integers(1, 9), count=st.integers(1, 4))
    def read(self, which: int, steps: int, count: int) -> None:
        if self.readers:
            for _ in range(steps):
                self.readers[which % len(self.readers)].step(self.log, count)

    @invariant()
    def retention_is_kept(self) -> None:
        if hasattr(self, "log"):
            kept = [each.number for each in self.log.log.generations]
            assert sorted(self.log.home.spaces) == kept == sorted(kept)

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        oldest = min((each.since for each in self.log.log.generations), default=self.log.stamp + 1)
        for reader in [*self.readers, Reader(("#",), 0)]:
            for _ in range(10_000):
                reader.step(self.log, 100)
                if not reader.is_behind(self.log):
                    break
            self._check(reader, oldest)

    def _check(self, reader: Reader, oldest: int) -> None:
        expected = [
            each
            for each in self.plain
            if each[0] >= reader.start and match_any(reader.wanted, each[2])
        ]
        assert len(set(reader.read)) == len(reader.read), "nothing comes twice"
        assert set(reader.read) <= set(expected), "and nothing that was not asked for"
        if not reader.is_robbed:
            missing = {each for each in expected if each[0] >= oldest} - set(reader.read)
            assert not missing
        for publisher, topic in {each[1:] for each in expected}:
            of_both = [each[0] for each in reader.read if each[1:] == (publisher, topic)]
            assert of_both == sorted(of_both)


def test_a_log_is_what_a_plain_list_says() -> None:
    run_state_machine_as_test(AgainstList)

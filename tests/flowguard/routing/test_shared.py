from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowguard.routing.shared import PROBES_MAX, SharedGroup

Group = SharedGroup[int, str]


def group_of(count: int) -> Group:
    group = Group("g", "a/#")
    for member in range(count):
        group.add(member, f"options {member}")
    return group


class Ranks:
    """Fitness of the members; counts the questions."""

    def __init__(self, default: int = 0) -> None:
        self.default = default
        self.ranks: dict[int, int] = {}
        self.asked = 0

    def __call__(self, member: int) -> int:
        self.asked += 1
        return self.ranks.get(member, self.default)


def picks(group: Group, ready: Ranks, count: int) -> list[int | None]:
    chosen = [group.pick(ready) for _ in range(count)]
    return [None if pick is None else pick[0] for pick in chosen]


def test_members_take_turns() -> None:
    assert picks(group_of(3), Ranks(), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_pick_comes_with_the_options_of_that_member() -> None:
    group = group_of(2)
    assert group.pick(Ranks()) == (0, "options 0")
    assert not group.add(1, "new")
    assert group.pick(Ranks()) == (1, "new")


def test_an_empty_group_has_nobody() -> None:
    assert Group("g", "a").pick(Ranks()) is None
    assert len(Group("g", "a")) == 0


def test_online_members_come_before_offline_ones() -> None:
    ready = Ranks()
    ready.ranks = {0: 2, 2: 2, 4: 1}
    assert Counter(picks(group_of(5), ready, 100)) == {1: 50, 3: 50}


def test_with_nobody_online_the_better_of_the_others_take_turns() -> None:
    ready = Ranks(default=2)
    assert Counter(picks(group_of(4), ready, 100)) == {0: 25, 1: 25, 2: 25, 3: 25}
    ready.ranks = {1: 1, 3: 1}
    assert Counter(picks(group_of(4), ready, 100)) == {1: 50, 3: 50}


def test_members_that_cannot_take_it_are_never_chosen() -> None:
    ready = Ranks(default=-1)
    group = group_of(3)
    assert picks(group, ready, 2) == [None, None]
    ready.ranks = {2: 5}
    assert picks(group, ready, 2) == [2, 2]


def test_a_member_of_a_large_group_that_alone_can_take_it_is_found() -> None:
    ready = Ranks(default=-1)
    group = group_of(5 * PROBES_MAX)
    ready.ranks = {4 * PROBES_MAX: 3}
    assert picks(group, ready, 2) == [4 * PROBES_MAX] * 2


def test_a_member_back_online_gets_its_share_again_without_being_woken() -> None:
    ready = Ranks()
    ready.ranks = {1: 2}
    group = group_of(4)
    assert 1 not in picks(group, ready, 12)
    ready.ranks = {}
    picks(group, ready, 4)
    assert Counter(picks(group, ready, 100)) == {0: 25, 1: 25, 2: 25, 3: 25}


def test_waking_finds_the_one_online_member_of_a_large_offline_group() -> None:
    ready = Ranks(default=2)
    group = group_of(1000)
    picks(group, ready, 1)
    ready.ranks = {777: 0}
    group.wake(777)
    group.wake(5000)  # an absent member stays absent
    assert picks(group, ready, 3) == [777, 777, 777]
    assert len(group) == 1000


def test_the_one_online_member_of_a_large_group_is_found_without_waking_too() -> None:
    ready = Ranks(default=2)
    group = group_of(1000)
    picks(group, ready, 1)
    ready.ranks = {777: 0}
    assert 777 in picks(group, ready, 1000)
    assert picks(group, ready, 3) == [777, 777, 777]


def test_a_pick_asks_few_members_however_many_are_offline() -> None:
    ready = Ranks(default=2)
    ready.ranks = dict.fromkeys(range(0, 10_000, 1000), 0)
    group = group_of(10_000)
    picks(group, ready, 11)  # parks the offline ones, once
    assert ready.asked <= 10_100
    ready.asked = 0
    picks(group, ready, 1000)
    assert ready.asked <= 3 * 1000 + 10

    ready.ranks = {}
    picks(group, ready, 1)
    ready.asked = 0
    picks(group, ready, 100)
    assert ready.asked <= PROBES_MAX * 100


def test_members_that_cannot_take_it_are_not_asked_again_for_each_message() -> None:
    ready = Ranks(default=-1)
    ready.ranks = dict.fromkeys(range(5000, 5010), 2)
    group = group_of(5010)
    assert picks(group, ready, 10) == list(range(5000, 5010))
    assert ready.asked <= 2 * 5010 + 10 * PROBES_MAX  # all of them for the first one only


@given(st.integers(1, 9), st.sets(st.integers(0, 8)), st.integers(1, 40))
def test_shares_of_ready_members_differ_by_at_most_one(
    count: int, offline: set[int], messages: int
) -> None:
    ready = Ranks()
    ready.ranks = dict.fromkeys(offline, 2)
    chosen = picks(group_of(count), ready, messages)
    online = set(range(count)) - offline or set(range(count))
    shares = Counter(dict.fromkeys(online, 0))
    shares.update(member for member in chosen if member is not None)
    assert set(shares) == online
    assert shares.total() == messages
    assert max(shares.values()) - min(shares.values()) <= 1


class GroupAgainstModel(RuleBasedStateMachine):
    """A pick is a member, with its options, and no member of a small group is fitter."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group("g", "a")
        self.twin = Group("g", "a")
        self.model: dict[int, str] = {}
        self.ready = Ranks()

    @rule(member=st.integers(0, 9), options=st.text(max_size=1))
    def add(self, member: int, options: str) -> None:
        assert self.group.add(member, options) == (member not in self.model)
        self.twin.add(member, options)
        self.model[member] = options

    @rule(member=st.integers(0, 9))
    def remove(self, member: int) -> None:
        assert self.group.remove(member) == (member in self.model)
        self.twin.remove(member)
        self.model.pop(member, None)

    @rule(member=st.integers(0, 9), rank=st.integers(-1, 3))
    def change(self, member: int, rank: int) -> None:
        self.ready.ranks[member] = rank

    @rule(member=st.integers(0, 9))
    def wake(self, member: int) -> None:
        self.group.wake(member)
        self.twin.wake(member)

    @rule()
    def pick(self) -> None:
        chosen = self.group.pick(self.ready)
        assert chosen == self.twin.pick(self.ready)  # no chance involved
        ranks = [self.ready(member) for member in self.model if self.ready(member) >= 0]
        if chosen is None:
            assert not ranks
        else:
            assert self.model[chosen[0]] == chosen[1]
            assert self.ready(chosen[0]) == min(ranks)

    @rule(rank=st.integers(0, 2))
    def everybody_gets_one_when_all_are_alike(self, rank: int) -> None:
        self.ready.ranks = {}
        self.ready.default = rank
        for _ in range(3):  # time for all to be found fit again
            for _ in self.model:
                self.group.pick(self.ready)
                self.twin.pick(self.ready)
        turn = [self.group.pick(self.ready) for _ in self.model]
        assert turn == [self.twin.pick(self.ready) for _ in self.model]
        assert {pick[0] for pick in turn if pick is not None} == set(self.model)
        self.ready.default = 0

    @invariant()
    def members(self) -> None:
        assert len(self.group) == len(self.model)
        assert dict(self.group.members()) == self.model


TestGroupAgainstModel = GroupAgainstModel.TestCase


def test_the_granted_options_are_each_members_own() -> None:
    group: SharedGroup[str, int] = SharedGroup("g", "a")
    for granted, member in enumerate(["none", "once", "exactly"]):
        group.add(member, granted)
    assert [group.pick(lambda _: 0) for _ in range(3)] == [("none", 0), ("once", 1), ("exactly", 2)]

"""The decision of which node runs which shard: complete, calm, and the same for all nodes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flowguard.cluster.shards import NodeRecord, SignsOfLife, assigned, next_move, without_new

A, B, C = (NodeRecord(name, 6) for name in "abc")
NODES = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.integers(1, 8), st.booleans()), min_size=1
).map(lambda found: [NodeRecord(name, *facts) for name, facts in found.items()])
COUNTS = st.integers(2, 12)
HOMES = st.dictionaries(st.integers(0, 11), st.sampled_from("abcdefgh"))


def moved(
    nodes: list[NodeRecord], homes: Mapping[int, str], count: int
) -> tuple[list[NodeRecord], dict[int, str]]:
    """Return the nodes after the giver has begun the next move, and the shards after it."""
    move = next_move(nodes, homes, count)
    gives = [
        replace(node, gives=move.shard if move and node.name == move.giver else None)
        for node in nodes
    ]
    return gives, assigned(gives, homes, count)


def test_first_node_gets_all_shards() -> None:
    assert assigned([A], {}, 4) == dict.fromkeys(range(4), "a")


def test_nodes_that_start_together_get_equal_parts() -> None:
    assert Counter(assigned([A, B, C], {}, 6).values()) == {"a": 2, "b": 2, "c": 2}


def test_nodes_of_a_new_cluster_take_no_shard_before_the_oldest_is_a_second_old() -> None:
    first = replace(A, alive_s=0.9)
    duties = assigned([first, B], {0: "a", 1: "c"}, 3)
    assert without_new(duties, [first, B], {0: "a", 1: "c"}) == {0: "a"}
    assert without_new(duties, [replace(A, alive_s=1.0), B], {0: "a"}) == duties


def test_node_that_joins_gets_one_shard_at_a_time_until_all_have_equal_parts() -> None:
    homes = dict.fromkeys(range(6), "a")
    moves = []
    assert assigned([A, B], homes, 6) == homes  # The giver has not begun.
    while (after := moved([A, B], homes, 6)[1]) != homes:
        moves.append([shard for shard in after if after[shard] != homes[shard]])
        homes = after
    assert moves == [[5], [4], [3]]


def test_shards_of_a_dead_node_go_to_the_others_at_once_and_no_other_shard_moves() -> None:
    homes = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}
    after = assigned([A, B], homes, 6)
    assert {shard: after[shard] for shard in (0, 1, 3, 4)} == {0: "a", 1: "b", 3: "a", 4: "b"}
    assert Counter(after.values()) == {"a": 3, "b": 3}


def test_node_that_leaves_gives_its_shards_away_one_after_the_other() -> None:
    leaving = NodeRecord("a", 6, is_leaving=True)
    homes = {0: "a", 1: "a", 2: "b", 3: "b"}
    first = moved([leaving, B], homes, 4)[1]
    assert first == {0: "a", 1: "b", 2: "b", 3: "b"}
    assert moved([leaving, B], first, 4)[1] == dict.fromkeys(range(4), "b")


def test_move_that_has_begun_goes_on_when_another_node_begins_to_leave() -> None:
    homes = dict.fromkeys(range(4), "a") | {4: "c", 5: "c"}
    move = next_move([A, B, C], homes, 6)
    assert move == (3, "a", "b")
    nodes = [replace(A, gives=3), B, replace(C, is_leaving=True)]
    assert next_move(nodes, homes, 6) == move
    assert next_move(nodes, homes | {3: "b"}, 6) == (5, "c", "b")


def test_last_node_keeps_its_shards_when_it_leaves() -> None:
    homes = dict.fromkeys(range(4), "a")
    assert assigned([NodeRecord("a", 6, is_leaving=True)], homes, 4) == homes


def test_shard_that_no_node_can_take_is_absent() -> None:
    assert assigned([NodeRecord("a", 2)], {}, 3) == {0: "a", 1: "a"}


@given(NODES, HOMES, COUNTS)
def test_decision_does_not_depend_on_the_order_and_comes_to_rest(
    nodes: list[NodeRecord], homes: dict[int, str], count: int
) -> None:
    nodes, first = moved(nodes, homes, count)
    after = first
    assert assigned(nodes[::-1], homes, count) == after
    # The same table gives the same decision, until the shard that moves has its new node.
    names = {node.name for node in nodes}
    stays = {shard: home for shard, home in homes.items() if shard < count and home in names}
    assert sum(after[shard] != home for shard, home in stays.items()) <= 1
    for _ in range(count + 1):
        first, after = after, moved(nodes, after, count)[1]
    assert first == after
    most = {node.name: 0 if node.is_leaving else node.shards_max for node in nodes}
    lacking = count - len(after)
    taken = Counter(after.values())
    assert not lacking or all(taken[name] >= most[name] for name in most)


def test_node_is_dead_when_its_last_sign_of_life_is_older_than_a_lease() -> None:
    signs = SignsOfLife(3.0, 0.0)
    for tenths in range(0, 35, 5):
        signs.met(tenths / 10)
    assert signs.living({"a": 0.1, "b": 3.0, "c": 3.1}) == {"a", "b"}


def test_no_node_is_dead_for_one_that_has_lacked_redis_itself() -> None:
    signs = SignsOfLife(3.0, 0.0)
    for tenths in [*range(0, 35, 5), *range(100, 130, 5)]:
        signs.met(tenths / 10)
    assert signs.living({"a": 0.1, "b": 10.0}) == {"a", "b"}
    signs.met(13.0)
    assert signs.living({"a": 0.1, "b": 10.0}) == {"a"}


def test_no_node_is_dead_because_redis_stood_still_for_longer_than_a_short_lease() -> None:
    signs = SignsOfLife(1.0, 0.0)
    for tenths in [*range(0, 40, 5), 52]:
        signs.met(tenths / 10)
    assert signs.living({"a": 0.0, "b": 2.2}) == {"a", "b"}

"""Members: states, fencing by incarnation, and the owner of a session."""

from collections import Counter

import pytest

from flowguard.cluster import Members, MemberState


def members(name: str = "w1", count: int = 4) -> Members:
    return Members(name, 5, [f"w{number}" for number in range(1, count + 1)])


def test_all_nodes_agree_on_the_owner_of_a_session() -> None:
    for client in map(str, range(100)):
        assert len({members(f"w{number}").owner_of(client) for number in range(1, 5)}) == 1


def test_sessions_are_spread_evenly() -> None:
    owner_of = members().owner_of
    shares = Counter(owner_of(f"client-{number}") for number in range(8_000))
    assert all(abs(count - 2_000) < 200 for count in shares.values()), shares


def test_an_added_node_takes_its_share_and_moves_no_other_session() -> None:
    before, after = members(count=3), members(count=4)
    clients = [f"client-{number}" for number in range(4_000)]
    moved = [each for each in clients if before.owner_of(each) != after.owner_of(each)]
    assert all(after.owner_of(each) == "w4" for each in moved)
    assert abs(len(moved) - 1_000) < 120


def test_a_peer_is_suspect_after_a_second_of_silence_until_it_is_heard_again() -> None:
    here = members()
    assert here.state("w2", 0.0) is MemberState.UNKNOWN
    assert here.meet("w2", 7, 10.0) == ""
    assert here.state("w2", 11.0) is MemberState.ALIVE
    assert here.state("w2", 11.1) is MemberState.SUSPECT
    here.received("w2", 12.0)
    assert here.state("w2", 12.5) is MemberState.ALIVE


@pytest.mark.parametrize("incarnation", [6, 7])
def test_an_incarnation_that_has_ended_is_rejected(incarnation: int) -> None:
    here = members()
    assert here.died("w2", 7)
    assert here.state("w2", 0.0) is MemberState.DEAD
    assert here.living() == ["w3", "w4"]
    assert here.meet("w2", incarnation, 1.0) == f"incarnation {incarnation} of 'w2' has ended"
    assert here.meet("w2", 8, 2.0) == ""
    assert not here.died("w2", 7)
    assert here.state("w2", 2.0) is MemberState.ALIVE


def test_a_node_that_is_not_configured_is_rejected() -> None:
    assert members().meet("w9", 1, 0.0) == "'w9' is not a peer of this node"
    assert members().meet("w1", 9, 0.0) == "'w1' is not a peer of this node"

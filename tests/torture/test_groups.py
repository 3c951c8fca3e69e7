"""One of two brokers of a group is killed while others publish: nothing acknowledged is lost.

`python -m tests.torture.groups` goes on for longer.
"""

from pathlib import Path

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from tests.flowguard.stores.kafka.benches import new_prefix
from tests.support.kafka import shared_kafka
from tests.torture.groups import GroupTorture, Ledger

KILLS = 3


@pytest.mark.slow
@pytest.mark.long
def test_what_was_acknowledged_comes_though_brokers_of_the_group_are_killed(tmp_path: Path) -> None:
    ledger = GroupTorture(tmp_path, shared_kafka(), new_prefix(), kills=KILLS, seed=1).run()
    print(ledger)
    assert ledger.kills == KILLS
    assert ledger.acknowledged
    assert not ledger.lost, str(ledger)


def test_the_ledger_says_what_is_lost_and_what_came_again() -> None:
    ledger = Ledger()
    ledger.acknowledged |= {b"1", b"2", b"3"}
    ledger.got[1].update([b"1", b"1", b"2"])
    ledger.got[2].update([b"2", b"4", b"4"])
    assert ledger.lost == {b"3"}
    assert ledger.again(1) == 2
    assert ledger.again(2) == 1

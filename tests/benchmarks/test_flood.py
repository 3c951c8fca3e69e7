"""The generator against the real broker: its counts must agree with each other and with it."""

from collections.abc import Iterator

import pytest

from benchmarks.build import Unavailable, build
from benchmarks.overload.flood import Flood, flooding
from benchmarks.overload.subject import Instance, Subject
from benchmarks.runner import BadData

CLIENTS = 20
QUICK = {"flooders": CLIENTS, "subscribers": 4, "topics": 4, "probes": 2, "probe_rate": 20}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    try:
        build("flood")
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def narrow() -> Iterator[Instance]:
    """Receive Maximum 3, a store of about 900 messages per second."""
    settings = {"FLOWGUARD_SESSION__RECEIVE_MAXIMUM": "3"}
    with Subject(settings=settings, commit_s=0.01, message_s=0.001).started(None) as instance:
        yield instance


def books_agree(flood: Flood) -> None:
    assert flood.drain(30)
    result = flood.finish()
    assert result.sent == result.acknowledged == result.delivered > 0
    assert result.gaps == result.disordered == result.refused == result.lost_connections == 0
    assert result.sent == sum(phase.total.sent for phase in flood.phases)
    assert result.first_error == ""


@pytest.mark.parametrize("version", [4, 5])
def test_a_closed_loop_keeps_so_many_on_their_way(narrow: Instance, version: int) -> None:
    with flooding(narrow.port, narrow.pid, None, version=version, **QUICK) as flood:
        total = flood.phase("closed", 2, 10, 0.5).total
        assert total.outstanding <= 20
        assert total.acknowledged == total.acknowledgement.count > 0
        assert total.withheld == 0
        books_agree(flood)


def test_receive_maximum_comes_first_and_the_excess_is_withheld(narrow: Instance) -> None:
    with flooding(narrow.port, narrow.pid, None, **QUICK) as flood:
        assert flood.receive_maximum == (3, 3)
        total = flood.phase("open", 20_000, CLIENTS, 1).total
        assert total.outstanding <= 3 * CLIENTS
        assert total.withheld > total.sent > 0
        assert flood.phases[0].seconds
        books_agree(flood)


def test_goodput_is_what_comes_within_the_deadline(narrow: Instance) -> None:
    with flooding(narrow.port, narrow.pid, None, deadline=0.001, **QUICK) as flood:
        total = flood.phase("closed", 3, CLIENTS, 0.5).total
        assert total.acknowledged > 0
        assert total.good == 0  # A commit alone takes longer.
        books_agree(flood)


def test_background_pairs_are_measured_apart(narrow: Instance) -> None:
    with flooding(narrow.port, narrow.pid, None, **QUICK) as flood:
        total = flood.phase("idle", seconds=1).total
        assert total.sent == total.acknowledged == 0
        assert total.probe_acknowledgement.count > 0
        assert total.probe_delivery.count > 0


def test_pings_are_answered(narrow: Instance) -> None:
    with flooding(narrow.port, narrow.pid, None, ping=0.1, keep_alive=2, **QUICK) as flood:
        assert flood.phase("idle", seconds=1).total.pong.count > 0


def test_a_slow_subscriber_catches_up_when_it_is_released(narrow: Instance) -> None:
    crowd = {**QUICK, "slow": 1, "slow_bytes": 0, "topics": 1, "subscribers": 2, "payload": 1_000}
    with flooding(narrow.port, narrow.pid, None, **crowd) as flood:
        flood.phase("closed", 3, CLIENTS, 0.5)
        assert flood.drain(30)
        flood.phase("release", seconds=1)
        result = flood.finish()
        assert result.delivered == 2 * result.sent > 0


def test_the_broker_says_how_it_is_and_can_be_pressed() -> None:
    with Subject(commit_s=0.0).started(None) as instance:
        instance.press()
        with flooding(instance.port, instance.pid, None, **QUICK) as flood:
            flood.phase("closed", 1, CLIENTS, 3)
            rows = instance.rows()
    assert rows[-1]["pressure"] == 16
    assert rows[-1]["window"] < 100
    assert {"at_s", "in_process", "paused", "resident_mib", "drift_p99_ms"} <= rows[-1].keys()


def test_nobody_there_is_no_figure() -> None:
    nobody = flooding(1, 1, None, setup_limit=1, **QUICK)
    with pytest.raises(BadData, match="clients are in"), nobody:
        pass

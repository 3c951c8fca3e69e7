"""The generator against the real broker: its counts must agree with each other and with it."""

import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.build import Unavailable, build
from benchmarks.overload.flood import Flood, Kind, Seen, flooding
from benchmarks.overload.subject import Instance, Subject
from benchmarks.runner import BadData
from tests.support.patience import HANG_S

CLIENTS = 20
QUICK = {
    "flooders": CLIENTS,
    "subscribers": 4,
    "topics": 4,
    "probes": 2,
    "probe_rate": 20,
    "setup_limit": 300,
}
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


def busy(flood: Flood, kind: Kind, *numbers: float, some: Callable[[Seen], int]) -> Seen:
    """Return the first such phase with `some`: on a starved machine a short one may have none."""
    deadline_s = time.monotonic() + HANG_S
    while not some(total := flood.phase(kind, *numbers).total):
        assert time.monotonic() < deadline_s
    return total


def settle(flood: Flood, copies: int = 1) -> None:
    """Wait until all sent messages are acknowledged, and `copies` copies of them are delivered."""
    sent = sum(phase.total.sent for phase in flood.phases)

    def is_done(total: Seen) -> bool:
        return not total.outstanding and total.delivered_all >= copies * sent

    busy(flood, "idle", 0, 0, 0.25, some=is_done)


def acknowledged(total: Seen) -> int:
    return total.acknowledged


def count_of_probes(total: Seen) -> int:
    return min(total.probe_acknowledgement.count, total.probe_delivery.count)


def books_agree(flood: Flood) -> None:
    settle(flood)
    result = flood.finish()
    assert result.sent == result.acknowledged == result.delivered > 0
    assert result.gaps == result.disordered == result.refused == result.lost_connections == 0
    assert result.sent == sum(phase.total.sent for phase in flood.phases)
    assert result.first_error == ""


@pytest.mark.parametrize("version", [4, 5])
def test_a_closed_loop_keeps_so_many_on_their_way(narrow: Instance, version: int) -> None:
    with flooding(narrow.port, narrow.pid, None, version=version, **QUICK) as flood:
        total = busy(flood, "closed", 2, 10, 0.5, some=acknowledged)
        assert total.outstanding <= 20
        assert total.acknowledged == total.acknowledgement.count > 0
        assert total.withheld == 0
        books_agree(flood)


def test_receive_maximum_comes_first_and_the_excess_is_withheld(narrow: Instance) -> None:
    with flooding(narrow.port, narrow.pid, None, **QUICK) as flood:
        assert flood.receive_maximum == (3, 3)
        total = busy(flood, "open", 20_000, CLIENTS, 1, some=lambda seen: seen.sent)
        assert total.outstanding <= 3 * CLIENTS
        assert total.withheld > total.sent > 0
        assert flood.phases[-1].seconds
        books_agree(flood)


def test_goodput_is_what_comes_within_the_deadline(narrow: Instance) -> None:
    with flooding(narrow.port, narrow.pid, None, deadline=0.001, **QUICK) as flood:
        total = busy(flood, "closed", 3, CLIENTS, 0.5, some=acknowledged)
        assert total.good == 0  # A commit alone takes longer.
        books_agree(flood)


def test_background_pairs_are_measured_apart(narrow: Instance) -> None:
    with flooding(narrow.port, narrow.pid, None, **QUICK) as flood:
        total = busy(flood, "idle", 0, 0, 1, some=count_of_probes)
        assert total.sent == total.acknowledged == 0


def test_pings_are_answered(narrow: Instance) -> None:
    with flooding(narrow.port, narrow.pid, None, ping=0.1, keep_alive=900, **QUICK) as flood:
        total = busy(flood, "idle", 0, 0, 1, some=lambda seen: seen.pong.count)
        assert total.lost_connections == 0


def test_a_slow_subscriber_catches_up_when_it_is_released(narrow: Instance) -> None:
    crowd = {**QUICK, "slow": 1, "slow_bytes": 0, "topics": 1, "subscribers": 2, "payload": 1_000}
    with flooding(narrow.port, narrow.pid, None, **crowd) as flood:
        busy(flood, "closed", 3, CLIENTS, 0.5, some=acknowledged)
        settle(flood)  # Its half waits in sockets, or with the broker.
        flood.phase("release", seconds=1)
        settle(flood, copies=2)
        result = flood.finish()
        assert result.delivered == 2 * result.sent > 0


def is_pressed(instance: Instance) -> bool:
    """It says so a second later, or more."""
    rows = instance.rows()
    return bool(rows) and rows[-1]["pressure"] == 16 and rows[-1]["window"] < 100


def test_the_broker_says_how_it_is_and_can_be_pressed() -> None:
    with Subject(commit_s=0.0).started(None) as instance:
        instance.press()
        with flooding(instance.port, instance.pid, None, **QUICK) as flood:
            # Windows are only cut if there is work that they can put off.
            busy(flood, "closed", 20, CLIENTS, 1, some=lambda _: is_pressed(instance))
            rows = instance.rows()
    assert rows[-1]["pressure"] == 16
    assert rows[-1]["window"] < 100
    assert {"at_s", "in_process", "paused", "resident_mib", "drift_p99_ms"} <= rows[-1].keys()


def test_nobody_there_is_no_figure() -> None:
    nobody = flooding(1, 1, None, **QUICK | {"setup_limit": 1})
    with pytest.raises(BadData, match="clients are in"), nobody:
        pass

import socket
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.types import MQTT_5
from loadgen.storm import RetryMode, RetryPolicy, Target, TrafficPlan
from tests.support.real import TEST_S


def test_a_name_is_the_address_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a client finds it: `localhost` is often ::1 first, and brokers listen on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = [
            (family, socket.SOCK_STREAM, 6, "", (host, port))
            for family, host in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        target = Target.knock("localhost", port, MQTT_5, TEST_S)
    assert (target.host, target.family) == ("localhost", socket.AF_INET)
    assert target.address == ("127.0.0.1", port)


def test_none_gives_up_after_the_first_failure() -> None:
    assert RetryPolicy(RetryMode.NONE).delay_s(1, Random(1)) is None


def test_fixed_waits_the_same_time_for_ever() -> None:
    policy = RetryPolicy(RetryMode.FIXED, first_s=2.0, max_s=60.0)
    assert [policy.delay_s(failures, Random(1)) for failures in (1, 2, 50)] == [2.0, 2.0, 2.0]


@given(failures=st.integers(1, 10_000), seed=st.integers(0, 1_000))
def test_backoff_doubles_within_its_jitter_and_its_maximum(failures: int, seed: int) -> None:
    delay_s = RetryPolicy(RetryMode.BACKOFF, first_s=1.0, max_s=60.0).delay_s(
        failures, Random(seed)
    )
    assert delay_s is not None
    doubled_s = 2.0 ** min(failures - 1, 20)
    assert min(60.0, doubled_s / 2) <= delay_s <= min(60.0, doubled_s * 1.5)


def test_backoff_spreads_a_crowd_that_failed_together() -> None:
    rng = Random(7)
    delays = [RetryPolicy().delay_s(3, rng) for _ in range(1_000)]
    assert len(set(delays)) > 990


def test_the_same_seed_gives_the_same_waits() -> None:
    one, two = Random(3), Random(3)
    policy = RetryPolicy()
    for failures in range(1, 20):
        assert policy.delay_s(failures, one) == policy.delay_s(failures, two)


@pytest.mark.parametrize(
    ("plan", "clients", "share"),
    [
        (TrafficPlan(100, 1, 1), 200, 200),
        (TrafficPlan(1, 1, 100), 101, 200),
        (TrafficPlan(1, 100, 1), 101, 2),
        (TrafficPlan(1, 1_000, 1), 1_001, 1),
    ],
    ids=["pairs", "fanout", "fanin", "fanin of more than the backlog"],
)
def test_publishers_of_a_group_share_the_backlog(
    plan: TrafficPlan, clients: int, share: int
) -> None:
    assert (plan.clients, plan.backlog_share) == (clients, share)

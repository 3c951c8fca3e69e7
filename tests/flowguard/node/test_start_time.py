"""Subscribing into the past: user property `start-time` of SUBSCRIBE."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from flowguard.codec.packets import Suback, Subscribe
from flowguard.flow import Reason
from flowguard.node.applications import log_readers
from flowguard.node.connect.authentication import Hooks
from flowguard.types import Properties, ReasonCode, SubscriptionOptions
from tests.support.stage import Client, Stage, StoreWithLog

NOW_S = 1_700_000_000.0


def staged(*, hooks: Hooks | None = None, threshold: int = 1, **session: Any) -> Stage:
    store = StoreWithLog(lambda: stage.now_s)
    settings = {"session": {"log_threshold": threshold, **session}}
    stage = Stage(settings, store=store, hooks=hooks, now_s=NOW_S)
    # An offline client, so that all topics have a durable subscriber, and are logged.
    sleeper = stage.connect_durable("sleeper", session_expiry_interval=0xFFFF_FFFF)
    sleeper.subscribe("#", qos=1)
    sleeper.close()
    return stage


def subscribe(client: Client, filter: str, start: str | int, qos: int = 1) -> Suback:
    client.send(
        Subscribe(
            client.next_packet_id(),
            ((filter, SubscriptionOptions(qos=qos)),),
            Properties(user_properties=(("start-time", str(start)),)),
        )
    )
    return client.expect(Suback)


def publish(stage: Stage, topic: str, *payloads: bytes, qos: int = 1) -> None:
    publisher = stage.connect("p")
    for payload in payloads:
        publisher.publish(topic, payload, qos=qos)
    stage.advance(0.1)


def payloads(client: Client) -> list[bytes]:
    client.stage.advance(0.3)
    return [message.payload for message in client.publishes()]


def test_what_was_published_since_then_comes_first() -> None:
    stage = staged()
    publish(stage, "a", b"1")
    stage.advance(10)
    then_ms = round(stage.now_s * 1_000)
    publish(stage, "a", b"2", b"3")
    publish(stage, "b", b"not wanted")
    client = stage.connect_durable("s")
    assert subscribe(client, "a", then_ms).reason_codes == (1,)
    publish(stage, "a", b"4")
    assert payloads(client) == [b"2", b"3", b"4"]
    publish(stage, "a", b"5")
    assert payloads(client) == [b"5"]


def test_a_negative_one_is_before_now() -> None:
    stage = staged()
    publish(stage, "a", b"1")
    stage.advance(10)
    publish(stage, "a", b"2")
    client = stage.connect_durable("s")
    subscribe(client, "a", -5_000)
    assert payloads(client) == [b"2"]
    other = stage.connect_durable("t")
    subscribe(other, "a", -60_000)
    assert payloads(other) == [b"1", b"2"]


def test_one_in_the_future_is_now() -> None:
    stage = staged()
    publish(stage, "a", b"1")
    client = stage.connect_durable("s")
    subscribe(client, "a", "999999999999999")
    publish(stage, "a", b"2")
    assert payloads(client) == [b"2"]


def test_it_goes_on_after_a_resume_and_a_restart() -> None:
    stage = staged(queue_messages_max=4)
    numbers = [b"%d" % number for number in range(20)]
    publish(stage, "a", *numbers)
    client = stage.connect_durable("s", receive_maximum=2)
    subscribe(client, "a", 0)
    stage.advance(0.3)
    found = [each.payload for each in client.publishes(acknowledge=False)]
    assert found == numbers[:2]
    client.close()
    publish(stage, "a", b"20")
    client = stage.connect_durable("s", receive_maximum=2)
    stage.advance(0.3)
    taken = [each.payload for each in client.publishes()]
    assert taken[:2] == found
    stage.restart()
    publish(stage, "a", b"21")
    client = stage.connect_durable("s", receive_maximum=2)
    for _ in range(40):
        taken += payloads(client)
    assert taken == [*numbers, b"20", b"21"]
    assert stage.node.counters.dropped == {}


def test_one_that_is_there_goes_on() -> None:
    """A client that subscribes again at each connection gets no message twice."""
    stage = staged()
    publish(stage, "a", b"1")
    client = stage.connect_durable("s")
    subscribe(client, "a", 0)
    assert payloads(client) == [b"1"]
    client.close()
    publish(stage, "a", b"2")
    client = stage.connect_durable("s")
    subscribe(client, "a", 0)
    assert payloads(client) == [b"2"]
    client.unsubscribe("a")
    subscribe(client, "a", 0)
    assert payloads(client) == [b"1", b"2"]


def test_others_of_the_session_do_not_start_there() -> None:
    stage = staged()
    publish(stage, "a", b"1")
    publish(stage, "b", b"2")
    client = stage.connect_durable("s")
    client.subscribe("b", qos=1)
    subscribe(client, "a", 0)
    publish(stage, "b", b"3")
    publish(stage, "a", b"4")
    found = payloads(client)
    assert sorted(found) == [b"1", b"3", b"4"]
    assert found[0] == b"1"


def test_while_a_session_catches_up() -> None:
    """Messages missed by another subscription do not arrive by the new one as well."""
    stage = staged()
    publish(stage, "a/b", b"1")
    client = stage.connect_durable("s")
    client.subscribe("b", qos=1)
    client.close()
    publish(stage, "b", b"2")
    publish(stage, "a/b", b"3")
    stage.hold_fetches = True
    client = stage.connect_durable("s")
    subscribe(client, "a/#", 0)
    stage.release_fetches()
    publish(stage, "a/b", b"4")
    assert payloads(client) == [b"1", b"3", b"2", b"4"]


def test_who_unsubscribes_meanwhile_gets_no_more() -> None:
    stage = staged(queue_messages_max=4)
    publish(stage, "a", *[b"%d" % number for number in range(20)])
    client = stage.connect_durable("s", receive_maximum=2)
    subscribe(client, "a", 0)
    stage.advance(0.3)
    client.unsubscribe("a")
    assert len(payloads(client)) <= 6  # In flight, and in its queue.
    assert payloads(client) == []
    client.subscribe("b", qos=1)
    publish(stage, "b", b"x")
    assert payloads(client) == [b"x"]


def test_what_retention_has_dropped_before_is_no_loss() -> None:
    stage = staged()
    publish(stage, "a", b"1", b"2")
    assert isinstance(stage.store, StoreWithLog)
    stage.store.log.roll()
    stage.store.log.drop(1)
    publish(stage, "a", b"3")
    client = stage.connect_durable("s")
    subscribe(client, "a", 0)
    assert payloads(client) == [b"3"]
    assert stage.node.counters.dropped == {}


def test_what_retention_drops_before_it_is_read_is_counted() -> None:
    stage = staged()
    publish(stage, "a", b"1", b"2")
    client = stage.connect_durable("s")
    stage.hold_fetches = True
    subscribe(client, "a", 0)
    assert isinstance(stage.store, StoreWithLog)
    stage.store.log.roll()
    stage.store.log.drop(1)
    stage.release_fetches()
    publish(stage, "a", b"3")
    assert payloads(client) == [b"3"]
    assert stage.node.counters.dropped == {Reason.LOG_RETENTION: 2}


class NobodyLooksBack:
    """Hooks may forbid the past alone."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return True

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True

    def may_subscribe_since(self, client_id: str, filter: str, since_s: float) -> bool:
        return filter == "open"


@pytest.mark.parametrize(
    ("settings", "start", "filter", "qos", "code"),
    [
        ({}, "yesterday", "a", 1, ReasonCode.UNSPECIFIED_ERROR),
        ({}, "1e3", "a", 1, ReasonCode.UNSPECIFIED_ERROR),
        ({}, "9" * 16, "a", 1, ReasonCode.UNSPECIFIED_ERROR),
        ({}, "0", "a", 0, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ({}, "0", "$share/g/a", 1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"threshold": 0}, "0", "a", 1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ({"start_time_available": False}, "0", "a", 1, ReasonCode.NOT_AUTHORIZED),
        ({"hooks": Hooks(authorizer=NobodyLooksBack())}, "0", "a", 1, ReasonCode.NOT_AUTHORIZED),
        ({"hooks": Hooks(authorizer=NobodyLooksBack())}, "0", "open", 1, 1),
    ],
)
def test_it_is_refused_with_a_reason(
    settings: dict[str, Any], start: str, filter: str, qos: int, code: int
) -> None:
    client = staged(**settings).connect_durable("s")
    suback = subscribe(client, filter, start, qos)
    assert suback.reason_codes == (code,)
    why = suback.properties.reason_string
    assert (why is None) == (code == 1)
    if why is not None:
        assert why.startswith("start-time")
    # Nothing of it stays.
    assert len(client.stage.node.registry.sessions["s"].subscriptions) == (code == 1)


def test_a_session_that_is_not_kept_is_told_so() -> None:
    suback = subscribe(staged().connect("s"), "a", 0)
    assert suback.reason_codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,)
    assert "Session Expiry" in (suback.properties.reason_string or "")


def test_who_wants_no_reasons_gets_the_code_alone() -> None:
    """[MQTT-3.1.2-29] and [MQTT-3.9.2-1]: a SUBACK that is too large goes without."""
    for words in ({"request_problem_information": 0}, {"maximum_packet_size": 20}):
        suback = subscribe(staged().connect_durable("s", **words), "a", "?")
        assert suback.reason_codes == (ReasonCode.UNSPECIFIED_ERROR,)
        assert suback.properties.reason_string is None


FILTERS = ["#", "a/#", "+", "a/b"]
FITS = {
    "#": lambda _: True,
    "a/#": lambda topic: topic[0] == "a",
    "+": lambda topic: "/" not in topic,
    "a/b": lambda topic: topic == "a/b",
}


class AgainstLedger(RuleBasedStateMachine):
    """A session with one subscription at a time, from any instant on: everything since comes, in
    the order of publishing, once; whatever happens meanwhile."""

    @initialize(threshold=st.sampled_from([1, 2]))
    def start(self, threshold: int) -> None:
        self.stage = staged(threshold=1)
        self.stage.node.router.plans.log_threshold = threshold
        self.published: list[tuple[float, str, bytes]] = []
        self.client: Client | None = None
        self.owed: list[tuple[str, bytes]] = []
        self.got: list[tuple[str, bytes]] = []
        self.filter = ""
        self.come()

    @rule(topic=st.sampled_from(["a", "a/b", "b"]), count=st.integers(1, 4))
    def publish(self, topic: str, count: int) -> None:
        publisher = self.stage.connect("p")
        for _ in range(count):
            payload = b"%d" % len(self.published)
            publisher.publish(topic, payload, qos=2)
            self.published.append((self.stage.now_s, topic, payload))
            if self.filter and FITS[self.filter](topic):
                self.owed.append((topic, payload))

    @rule()
    def come(self) -> None:
        if self.client is None:
            self.client = self.stage.connect_durable("s", receive_maximum=3)

    @rule()
    def leave(self) -> None:
        if self.client is not None:
            self._take()
            self.client.close()
            self.client = None

    @rule(filter=st.sampled_from(FILTERS), back=st.integers(0, 8), holds=st.booleans())
    def subscribe(self, filter: str, back: int, holds: bool) -> None:
        """Only if all was logged: with a threshold of 2, no earlier message is owed."""
        self.come()
        assert self.client is not None
        if self.filter:
            self._take_all()
            self.client.unsubscribe(self.filter)
            self.client.publishes()
        self.stage.hold_fetches = holds
        self.got, self.owed, self.filter = [], [], filter
        since_s = self.stage.now_s - back - 0.05
        subscribe(self.client, filter, round(since_s * 1_000), qos=2)
        if self.stage.node.router.plans.log_threshold == 1:
            self.owed = [
                (t, p) for at_s, t, p in self.published if at_s > since_s and FITS[filter](t)
            ]

    @rule()
    def crash(self) -> None:
        threshold = self.stage.node.router.plans.log_threshold
        self._take()
        self.stage.restart()
        self.stage.node.router.plans.log_threshold = threshold
        self.client = None

    @rule(seconds=st.sampled_from([0.1, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.stage.hold_fetches = False
        self.stage.advance(seconds)

    @rule()
    def take(self) -> None:
        self._take()

    def _take(self) -> None:
        if self.client is not None:
            for message in self.client.publishes():
                if (message.topic, message.payload) in self.got:
                    assert message.dup
                else:
                    self.got.append((message.topic, message.payload))

    def _take_all(self) -> None:
        self.stage.hold_fetches = False
        for _ in range(100):
            self._take()
            if set(self.owed) <= set(self.got) and self.stage.node.state.journal.is_idle:
                break
            self.stage.advance(0.1)
        self.stage.advance(0.3)
        self._take()
        if self.stage.node.router.plans.log_threshold == 1:
            assert sorted(self.got) == sorted(self.owed)
        else:
            assert set(self.owed) <= set(self.got)
        for topic in ("a", "a/b", "b"):
            numbers = [int(payload) for at, payload in self.got if at == topic]
            assert numbers == sorted(numbers)

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self.come()
            self._take_all()


def test_everything_since_comes_once_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_readers, "PAGE_MAX", 4)
    monkeypatch.setattr(log_readers, "TAIL_MAX", 3)
    run_state_machine_as_test(AgainstLedger)


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("before", [None, 0], ids=["new", "of QoS 0 before"])
def test_a_subscription_begins_when_it_is_made_though_its_session_catches_up(
    before: int | None, restarts: bool
) -> None:
    stage = staged()
    client = stage.connect_durable("s")
    client.subscribe("a", qos=1)
    if before is not None:
        client.subscribe("b", qos=before)
    client.close()
    other = stage.connect_durable("t")
    other.subscribe("b", qos=1)
    other.close()
    publish(stage, "a", b"1")
    publish(stage, "b", b"before it")
    stage.hold_fetches = True
    client = stage.connect_durable("s")
    client.subscribe("b", qos=1)
    publish(stage, "b", b"2")
    if restarts:
        stage.restart()
        publish(stage, "b", b"3")
        client = stage.connect_durable("s")
    else:
        stage.release_fetches()
        publish(stage, "b", b"3")
    stage.advance(1)
    assert payloads(client) == [b"1", b"2", b"3"]
    (record,) = [each for each in stage.store.sessions() if each.client_id == "s"]
    assert record.log_starts == {}

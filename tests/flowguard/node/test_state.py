"""State that is kept for clients besides messages: bounded per client and in total, freed exactly.

The machine at the end lets three clients do everything that makes a node keep state, within limits
that are reached all the time, with crashes, take-overs, expiry and restarts in between.

1. Every budget equals the sum of its objects, to the byte; no limit of a client or of all is
   exceeded.
2. A client whose request is rejected keeps its earlier state.
3. Once all sessions have ended, no budget holds anything.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowguard.codec.packets import (
    Connack,
    Connect,
    Puback,
    Pubrel,
    Subscribe,
    Unsubscribe,
    Will,
)
from flowguard.flow import Reason
from flowguard.session.state_bytes import (
    ID_BYTES,
    name_bytes,
)
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.node.ledger import check_budgets, end_all_sessions, used_bytes
from tests.support.stage import Client, Stage

KIB = 1024
LIMIT_BYTES = 16 * KIB
LONG = "x" * 6 * KIB


def tight_stage(node_bytes: int = 1024 * KIB) -> Stage:
    settings = {"flow": {"window_max": 1_000}, "session": {"state_bytes_max": LIMIT_BYTES}}
    stage = Stage(settings)
    stage.node.state.state_budget.limit_bytes = node_bytes
    return stage


def state_bytes(stage: Stage) -> int:
    return used_bytes(stage.node)["state"]


def will_of(size_bytes: int, delay_s: int | None = None) -> Will:
    return Will("w", bytes(size_bytes), properties=Properties(will_delay_interval=delay_s))


# --- subscriptions ---------------------------------------------------------------------------


def test_a_filter_beyond_what_a_client_may_keep_is_refused_and_the_others_stand(
    version: int,
) -> None:
    stage = tight_stage()
    client = stage.connect("c", version=version)
    refused = ReasonCode.QUOTA_EXCEEDED if version == MQTT_5 else 0x80
    codes = client.subscribe("a" + LONG, "b" + LONG, "c" + LONG, "short").reason_codes
    assert codes == (0, 0, refused, 0)
    assert stage.node.counters.dropped == {Reason.STATE_BYTES: 1}
    client.unsubscribe("b" + LONG)
    assert client.subscribe("c" + LONG).reason_codes == (0,)


def test_a_filter_beyond_what_all_clients_may_keep_is_refused(version: int) -> None:
    stage = tight_stage(4 * 7 * KIB)
    clients = [stage.connect(f"c{number}", version=version) for number in range(4)]
    codes = [
        client.subscribe(f"{number}{LONG}").reason_codes[0] for number, client in enumerate(clients)
    ]
    assert [code < 0x80 for code in codes] == [True, True, True, False]
    assert stage.node.counters.dropped == {Reason.NODE_STATE_BYTES: 1}
    clients[0].close()
    assert clients[3].subscribe(LONG).reason_codes == (0,)


def test_a_filter_subscribed_again_costs_nothing(version: int) -> None:
    stage = tight_stage()
    client = stage.connect("c", version=version)
    client.subscribe("a" + LONG, "b" + LONG)
    before = state_bytes(stage)
    assert client.subscribe("a" + LONG, "b" + LONG, qos=1).reason_codes == (1, 1)
    assert state_bytes(stage) == before


def test_a_refused_filter_is_not_subscribed(version: int) -> None:
    stage = tight_stage()
    client = stage.connect("c", version=version)
    long = "y" * (LIMIT_BYTES - 100)
    assert client.subscribe(long).reason_codes[0] >= 0x80
    client.publish(long, b"x")
    assert client.publishes() == []


# --- wills and client ids --------------------------------------------------------------------


def test_a_will_beyond_what_a_client_may_keep_is_refused(version: int) -> None:
    stage = tight_stage()
    client = stage.attempt(Connect("c", version, will=will_of(LIMIT_BYTES)))
    code = client.expect(Connack).reason_code
    told = ReasonCode.QUOTA_EXCEEDED if version == MQTT_5 else ReasonCode.SERVER_UNAVAILABLE
    assert code == told
    assert client.is_closed
    assert stage.node.counters.dropped == {Reason.STATE_BYTES: 1}
    assert not stage.node.registry.sessions
    assert state_bytes(stage) == 0
    stage.connect("c", version=version, will=will_of(LIMIT_BYTES // 2))


def test_a_will_beyond_what_all_clients_may_keep_is_refused(version: int) -> None:
    stage = tight_stage(16 * KIB)
    stage.connect("one", version=version, will=will_of(10 * KIB))
    client = stage.attempt(Connect("two", version, will=will_of(10 * KIB)))
    assert client.is_closed
    assert stage.node.counters.dropped == {Reason.NODE_STATE_BYTES: 1}


@pytest.mark.parametrize("ends", ["published", "discarded", "delayed", "taken back"])
def test_a_will_is_given_back_when_it_is_owed_no_more(ends: str) -> None:
    stage = tight_stage()
    will = will_of(KIB, 10 if ends in ("delayed", "taken back") else None)
    client = stage.connect("c", will=will, session_expiry_interval=100)
    assert state_bytes(stage) > KIB
    if ends == "discarded":
        client.disconnect()
    else:
        client.close()
    if ends == "delayed":
        assert state_bytes(stage) > KIB
        stage.advance(11)
    elif ends == "taken back":
        stage.connect_durable("c")
    assert state_bytes(stage) == name_bytes("c")


def test_a_refused_connect_leaves_the_session_and_its_will_as_they_were() -> None:
    stage = tight_stage()
    client = stage.connect("c", will=will_of(KIB, 10), session_expiry_interval=100)
    client.subscribe("w", "a" + LONG, "b" + LONG)
    client.close()
    before = state_bytes(stage)
    again = stage.attempt(
        Connect(
            "c",
            clean_start=False,
            will=will_of(10 * KIB),
            properties=Properties(session_expiry_interval=100),
        )
    )
    assert again.expect(Connack).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert state_bytes(stage) == before
    watcher = stage.connect("watcher")
    watcher.subscribe("w")
    stage.advance(11)
    assert len(watcher.publishes()) == 1


def test_a_client_that_comes_back_with_another_will_pays_the_difference() -> None:
    stage = tight_stage(16 * KIB)
    for size_bytes in (10 * KIB, 11 * KIB, KIB, 10 * KIB):
        will = will_of(size_bytes, 50)
        client = stage.connect("c", clean_start=False, will=will, session_expiry_interval=100)
        client.close()
    assert 10 * KIB < state_bytes(stage) < 11 * KIB


def test_client_ids_count(version: int) -> None:
    stage = tight_stage()
    client = stage.attempt(Connect("c" * (LIMIT_BYTES + ID_BYTES), version))
    assert client.is_closed
    stage.connect("c" * (LIMIT_BYTES // 2 + ID_BYTES), version=version)
    assert state_bytes(stage) > LIMIT_BYTES // 2


# --- QoS 2 -----------------------------------------------------------------------------------


def test_identifiers_of_a_publish_that_breaks_a_rule_are_given_back() -> None:
    stage = Stage({"session": {"retain_available": False}})
    client = stage.connect("c", session_expiry_interval=100)
    client.send(Publish("t", b"", 2, retain=True, packet_id=1))
    assert client.is_closed
    assert state_bytes(stage) == name_bytes("c")


def test_a_restart_counts_what_the_store_remembers_whatever_the_limit() -> None:
    stage = tight_stage()
    client = stage.connect("c", will=will_of(KIB, 50), session_expiry_interval=100)
    client.subscribe("a" + LONG, "b/+")
    client.publish("t", qos=2)
    before = state_bytes(stage)
    stage.restart()
    assert state_bytes(stage) == before
    stage.node.state.state_budget.limit_bytes = 0
    again = stage.connect_durable("c")
    assert state_bytes(stage) < before - KIB
    assert again.subscribe("c").reason_codes == (ReasonCode.QUOTA_EXCEEDED,)
    end_all_sessions(stage.node, stage.now_s)


# --- all of it together ----------------------------------------------------------------------

CLIENTS = st.integers(0, 2)
TEXTS = st.builds(
    lambda start, size: start + "x" * size,
    st.sampled_from("abc"),
    st.sampled_from([0, 10, 2_000, 7_000]),
)
FILTERS = TEXTS | TEXTS.map("{}/+".format) | TEXTS.map("$share/g/{}".format)


class State(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = tight_stage(40 * KIB)
        self.clients: list[Client | None] = [None] * 3
        self.next_id = 0

    def client(self, index: int) -> Client:
        client = self.clients[index]
        if client is None or client.is_closed:
            client = self.attempt(index, MQTT_5, clean=False, expiry_s=5, will=None)
        return client

    def attempt(
        self, index: int, version: int, *, clean: bool, expiry_s: int, will: Will | None
    ) -> Client:
        values: dict[str, Any] = {"session_expiry_interval": expiry_s, "topic_alias_maximum": 5}
        client = self.clients[index] = self.stage.attempt(
            Connect(f"c{index}", version, clean, will=will, properties=Properties(**values))
        )
        return client

    @rule(
        index=CLIENTS,
        version=st.sampled_from([MQTT_5, MQTT_5, MQTT_311]),
        clean=st.booleans(),
        expiry_s=st.sampled_from([0, 5, 1_000]),
        will=st.none()
        | st.builds(
            will_of, st.sampled_from([0, 3_000, 12_000, 20_000]), st.sampled_from([None, 2])
        ),
    )
    def connect(
        self, index: int, version: int, clean: bool, expiry_s: int, will: Will | None
    ) -> None:
        self.attempt(index, version, clean=clean, expiry_s=expiry_s, will=will)

    @rule(index=CLIENTS, filters=st.lists(FILTERS, min_size=1, max_size=3))
    def subscribe(self, index: int, filters: list[str]) -> None:
        client = self.client(index)
        if not client.is_closed:
            options = SubscriptionOptions(1)
            client.send(Subscribe(1, tuple((filter, options) for filter in filters)))
            self.stage.settle()

    @rule(index=CLIENTS, filter=FILTERS)
    def unsubscribe(self, index: int, filter: str) -> None:
        client = self.client(index)
        if not client.is_closed:
            client.send(Unsubscribe(1, (filter,)))

    @rule(index=CLIENTS, topic=TEXTS, alias=st.none() | st.integers(1, 3))
    def publish(self, index: int, topic: str, alias: int | None) -> None:
        client = self.client(index)
        if not client.is_closed:
            alias = alias if client.version == MQTT_5 else None
            client.send(Publish(topic, b"", 0, properties=Properties(topic_alias=alias)))

    @rule(index=CLIENTS, count=st.sampled_from([1, 5, 60]))
    def publish_exactly_once(self, index: int, count: int) -> None:
        client = self.client(index)
        for _ in range(count):
            self.next_id = self.next_id % 200 + 1
            if not client.is_closed:
                client.send(Publish("a", b"", 2, packet_id=self.next_id))

    @rule(index=CLIENTS, count=st.sampled_from([1, 50]))
    def finish(self, index: int, count: int) -> None:
        client = self.client(index)
        session = client.connection.session
        if session is not None and not client.is_closed:
            client.send(*(Pubrel(each) for each in list(session.inbound_ids or ())[:count]))

    @rule(index=CLIENTS)
    def acknowledge(self, index: int) -> None:
        client = self.client(index)
        session = client.connection.session
        while session is not None and session.inflight.messages and not client.is_closed:
            client.send(*(Puback(packet_id) for packet_id in list(session.inflight.messages)))

    @rule(index=CLIENTS, orderly=st.booleans())
    def leave(self, index: int, orderly: bool) -> None:
        client = self.clients[index]
        if client is not None and not client.is_closed:
            if orderly:
                client.disconnect()
            else:
                client.close()

    @rule(seconds=st.sampled_from([0.2, 3.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.stage.advance(seconds)

    @rule()
    def store_becomes_slow(self) -> None:
        self.stage.hold_commits = True

    @rule()
    def store_becomes_quick(self) -> None:
        self.stage.release_commits()

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.stage.node.state.state_budget.limit_bytes = 60 * KIB
        self.clients = [None] * 3

    @invariant()
    def budgets_hold_what_is_there(self) -> None:
        node = self.stage.node
        open_connections = [
            client.connection
            for client in self.clients
            if client is not None and not client.is_closed
        ]
        check_budgets(node, open_connections)
        assert node.state.state_budget.used_bytes <= node.state.state_budget.limit_bytes
        for session in node.registry.sessions.values():
            assert session.account.size_bytes <= LIMIT_BYTES

    def teardown(self) -> None:
        self.stage.release_commits()
        end_all_sessions(self.stage.node, self.stage.now_s)


TestState = State.TestCase

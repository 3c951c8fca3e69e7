"""A burst equals its packets one by one: same bytes, same counts, same accounts.

Each example runs twice, the second time on a node that checks the rights of each packet. Packets
that cannot be handled as a burst are handled one by one. A burst has no more packets than a run of
single ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Packet, Pingreq, Puback
from flowguard.node.connect.authentication import Hooks
from flowguard.node.publish.bursts import DELIVERIES_MAX
from flowguard.node.publish.plans import WIDE_DELIVERIES
from flowguard.session.inbound.packets import BURST_SHARE, LONG_WAY_RUNS, RUN_MAX
from flowguard.types import MQTT_5, MQTT_311, NO_PROPERTIES, Properties, Publish
from tests.support.stage import Client, Stage

TOPICS = ("a/b", "a/c", "wide")
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "small window": {"flow": {"window_max": 5}},
    "small inflight": {"session": {"inflight_max": 7}},
    "small outbox": {"node": {"outbox_bytes_max": 1 << 20}, "session": {"outbox_bytes_max": 16384}},
    "short queue": {"session": {"queue_messages_max": 3, "inflight_max": 4}},
    "block": {"session": {"queue_policy": "block", "queue_messages_max": 3}},
    "QoS 0 only": {"session": {"maximum_qos": 0}},
    "small payloads": {"session": {"payload_bytes_max": 20}},
    "an own limit": {"session": {"inflight_bytes_max": 4096}},
    "little in flight": {"node": {"inflight_bytes_max": 1 << 20}},
    "a rate": {},
}
CREDITS: dict[str, int] = {"a rate": 30}

publishes = st.builds(
    Publish,
    topic=st.sampled_from(TOPICS),
    payload=st.sampled_from((b"", b"x" * 16, b"y" * 16, b"z" * 120, b"long" * 500)),
    qos=st.sampled_from((0, 0, 1, 1, 1, 2)),
    retain=st.sampled_from((False,) * 9 + (True,)),
    dup=st.sampled_from((False,) * 9 + (True,)),
    properties=st.sampled_from(
        (NO_PROPERTIES,) * 8
        + (Properties(topic_alias=1), Properties(user_properties=(("name", "value"),)))
    ),
)
repeated = st.lists(st.tuples(publishes, st.integers(1, 20)), min_size=1, max_size=6)
subscriptions = st.fixed_dictionaries(
    {
        "filter": st.sampled_from((*TOPICS, "a/+", "#", "$share/g/a/b")),
        "qos": st.sampled_from((0, 1, 1, 2)),
        "version": st.sampled_from((MQTT_311, MQTT_5)),
        "durable": st.sampled_from((False,) * 5 + (True,)),
        "no_local": st.sampled_from((False,) * 3 + (True,)),
        "identifier": st.sampled_from((0, 0, 0, 3)),
        "aliases": st.sampled_from((None, None, 5)),
        "receive_maximum": st.sampled_from((None, None, 3)),
        "acknowledges": st.booleans(),
        "reads": st.sampled_from((True,) * 5 + (False,)),
    }
)


def numbered(
    sent: Sequence[tuple[Publish, int]], first_id: int, version: int = MQTT_5
) -> list[Publish]:
    """Return each message as often as its count, with packet identifiers and distinct payloads."""
    found: list[Publish] = []
    for message, count in sent:
        for number in range(count):
            packet_id = (first_id + len(found)) % 65_535 + 1 if message.qos else 0
            payload = message.payload[:-1] + bytes((number,)) if message.payload else b""
            dup = message.dup and message.qos > 0
            properties = message.properties if version == MQTT_5 else NO_PROPERTIES
            found.append(
                replace(
                    message, payload=payload, dup=dup, packet_id=packet_id, properties=properties
                )
            )
    return found


def in_turn(sent: Sequence[tuple[Publish, int]]) -> list[tuple[Publish, int]]:
    """As many of each, but another one each time."""
    longest = max([count for _, count in sent])
    return [(message, 1) for number in range(longest) for message, count in sent if number < count]


def subscriber(stage: Stage, number: int, wanted: dict[str, Any]) -> Client:
    properties: dict[str, Any] = {}
    if wanted["version"] == MQTT_5:
        if wanted["aliases"]:
            properties["topic_alias_maximum"] = wanted["aliases"]
        if wanted["receive_maximum"]:
            properties["receive_maximum"] = wanted["receive_maximum"]
    connect = stage.connect_durable if wanted["durable"] else stage.connect
    client = connect(f"s{number}", version=wanted["version"], **properties)
    subscribe(client, wanted)
    return client


def subscribe(client: Client, wanted: dict[str, Any]) -> None:
    is_5 = client.version == MQTT_5
    client.subscribe(
        wanted["filter"],
        qos=wanted["qos"],
        identifier=wanted["identifier"] if is_5 else 0,
        no_local=wanted["no_local"] and is_5 and not wanted["filter"].startswith("$share"),
    )


def state(stage: Stage, clients: list[Client]) -> list[object]:
    """All that can be told from outside, and the node's accounts.

    Not the window: packets of a burst are work that a smaller window puts off, single ones are not.
    """
    node, window, shared = stage.node, stage.node.guard.window, stage.node.state
    told: list[object] = [vars_of(node.counters), window.in_process, window.active]
    for budget in (shared.inflight.budget, shared.queue_budget, shared.outbox_budget):
        told.append((budget.used_bytes, budget.holders_count))
    told.append(node.router.acknowledgements.latency.counts)
    for client in clients:
        session, inbound = client.connection.session, client.connection.inbound
        outbox = client.connection.outbound.outbox
        told.append((bytes(client.raw), client.is_closed, outbox.size_bytes))
        if session is not None and inbound is not None:
            sent = session.inflight.messages
            inflight = [(each, one and one.qos) for each, one in sent.items()]
            told.append((session.next_pos, inflight, session.queue.count))
            told.append((inbound.unacknowledged, inbound.waiting_bytes))
    return told


def vars_of(counters: object) -> dict[str, object]:
    names = [name for name in dir(counters) if not name.startswith("_")]
    values = {name: getattr(counters, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, int | dict)}


class Everybody:
    """May publish and receive all."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return True

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True


def play(
    name: str,
    version: int,
    wanted: list[dict[str, Any]],
    own: dict[str, Any] | None,
    chunks: Sequence[bytes],
    hooks: Hooks,
) -> list[object]:
    """Return the observable state after each chunk of a publisher, which may subscribe, too."""
    stage = Stage(SETTINGS[name], hooks=hooks)
    clients = [subscriber(stage, number, each) for number, each in enumerate(wanted)]
    publisher = stage.connect("p", version=version)
    if own is not None:
        subscribe(publisher, own)
    for topic in TOPICS:
        publisher.publish(topic)
    for each, client in zip(wanted, clients, strict=True):
        client.reads = each["reads"]
    stage.node.guard.window.credits = CREDITS.get(name)
    told: list[object] = []
    for chunk in chunks:
        publisher.send_bytes(chunk)
        told.append(state(stage, [*clients, publisher]))
        for each, client in zip(wanted, clients, strict=True):
            if each["acknowledges"] and not client.is_closed:
                client.publishes()
    stage.node.guard.window.credits = None
    stage.advance(0.1)
    for client in clients:
        if not client.reads:
            client.read_again()
        if not client.is_closed:
            client.publishes()
    return [*told, *state(stage, [*clients, publisher])]


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({each % (len(data) + 1) for each in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def assert_same(
    name: str,
    version: int,
    wanted: list[dict[str, Any]],
    own: dict[str, Any] | None,
    chunks: Sequence[bytes],
) -> list[object]:
    """Together and one by one; what can be told of both."""
    together = play(name, version, wanted, own, chunks, Hooks())
    one_by_one = play(name, version, wanted, own, chunks, Hooks(authorizer=Everybody()))
    assert together == one_by_one
    return together


@pytest.mark.parametrize("name", SETTINGS)
@given(
    version=st.sampled_from((MQTT_311, MQTT_5)),
    wanted=st.lists(subscriptions, max_size=3),
    own=st.none() | subscriptions,
    sent=repeated,
    between=st.sampled_from((None, None, Pingreq(), Puback(9))),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=5),
    alternate=st.booleans(),
)
def test_a_burst_comes_to_the_same_as_its_packets_one_by_one(
    name: str,
    version: int,
    wanted: list[dict[str, Any]],
    own: dict[str, Any] | None,
    sent: list[tuple[Publish, int]],
    between: Packet | None,
    cuts: list[int],
    alternate: bool,
) -> None:
    packets: list[Packet] = []
    for number, message in enumerate(
        numbered(in_turn(sent) if alternate else sent, 65_500, version)
    ):
        packets.append(message)
        if between is not None and number % 7 == 6:
            packets.append(between)
    if not all(
        each["reads"] and not each["durable"] for each in (*wanted, *([own] if own else []))
    ):
        del packets[RUN_MAX - 1 :]  # All in one run: nothing is sent, or stored, in between.
    chunks = cut(b"".join([encode(packet, version) for packet in packets]), cuts)
    assert_same(name, version, wanted, own, chunks)


def frames(count: int, version: int, qos: int = 1, payload: bytes = b"x") -> bytes:
    message = Publish("a/b", payload, qos)
    return b"".join([encode(each, version) for each in numbered([(message, count)], 0)])


@pytest.mark.parametrize("qos", [0, 1])
def test_those_who_get_a_burst_are_sent_it_in_one_piece(qos: int, version: int) -> None:
    stage = Stage()
    clients = [stage.connect(name, version=version) for name in "ab"]
    publisher = stage.connect("p", version=version)
    for client in clients:
        client.subscribe("a/+", qos=1)
    publisher.publish("a/b", b"x", qos=qos)
    publisher.connection.receive_data(frames(9, version, qos), stage.now_s)
    first, second = (client.connection.outbound.outbox.frames for client in clients)
    assert len(first) == 1
    assert first[0] is second[0]
    assert len(publisher.connection.outbound.outbox.frames) == qos
    stage.settle()
    received = [packet.payload for packet in clients[0].publishes()]
    assert received == [b"x", *[bytes((number,)) for number in range(9)]]
    assert stage.node.state.inflight.budget.used_bytes == (10 * 802 if qos else 0)
    clients[1].publishes()
    assert stage.node.state.inflight.budget.used_bytes == 0
    assert stage.node.state.inflight.budget.holders_count == 0


@pytest.mark.parametrize(
    ("name", "most"), [("an own limit", 3), ("small inflight", 7), ("short queue", 4)]
)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_limit_that_is_reached_inside_a_burst_is_kept_at_the_same_packet(
    name: str, most: int, taken: int, version: int
) -> None:
    found = []
    for hooks in (Hooks(), Hooks(authorizer=Everybody())):
        stage = Stage(SETTINGS[name], hooks=hooks)
        subscriber, publisher = (stage.connect(each, version=version) for each in "sp")
        subscriber.subscribe("a/b", qos=1)
        publisher.publish("a/b")
        for _ in range(taken):
            publisher.publish("a/b", b"before", qos=1)
        if most > taken:
            publisher.send_bytes(frames(most - taken, version))  # It is just not reached.
        publisher.send_bytes(frames(RUN_MAX, version))
        session = subscriber.connection.session
        assert session is not None
        assert len(session.inflight.messages) == most
        found.append((state(stage, [subscriber, publisher]), session.queue.count))
    assert found[0] == found[1]


PLAIN = Publish("a/b", b"x", 1)
ORDINARY: dict[str, Any] = {
    "filter": "a/b",
    "qos": 1,
    "version": MQTT_5,
    "durable": False,
    "no_local": False,
    "identifier": 0,
    "aliases": None,
    "receive_maximum": None,
    "reads": True,
}
LONG_WAY: dict[str, dict[str, Any]] = {
    "RETAIN": {"message": replace(PLAIN, retain=True)},
    "DUP": {"message": replace(PLAIN, dup=True)},
    "QoS 2": {"message": replace(PLAIN, qos=2)},
    "a topic alias": {"message": replace(PLAIN, properties=Properties(topic_alias=1))},
    "an authorizer": {"hooks": Hooks(authorizer=Everybody())},
    "a limit in bytes": {"settings": "an own limit"},
    "a limit in messages": {"settings": "small inflight"},
    "publishers that wait for room": {"settings": "block"},
    "a publisher that subscribes": {"publisher": ORDINARY},
    "a subscription at QoS 0": {"neighbour": ORDINARY | {"qos": 0}},
    "a subscriber of 3.1.1": {"neighbour": ORDINARY | {"version": MQTT_311}},
    "a durable subscriber": {"neighbour": ORDINARY | {"durable": True}},
    "No Local": {"neighbour": ORDINARY | {"no_local": True}},
    "a subscription identifier": {"neighbour": ORDINARY | {"identifier": 1}},
    "a subscriber with topic aliases": {"neighbour": ORDINARY | {"aliases": 5}},
    "a small receive maximum": {"neighbour": ORDINARY | {"receive_maximum": 3}},
    "a socket that is full": {"neighbour": ORDINARY | {"reads": False}},
    "a shared subscription": {"neighbour": ORDINARY | {"filter": "$share/g/a/b"}},
    "nothing of all that": {},
}


@pytest.mark.parametrize("what", LONG_WAY)
def test_where_one_packet_may_differ_from_another_each_goes_the_long_way(what: str) -> None:
    case = LONG_WAY[what]
    stage = Stage(SETTINGS[case.get("settings", "plain")], hooks=case.get("hooks", Hooks()))
    plain = subscriber(stage, 0, ORDINARY)
    neighbour = subscriber(stage, 1, case.get("neighbour", ORDINARY))
    publisher = stage.connect("p")
    if "publisher" in case:
        subscribe(publisher, case["publisher"])
    neighbour.reads = case.get("neighbour", ORDINARY)["reads"]
    publisher.publish("a/b", qos=1)
    plain.publishes()
    sent = numbered([(case.get("message", PLAIN), 8)], 1)
    data = b"".join([encode(packet, MQTT_5) for packet in sent])
    publisher.connection.receive_data(data, stage.now_s)
    pieces = len(plain.connection.outbound.outbox.frames)
    assert (pieces == 1) is (what == "nothing of all that")
    stage.settle()
    assert [packet.payload for packet in plain.publishes()] == [packet.payload for packet in sent]


@pytest.mark.slow
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("subscribers", [250, 251, WIDE_DELIVERIES])
def test_a_burst_for_many_subscribers_is_shortened_and_each_message_takes_its_weight(
    qos: int, subscribers: int, version: int
) -> None:
    stage = Stage()
    clients = [stage.connect(f"s{n}", version=version) for n in range(subscribers)]
    publisher = stage.connect("p", version=version)
    for client in clients:
        client.subscribe("a/b", qos=1)
    publisher.publish("a/b", qos=1)
    for client in clients:
        client.publishes()
    counters = stage.node.counters
    before = counters.publish_received
    publisher.connection.receive_data(frames(RUN_MAX, version, qos), stage.now_s)
    assert counters.publish_received - before == DELIVERIES_MAX // subscribers
    assert {len(client.connection.outbound.outbox.frames) for client in clients} == {1}
    stage.settle()
    for client in clients:
        received = [packet.payload for packet in client.publishes()]
        assert received == [bytes((number,)) for number in range(RUN_MAX)]
    assert stage.node.state.inflight.budget.used_bytes == 0


def test_who_was_refused_is_asked_again_after_some_runs(version: int) -> None:
    stage = Stage()
    client, neighbour, publisher = (stage.connect(name, version=version) for name in "cnp")
    client.subscribe("a/b", qos=1)
    neighbour.subscribe("a/b", qos=0)
    publisher.publish("a/b")  # now the topic is known
    stage.settle()
    client.publishes()
    pieces = []
    for run in range(LONG_WAY_RUNS + 2):
        publisher.connection.receive_data(frames(4, version), stage.now_s)
        pieces.append(len(client.connection.outbound.outbox.frames))
        stage.settle()
        client.publishes()
        if not run:
            neighbour.unsubscribe("a/b")
    assert pieces == [4] * (LONG_WAY_RUNS + 1) + [1]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("window", [5, 100])
def test_a_run_handles_more_packets_by_bursts_than_one_by_one_and_no_more_than_the_window(
    qos: int, window: int, version: int
) -> None:
    """As much work: a client gets no longer a slice of the loop."""
    stage = Stage({"flow": {"window_max": window}})
    publisher, client = (stage.connect(name, version=version) for name in "ps")
    client.subscribe("a/b", qos=1)
    publisher.publish("a/b")
    counters = stage.node.counters
    before = counters.publish_received
    publisher.connection.receive_data(frames(100, version, qos), stage.now_s)
    assert counters.publish_received - before == min(window, BURST_SHARE * RUN_MAX)
    stage.settle()
    assert counters.publish_received - before == 100


def test_a_run_of_bursts_fills_no_outbox_that_would_be_sent_between_runs(version: int) -> None:
    """Messages that do not fit then are handled again when the others have left."""
    stage = Stage(SETTINGS["small outbox"])
    publisher, client = (stage.connect(name, version=version) for name in "ps")
    client.subscribe("a/b", qos=0)
    publisher.publish("a/b")
    client.publishes()
    for count in range(2, 100, 7):
        publisher.send_bytes(frames(count, version, 0, b"x" * 1_000))  # Sixteen fit.
        assert len(client.publishes()) == count
    assert not stage.node.counters.dropped


MIXED = [("a/b", b"x"), ("a/c", b"yy"), ("a/b", b""), ("a/long/er", b"z" * 200), ("a/c", b"x")]


def mixed(version: int, qos: int, topics: Sequence[tuple[str, bytes]] = MIXED) -> bytes:
    messages = [
        Publish(topic, payload, qos, packet_id=qos and 1 + at)
        for at, (topic, payload) in enumerate(topics)
    ]
    return b"".join([encode(each, version) for each in messages])


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_of_several_topics_and_sizes_for_one_subscriber_are_a_burst(
    qos: int, version: int
) -> None:
    stage = Stage()
    client, publisher = (stage.connect(name, version=version) for name in "cp")
    client.subscribe("a/#", qos=1)
    for topic, _ in MIXED:
        publisher.publish(topic)
    client.publishes()
    publisher.connection.receive_data(mixed(version, qos), stage.now_s)
    assert len(client.connection.outbound.outbox.frames) == 1
    assert len(publisher.connection.outbound.outbox.frames) == qos
    stage.settle()
    payload_bytes = sum(len(payload) for _, payload in MIXED)
    expected = 800 * len(MIXED) + 2 * payload_bytes if qos else 0
    assert stage.node.state.inflight.budget.used_bytes == expected
    received = client.publishes()
    assert [(packet.topic, packet.payload) for packet in received] == MIXED
    assert stage.node.state.inflight.budget.used_bytes == 0
    assert stage.node.state.inflight.budget.holders_count == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_a_burst_of_several_topics_ends_where_somebody_else_gets_a_message(
    qos: int, version: int
) -> None:
    stage = Stage()
    client, other, publisher = (stage.connect(name, version=version) for name in "cop")
    client.subscribe("a/#", qos=1)
    for topic, _ in MIXED:
        publisher.publish(topic)
    client.publishes()
    other.subscribe("a/long/+", qos=1)
    publisher.connection.receive_data(mixed(version, qos), stage.now_s)
    # A burst of three, and the others by one.
    assert len(client.connection.outbound.outbox.frames) == 3
    stage.settle()
    assert [(packet.topic, packet.payload) for packet in client.publishes()] == MIXED
    assert [(packet.topic, packet.payload) for packet in other.publishes()] == MIXED[3:4]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscriber_at_qos_0_of_one_topic_ends_a_burst_at_qos_1(qos: int, version: int) -> None:
    stage = Stage()
    client, publisher = (stage.connect(name, version=version) for name in "cp")
    client.subscribe("a/b", qos=1)
    client.subscribe("a/c", qos=0)
    topics = [("a/b", b"1"), ("a/b", b""), ("a/c", b"2"), ("a/b", b"3")]
    for topic, _ in topics:
        publisher.publish(topic)
    client.publishes()
    publisher.connection.receive_data(mixed(version, qos, topics), stage.now_s)
    assert len(client.connection.outbound.outbox.frames) == (3 if qos else 1)
    stage.settle()
    received = client.publishes()
    assert [(packet.topic, packet.payload) for packet in received] == topics
    assert [packet.qos for packet in received] == [qos, qos, 0, qos]

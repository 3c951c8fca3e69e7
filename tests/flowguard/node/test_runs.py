"""The work of one run of a connection is bounded, for any packets in a chunk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.decoder import BATCH_MAX
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Packet, Pingreq, Puback, Pubcomp, Pubrec, Pubrel
from flowguard.session.inbound.packets import RUN_MAX
from flowguard.types import MQTT_5, Publish
from tests.support.stage import Client, Stage

KINDS: dict[str, Packet] = {
    "PINGREQ": Pingreq(),
    "PUBREL": Pubrel(7),
    "PUBREC": Pubrec(7),
    "PUBCOMP": Pubcomp(7),
}


def handled(client: Client) -> int:
    return client.stage.node.counters.messages_received


def paused() -> Client:
    """A client whose window is full."""
    stage = Stage({"flow": {"window_max": 1}})
    client = stage.connect_durable("c")
    stage.hold_commits = True
    client.send(Publish("t", b"", 2, packet_id=1), Publish("t", b"", 2, packet_id=2))
    assert client.connection.inbound is not None
    assert not client.connection.inbound.room()
    return client


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(count=st.integers(1, 3 * BATCH_MAX + 1), tail=st.sampled_from([b"", b"\xc0", b"\x40\x02"]))
def test_packets_that_do_not_count_are_counted(
    waits: bool, kind: str, count: int, tail: bytes
) -> None:
    client = paused() if waits else Stage().connect("c")
    stage, connection = client.stage, client.connection
    data = encode(KINDS[kind], MQTT_5) * count + tail
    before = handled(client)
    connection.receive_data(data, stage.now_s)
    assert handled(client) - before <= BATCH_MAX
    while stage.node.state.runnable:
        runnable, stage.node.state.runnable = stage.node.state.runnable, []
        at = handled(client)
        for each in runnable:
            each.queued = False
            each.run(stage.now_s)
        assert handled(client) - at <= BATCH_MAX
    assert handled(client) - before == count
    stage.settle()
    assert not client.is_closed


@given(
    kinds=st.lists(
        st.sampled_from([*KINDS.values(), Puback(7), Publish("t", b"x")]), min_size=1, max_size=4
    ),
    times=st.integers(1, BATCH_MAX),
)
def test_kinds_together_are_bounded_and_all_are_handled(kinds: list[Packet], times: int) -> None:
    client = Stage().connect("c")
    stage = client.stage
    data = b"".join(encode(kind, MQTT_5) for kind in kinds) * times
    before = handled(client)
    client.connection.receive_data(data, stage.now_s)
    assert handled(client) - before <= BATCH_MAX + RUN_MAX + times * kinds.count(Puback(7))
    stage.settle()
    assert handled(client) - before == times * len(kinds)
    assert stage.node.counters.publish_received == times * kinds.count(Publish("t", b"x"))

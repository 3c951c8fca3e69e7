"""Each packet that the upstream has not answered counts, whatever its packet identifier is."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.packets import Packet, Puback, Pubrec, Suback, Subscribe, Unsuback, Unsubscribe
from flowguard.config import FlowSettings
from flowguard.types import MQTT_5, MQTT_311, Publish, SubscriptionOptions
from tests.broker_adapter.proxy_stage import ProxyStage

WINDOW = 4
KIB = 1024
COUNTED = (Publish, Subscribe, Unsubscribe)
IDENTIFIERS = st.integers(1, 3)
PACKETS = st.one_of(
    st.builds(
        lambda qos, packet_id, size, dup: Publish(
            "a", bytes(size), qos, packet_id=packet_id, dup=dup
        ),
        st.integers(1, 2),
        IDENTIFIERS,
        st.sampled_from([1, 70 * KIB]),
        st.booleans(),
    ),
    st.builds(
        lambda packet_id: Subscribe(packet_id, (("a", SubscriptionOptions(1)),)), IDENTIFIERS
    ),
    st.builds(lambda packet_id: Unsubscribe(packet_id, ("a",)), IDENTIFIERS),
)


def answer_to(packet: Packet) -> Packet:
    if isinstance(packet, Publish):
        return (Puback if packet.qos == 1 else Pubrec)(packet.packet_id)
    if isinstance(packet, Subscribe):
        return Suback(packet.packet_id, (1,))
    assert isinstance(packet, Unsubscribe)
    return Unsuback(packet.packet_id, (0,))


@given(
    packets=st.lists(PACKETS, max_size=40),
    version=st.sampled_from([MQTT_311, MQTT_5]),
    picks=st.lists(st.integers(0, 2), max_size=60),
)
def test_unanswered_packets_stay_within_the_window_when_identifiers_repeat(
    packets: list[Packet], version: int, picks: list[int]
) -> None:
    """An upstream answers packets of one kind in order, and each kind at its own pace."""
    stage = ProxyStage(FlowSettings(window_max=WINDOW), 1 << 20)
    client = stage.connect(version)
    cost_bytes = stage.core.settings.cost_bytes
    client.send(*packets)
    unanswered: dict[type, deque[Packet]] = {kind: deque() for kind in COUNTED}
    seen = 0
    for pick in [*picks, *range(3 * len(packets) + 3)]:
        forwarded = client.packets_at_upstream()[1:]
        for packet in forwarded[seen:]:
            unanswered[type(packet)].append(packet)
        seen = len(forwarded)
        cost = [
            1 + len(packet.payload) // cost_bytes if isinstance(packet, Publish) else 1
            for queue in unanswered.values()
            for packet in queue
        ]
        assert sum(cost) <= WINDOW or len(cost) == 1
        queue = unanswered[COUNTED[pick % 3]]
        if queue:
            client.answer(answer_to(queue.popleft()))
    assert client.packets_at_upstream()[1:] == packets
    assert stage.core.in_process_count == 0

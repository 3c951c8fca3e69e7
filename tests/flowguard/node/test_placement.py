"""CONNECTs of clients whose session another worker owns."""

from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Pingreq
from flowguard.session.connection import ServerConnection
from flowguard.types import MQTT_5, MQTT_31, MQTT_311, ReasonCode
from tests.flowguard.codec.strategies import connects
from tests.support.stage import Stage

VERSIONS = (MQTT_31, MQTT_311, MQTT_5)


class Elsewhere:
    """A placement that owns only client ids that begin with `here`."""

    def __init__(self) -> None:
        self.handed_over: list[tuple[str, bytes]] = []

    def owns(self, client_id: str) -> bool:
        return client_id.startswith("here")

    def hand_over(self, connection: ServerConnection, packet: Connect, now_s: float) -> None:
        self.handed_over.append((packet.client_id, connection.sent_so_far()))


def stage_of(placement: Elsewhere, settings: dict[str, dict[str, object]] | None = None) -> Stage:
    stage = Stage(settings)
    stage.node.handshakes.placement = placement
    return stage


@given(st.data())
def test_other_worker_gets_what_the_client_has_sent(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS))
    connect = data.draw(connects(version).filter(lambda packet: bool(packet.client_id)))
    connect.client_id = f"x{connect.client_id}"[:20]
    placement = Elsewhere()
    client = stage_of(placement).open(version)
    client.send_bytes(encode(connect, version) + encode(Pingreq(), version) + b"\x30")
    ((name, sent),) = placement.handed_over
    assert name == connect.client_id
    decoder = PacketDecoder(1_000_000)
    decoder.feed(sent)
    assert decoder.next() == connect
    assert decoder.next() == Pingreq()
    assert decoder.rest() == b"\x30"


def test_connection_is_handed_over_before_it_takes_capacity() -> None:
    placement = Elsewhere()
    stage = stage_of(placement, {"node": {"connections_max": 100}})
    for number in range(100):
        stage.connect(f"here-{number}")
    stage.attempt(Connect("elsewhere", MQTT_5))
    assert [name for name, _ in placement.handed_over] == ["elsewhere"]
    assert not stage.node.guard.gate.in_process


def test_assigned_client_id_is_one_that_the_worker_owns() -> None:
    ids = iter(["elsewhere-1", "here-1", "elsewhere-2", "here-1", "here-2"])
    stage = stage_of(Elsewhere())
    stage.node.handshakes._random_id = lambda: next(ids)
    first, second = stage.connect(), stage.connect()
    assert first.connack.properties.assigned_client_identifier == "here-1"
    assert second.connack.properties.assigned_client_identifier == "here-2"


def test_draining_worker_hands_nothing_over() -> None:
    placement = Elsewhere()
    stage = stage_of(placement)
    stage.node.drain(stage.now_s)
    connack = stage.attempt(Connect("elsewhere", MQTT_5)).expect(Connack)
    assert connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert not placement.handed_over

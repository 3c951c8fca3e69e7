"""Rules in a node: what is refused, how that is said, and what becomes of it when rules change."""

import pytest

from flowguard.access.rights import TOPICS_MAX
from flowguard.access.rules_toml import parse_toml
from flowguard.codec.packets import Connack, Connect, Disconnect, Puback, Pubrec, Will
from flowguard.flow import Pause, Reason
from flowguard.node.connect.authentication import Hooks
from flowguard.ops.explain import explain
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, ReasonCode
from tests.support.authentication import SaidNames
from tests.support.readings import payloads
from tests.support.stage import Client, Stage, StoreWithLog

NOT_AUTHORIZED = ReasonCode.NOT_AUTHORIZED
RULES = """
[roles.sensor]
users = ["ann", "bob"]
publish = ["sensors/%u/#", {topic = "once", qos_max = 0, retain = false, will = false}]
[roles.reader]
users = ["eve", "ann"]
subscribe = ["sensors/+/#", {topic = "low/#", qos_max = 1}]
receive = ["news/#"]
deny = ["news/secret/#", "sensors/+/secret"]
[roles.all]
users = ["root"]
publish = ["#"]
receive = ["#", "$SYS/#"]
[roles.guest]
anonymous = true
receive = ["news/#"]
"""
KEPT = Properties(session_expiry_interval=3_600)


def make_stage(rules: str = RULES, **settings: dict[str, object]) -> Stage:
    hooks = Hooks(checker=SaidNames(), rules=parse_toml(rules, "acl.toml"))
    return Stage(dict(settings), hooks=hooks)


def come(
    stage: Stage,
    user: str | None,
    client_id: str | None = None,
    *,
    version: int = MQTT_5,
    keeps: bool = False,
    will: Will | None = None,
) -> Client:
    """A client that has said CONNECT; `keeps`: its session outlives the connection."""
    connect = Connect(client_id or f"c-{user}", version, not keeps, username=user, will=will)
    if keeps and version == MQTT_5:
        connect.properties = KEPT
    client = stage.attempt(connect)
    client.connack = client.expect(Connack)
    return client


# --- refusals --------------------------------------------------------------------------------


def test_a_publish_is_refused_with_0x87_and_goes_nowhere() -> None:
    stage = make_stage()
    root, ann = come(stage, "root"), come(stage, "ann")
    root.subscribe("#", qos=2)
    for qos, kind in ((1, Puback), (2, Pubrec)):
        ann.publish("sensors/ann/t", b"good", qos=qos)
        assert ann.expect(kind).reason_code == 0
        ann.publish("sensors/bob/t", b"bad", qos=qos)
        assert ann.expect(kind).reason_code == NOT_AUTHORIZED
    ann.publish("elsewhere", b"bad")
    ann.publish("sensors/ann/t", b"good")
    assert payloads(root) == [b"good"] * 3
    assert stage.node.counters.dropped[Reason.NOT_AUTHORIZED] == 3
    assert not ann.is_closed


def test_3_1_1_gets_its_acknowledgement_and_nobody_the_message() -> None:
    stage = make_stage()
    root, ann = come(stage, "root"), come(stage, "ann", version=MQTT_311)
    root.subscribe("#")
    packet_id = ann.publish("elsewhere", b"bad", qos=1)
    assert ann.expect(Puback) == Puback(packet_id)
    assert payloads(root) == []


def test_qos_and_retain_have_limits() -> None:
    stage = make_stage()
    ann = come(stage, "ann")
    ann.publish("once", b"x", qos=1)
    assert ann.expect(Puback).reason_code == NOT_AUTHORIZED
    ann.publish("once", b"x", retain=True)
    ann.publish("once", b"x")
    assert stage.node.counters.dropped[Reason.NOT_AUTHORIZED] == 2
    assert len(stage.node.router.retained) == 0


@pytest.mark.parametrize(("version", "refusal"), [(MQTT_5, 0x87), (MQTT_311, 0x80)])
def test_a_subscription_is_refused_filter_by_filter(version: int, refusal: int) -> None:
    eve = come(make_stage(), "eve", version=version)
    suback = eve.subscribe(
        "sensors/a/#", "#", "sensors", "low/x", "other/#", "sensors/+/secret", qos=2
    )
    assert suback.reason_codes == (2, 2, refusal, 1, refusal, refusal)


def test_a_subscription_brings_what_may_be_received_and_nothing_else() -> None:
    stage = make_stage()
    root, eve, guest = come(stage, "root"), come(stage, "eve"), come(stage, None)
    assert eve.subscribe("#", qos=1).reason_codes == (1,)
    assert guest.subscribe("+/#", qos=1).reason_codes[0] < 0x80
    for topic in ("news/a", "news/secret/a", "sensors/a/secret", "sensors/a/t", "other"):
        root.publish(topic, topic.encode(), qos=1)
        root.publish(topic, topic.encode())
    assert payloads(eve) == [b"news/a"] * 2 + [b"sensors/a/t"] * 2
    assert payloads(guest) == [b"news/a"] * 2 + [b"news/secret/a"] * 2


def test_retained_messages_are_those_that_may_be_received() -> None:
    stage = make_stage()
    root, eve = come(stage, "root"), come(stage, "eve")
    for topic in ("news/a", "news/secret/a", "other"):
        root.publish(topic, topic.encode(), retain=True)
    eve.subscribe("#")
    assert payloads(eve) == [b"news/a"]


def test_a_shared_subscription_needs_the_right_to_all_of_it() -> None:
    eve = come(make_stage(), "eve")
    suback = eve.subscribe("$share/g/low/#", "$share/g/#", "$share/g/news/#", "$share/g/news/a")
    assert suback.reason_codes == (0, NOT_AUTHORIZED, NOT_AUTHORIZED, 0)


@pytest.mark.parametrize(
    ("will", "code"),
    [
        (Will("sensors/ann/gone", b""), 0),
        (Will("sensors/bob/gone", b""), NOT_AUTHORIZED),
        (Will("once", b""), NOT_AUTHORIZED),
        (Will("sensors/ann/gone", b"", qos=2, retain=True), 0),
    ],
)
def test_a_will_is_refused_in_connack(will: Will, code: int) -> None:
    stage = make_stage()
    client = come(stage, "ann", will=will)
    assert client.connack.reason_code == code
    assert client.is_closed == bool(code)
    old = come(stage, "ann", "old", version=MQTT_311, will=will)
    assert old.raw[3] == (5 if code else 0)


def test_who_has_no_name_has_the_rights_of_guests() -> None:
    guest = come(make_stage(), None)
    guest.publish("sensors/ann/t", b"", qos=1)
    assert guest.expect(Puback).reason_code == NOT_AUTHORIZED
    assert guest.subscribe("news/a", "sensors/a/#").reason_codes == (0, NOT_AUTHORIZED)


def test_sys_topics_are_a_matter_of_rules_too() -> None:
    stage = make_stage()
    root, eve = come(stage, "root"), come(stage, "eve")
    assert root.subscribe("$SYS/#").reason_codes == (0,)
    assert eve.subscribe("$SYS/#").reason_codes == (NOT_AUTHORIZED,)
    stage.node.router.publish_own(Publish("$SYS/x", b"1"), stage.now_s)
    stage.settle()
    assert payloads(root) == [b"1"]


# --- decided once ----------------------------------------------------------------------------


def test_a_topic_is_decided_once_and_what_is_remembered_is_bounded_and_charged() -> None:
    stage = make_stage()
    ann = come(stage, "ann")
    session = stage.node.registry.sessions["c-ann"]
    rights = session.rights
    assert rights is not None
    before_bytes = session.account.size_bytes
    ann.publish("sensors/ann/t")
    decision = rights.remembered("sensors/ann/t")
    assert decision > 0
    rights.remember("sensors/ann/t", 0)  # The rules are not asked again.
    ann.publish("sensors/ann/t", qos=1)
    assert ann.expect(Puback).reason_code == NOT_AUTHORIZED
    sizes = []
    for number in range(3 * TOPICS_MAX):
        ann.publish(f"sensors/ann/{number:02}")
        sizes.append(session.account.size_bytes)
    assert max(sizes) - before_bytes < 200 * TOPICS_MAX
    assert session.account.charge(-rights.forget(), stage.node.state) is None
    assert session.account.size_bytes == before_bytes
    ann.publish("sensors/ann/" + "x" * 500)
    assert session.account.size_bytes == before_bytes
    ann.disconnect()
    assert stage.node.state.state_budget.used_bytes == 0


# --- other rights ----------------------------------------------------------------------------


def test_new_rules_hold_for_those_who_are_here() -> None:
    stage = make_stage()
    root, ann, eve = come(stage, "root"), come(stage, "ann"), come(stage, "eve")
    eve.subscribe("#", "sensors/+/#", "$share/g/low/#", qos=1)
    ann.publish("sensors/ann/t", b"1", qos=1)
    assert ann.expect(Puback).reason_code == 0
    changed = RULES.replace('publish = ["sensors/%u/#",', 'publish = ["things/%u/#",')
    changed = changed.replace('subscribe = ["sensors/+/#", {topic = "low/#", qos_max = 1}]', "")
    stage.node.use_rules(parse_toml(changed, "acl.toml"), stage.now_s)
    stage.settle()
    assert payloads(eve) == [b"1"]
    assert list(stage.node.registry.sessions["c-eve"].subscriptions) == ["#"]
    root.publish("sensors/ann/t", b"2", qos=1)
    root.publish("low/a", b"2", qos=1)
    root.publish("news/a", b"3", qos=1)
    assert payloads(eve) == [b"3"]
    for topic, code in (("sensors/ann/t", NOT_AUTHORIZED), ("things/ann/t", 0x10)):
        ann.publish(topic, qos=1)
        assert ann.expect(Puback).reason_code == code


def test_the_log_learns_that_it_was_the_will() -> None:
    stage = make_stage()
    told: list[str] = []
    stage.node.on_turned_away = lambda connection, reason, why: told.append(why)
    come(stage, "ann", will=Will("sensors/bob/gone", b"gone"))
    assert told == ["its user may not publish to the topic of its will"]


def test_new_rules_take_back_a_will_that_nobody_may_leave_any_more() -> None:
    stage = make_stage()
    root = come(stage, "root")
    root.subscribe("#")
    ann = come(stage, "ann", will=Will("sensors/ann/gone", b"gone"))
    bob = come(stage, "bob", will=Will("sensors/bob/gone", b"gone"))
    changed = RULES.replace('users = ["ann", "bob"]', 'users = ["bob"]')
    stage.node.use_rules(parse_toml(changed, "acl.toml"), stage.now_s)
    stage.settle()
    ann.close()
    bob.close()
    assert [message.topic for message in root.publishes()] == ["sensors/bob/gone"]


def test_a_will_that_nobody_may_leave_any_more_goes_nowhere_where_rights_have_no_room() -> None:
    stage = make_stage(session={"state_bytes_max": 16 * 1024})
    root = come(stage, "root")
    root.subscribe("#")
    ann = come(stage, "ann", will=Will("sensors/ann/gone", b"gone"))
    many = ", ".join(f'"{number}/%c"' for number in range(200))
    changed = RULES.replace('publish = ["sensors/%u/#",', f"publish = [{many},")
    stage.node.use_rules(parse_toml(changed, "acl.toml"), stage.now_s)
    stage.settle()
    assert ann.expect(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert root.publishes() == []


def test_somebody_else_with_the_same_client_id_gets_nothing_that_is_not_theirs() -> None:
    stage = make_stage(session={"bound_to_user": False})
    root = come(stage, "root")
    first = come(stage, "ann", "shared", keeps=True)
    first.subscribe("sensors/+/#", "news/#", qos=1)
    first.close()
    root.publish("sensors/a/t", b"for ann", qos=1)
    root.publish("news/a", b"for all", qos=1)
    second = come(stage, None, "shared", keeps=True)
    assert second.connack.session_present
    assert payloads(second) == [b"for all"]
    assert list(stage.node.registry.sessions["shared"].subscriptions) == ["news/#"]
    root.publish("sensors/a/t", b"later", qos=1)
    root.publish("news/secret/a", b"guests may", qos=1)
    assert payloads(second) == [b"guests may"]
    assert stage.node.counters.dropped[Reason.NOT_AUTHORIZED] == 1


def test_after_a_restart_rights_are_asked_when_the_client_comes() -> None:
    stage = make_stage()
    eve = come(stage, "eve", keeps=True)
    eve.subscribe("#", "sensors/+/#", qos=1)
    root = come(stage, "root")
    root.publish("other", b"not for eve", qos=1)
    eve.close()
    stage.restart()
    root = come(stage, "root")
    root.publish("other", b"not for eve", qos=1)
    root.publish("news/a", b"for eve", qos=1)
    eve = come(stage, "eve", keeps=True)
    assert payloads(eve) == [b"for eve"]
    root.publish("other", b"not for eve", qos=1)
    root.publish("sensors/a/b", b"for eve", qos=1)
    assert payloads(eve) == [b"for eve"]


def test_what_is_read_from_the_log_is_what_may_be_received() -> None:
    hooks = Hooks(checker=SaidNames(), rules=parse_toml(RULES, "acl.toml"))
    stage = Stage({"session": {"log_threshold": 1}}, hooks=hooks, store=StoreWithLog())
    eve = come(stage, "eve", keeps=True)
    eve.subscribe("#", qos=1)
    eve.close()
    root = come(stage, "root")
    for topic in ("other", "news/a", "news/secret/a"):
        root.publish(topic, topic.encode(), qos=1)
    eve = come(stage, "eve", keeps=True)
    stage.advance(1)
    assert payloads(eve) == [b"news/a"]


def test_a_session_with_many_subscriptions_is_reviewed_piece_by_piece() -> None:
    stage = make_stage()
    eve = come(stage, "eve")
    eve.subscribe(*(f"sensors/{number}/#" for number in range(1_000)), qos=1)
    changed = RULES.replace('"sensors/+/#", {', '"sensors/7/#", {')
    stage.node.use_rules(parse_toml(changed, "acl.toml"), stage.now_s)
    stage.settle()
    session = stage.node.registry.sessions["c-eve"]
    assert list(session.subscriptions) == ["sensors/7/#"]
    assert len(stage.node.router.table) == 1


def test_rights_without_room_refuse_the_connect() -> None:
    many = ", ".join(f'"{number}/%c"' for number in range(200))
    stage = make_stage(
        f'[roles.r]\nusers = ["*"]\npublish = [{many}]\n', session={"state_bytes_max": 16 * 1024}
    )
    client = come(stage, "ann", keeps=True)
    assert client.connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert client.is_closed
    assert stage.node.counters.clients_connected == 0
    assert stage.node.counters.dropped == {Reason.STATE_BYTES: 1}


def test_rights_that_have_no_room_any_more_refuse_a_connect_that_waits_for_its_commit() -> None:
    stage = make_stage(session={"state_bytes_max": 16 * 1024})
    come(stage, "eve", keeps=True).subscribe("#", qos=1)
    stage.hold_commits = True
    eve = stage.open()
    eve.send(Connect("c-eve", MQTT_5, False, username="eve", properties=KEPT))
    many = ", ".join(f'"{number}/%c"' for number in range(200))
    changed = RULES.replace('receive = ["news/#"]', f"publish = [{many}]", 1)
    stage.node.use_rules(parse_toml(changed, "acl.toml"), stage.now_s)
    stage.settle()
    stage.release_commits()
    assert eve.expect(Connack).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert eve.is_closed
    assert stage.node.counters.clients_connected == 0
    assert stage.node.guard.gate.in_process == 0


def test_a_wide_fan_out_leaves_out_who_may_not_receive() -> None:
    stage = make_stage()
    root = come(stage, "root")
    clients = [come(stage, "eve" if number % 2 else None, f"c{number}") for number in range(40)]
    for client in clients:
        assert client.subscribe("news/+/#", qos=1).reason_codes[0] == 1
    root.publish("news/secret/x", b"x", qos=1)
    assert [payloads(client) for client in clients] == [[b"x"], []] * 20


# --- quotas ----------------------------------------------------------------------------------

QUOTAS = """
[roles.few]
users = ["*"]
connections_max = 2
subscriptions_max = 2
keep_alive_max_s = 60
receive = ["#"]
publish = ["#"]
[roles.short]
users = ["ann"]
queue_messages_max = 3
subscriptions_max = 1
"""


def test_a_role_has_so_many_connections() -> None:
    stage = make_stage(QUOTAS)
    ann, bob = come(stage, "ann"), come(stage, "bob")
    assert come(stage, "eve").connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert come(stage, None).connack.reason_code == 0
    again = come(stage, "ann")
    assert (ann.is_closed, again.connack.reason_code) == (True, 0)
    bob.close()
    assert come(stage, "eve").connack.reason_code == 0
    assert come(stage, "bob").connack.reason_code == ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("version", [MQTT_5, MQTT_311])
def test_a_role_sends_packets_of_that_size_and_5_0_clients_are_told(version: int) -> None:
    rules = '[roles.small]\nusers = ["ann"]\npublish = ["#"]\npacket_size_max = 100\n'
    stage = make_stage(rules + '[roles.all]\nusers = ["*"]\npublish = ["#"]\n')
    small = Publish("t", b"x" * 80)
    large = Publish("t", b"x" * 100)
    for user, is_bounded in (("ann", True), ("bob", False)):
        client = stage.attempt(Connect(user, version, username=user))
        connack = client.expect(Connack)
        if version == MQTT_5:
            told = connack.properties.maximum_packet_size
            assert (told == 100) is is_bounded
        client.send(small)
        assert not client.is_closed
        client.send(large)
        assert client.is_closed is is_bounded
        if version == MQTT_5 and is_bounded:
            assert client.expect(Disconnect).reason_code == ReasonCode.PACKET_TOO_LARGE


WINDOWS = """
[roles.slow]
users = ["ann"]
window_max = {window_max}
[roles.all]
users = ["*"]
publish = ["#"]
receive = ["#"]
"""


def in_process(client: Client) -> int:
    assert client.connection.window is not None
    return client.connection.window.in_process


@pytest.mark.parametrize("version", [MQTT_5, MQTT_311])
def test_a_role_has_so_many_packets_in_process_and_new_rules_reach_who_is_here(
    version: int,
) -> None:
    stage = make_stage(WINDOWS.format(window_max=3))
    come(stage, "root", "sleeper", keeps=True).subscribe("#", qos=1)
    ann, bob = (come(stage, user, version=version) for user in ("ann", "bob"))
    if version == MQTT_5:
        told = [client.connack.properties.receive_maximum for client in (ann, bob)]
        assert told == [3, 32]
    stage.hold_commits = True
    for client in (ann, bob):
        client.send(*(Publish("t", b"x", 1, packet_id=number) for number in range(1, 21)))
    assert (in_process(ann), in_process(bob)) == (3, 20)
    described = explain(stage.node, ann.connection.client_id or "", stage.now_s)
    assert described is not None
    assert described["connected"] is not None
    assert described["connected"]["window"] == {"used": 3, "limit": 3}
    assert [cause["reason"] for cause in described["paused"]] == [Pause.WINDOW]

    stage.node.use_rules(parse_toml(WINDOWS.format(window_max=5), "acl.toml"), stage.now_s)
    ann.send(Publish("t", b"x", 1, packet_id=21))
    assert (in_process(ann), in_process(bob)) == (5, 20)
    stage.release_commits()
    assert [answer.packet_id for answer in ann.inbox] == list(range(1, 22))


def test_connections_of_a_role_are_counted_anew_with_new_rules() -> None:
    stage = make_stage(QUOTAS)
    ann, bob = come(stage, "ann", keeps=True), come(stage, "bob")
    stage.node.use_rules(parse_toml(QUOTAS, "acl.toml"), stage.now_s)
    stage.settle()
    assert come(stage, "eve").connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    ann.close()
    bob.close()
    codes = [come(stage, user).connack.reason_code for user in ("eve", "ann", "bob")]
    assert codes == [0, 0, ReasonCode.QUOTA_EXCEEDED]


def test_a_connect_that_waits_for_its_commit_counts_and_one_that_leaves_does_not() -> None:
    stage = make_stage(QUOTAS)
    stage.hold_commits = True
    waiting = [stage.attempt(Connect(user, username=user)) for user in ("ann", "bob")]
    assert come(stage, "eve").connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    waiting[0].close()
    late = stage.attempt(Connect("eve", username="eve"))
    stage.release_commits()
    assert late.expect(Connack).reason_code == 0


def test_quotas_of_subscriptions_queue_and_keep_alive_are_the_least_of_all_roles() -> None:
    stage = make_stage(QUOTAS)
    ann, bob = come(stage, "ann", keeps=True), come(stage, "bob")
    assert ann.connack.properties.server_keep_alive == 60
    assert ann.subscribe("a", "b", qos=1).reason_codes == (1, ReasonCode.QUOTA_EXCEEDED)
    assert bob.subscribe("c", "d", "e").reason_codes == (0, 0, ReasonCode.QUOTA_EXCEEDED)
    ann.close()
    for number in range(5):
        bob.publish("a", bytes([number]), qos=1)
    assert payloads(come(stage, "ann", keeps=True)) == [b"\0", b"\1", b"\2"]

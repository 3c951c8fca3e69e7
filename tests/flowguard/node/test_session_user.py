"""The user of a session: it belongs to the user who made it, unless the settings say otherwise."""

import pytest

from flowguard.access.rules_toml import parse_toml
from flowguard.codec.packets import Connack, Connect, Disconnect
from flowguard.node.connect.authentication import Hooks
from flowguard.session.state_bytes import name_bytes
from flowguard.types import MQTT_5, MQTT_311, Properties, ReasonCode
from tests.flowguard.node.test_rights_when_sent import SaidNames
from tests.support.stage import Client, Stage

NOT_AUTHORIZED = ReasonCode.NOT_AUTHORIZED


def make_stage(**session: object) -> Stage:
    return Stage({"session": session}, hooks=Hooks(checker=SaidNames()))


def come(
    stage: Stage,
    user: str | None,
    client_id: str = "c",
    *,
    version: int = MQTT_5,
    clean: bool = False,
    expiry_s: int = 3_600,
) -> Client:
    connect = Connect(client_id, version, clean, username=user)
    if version == MQTT_5:
        connect.properties = Properties(session_expiry_interval=expiry_s)
    client = stage.attempt(connect)
    client.connack = client.expect(Connack)
    return client


@pytest.mark.parametrize("expiry_s", [0, 3_600])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("other", ["bob", None])
def test_another_user_is_rejected_and_the_older_connection_stays(
    other: str | None, clean: bool, expiry_s: int
) -> None:
    stage = make_stage()
    told: list[str] = []
    stage.node.on_turned_away = lambda connection, reason, why: told.append(why)
    ann = come(stage, "ann", expiry_s=expiry_s)
    ann.subscribe("a", qos=1)
    bob = come(stage, other, clean=clean)
    assert bob.connack.reason_code == NOT_AUTHORIZED
    assert bob.is_closed
    assert told == ["its session belongs to another user (session.bound_to_user)"]
    assert not ann.is_closed
    assert stage.node.counters.takeovers == 0
    come(stage, "root", "r").publish("a", b"1", qos=1)
    assert [each.payload for each in ann.publishes()] == [b"1"]


@pytest.mark.parametrize("version", [MQTT_5, MQTT_311])
def test_a_stored_session_belongs_to_its_user_after_a_restart_too(version: int) -> None:
    stage = make_stage()
    come(stage, "ann", version=version).close()
    for _ in range(2):
        bob = come(stage, "bob", version=version)
        assert bob.raw[3] == (NOT_AUTHORIZED if version == MQTT_5 else 5)
        stage.restart()
    ann = come(stage, "ann", version=version)
    assert ann.connack.reason_code == 0
    assert ann.connack.session_present


def test_a_session_without_a_user_belongs_to_the_next_user_who_connects() -> None:
    stage = make_stage()
    come(stage, None).close()
    stage.restart()
    assert come(stage, None).connack.session_present
    ann = come(stage, "ann")
    assert ann.connack.session_present
    for user in (None, "bob"):
        assert come(stage, user).connack.reason_code == NOT_AUTHORIZED
    assert not ann.is_closed


def test_a_session_that_has_ended_belongs_to_no_user() -> None:
    stage = make_stage()
    come(stage, "ann", expiry_s=0).close()
    assert come(stage, "bob").connack.reason_code == 0


def test_users_who_share_client_ids_take_over_if_the_settings_let_them() -> None:
    stage = make_stage(bound_to_user=False)
    ann = come(stage, "ann")
    assert come(stage, "bob").connack.session_present
    assert ann.expect(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert stage.node.registry.sessions["c"].user == "bob"
    assert come(stage, None).connack.session_present
    assert stage.node.registry.sessions["c"].user == ""


def test_a_name_that_an_authenticator_has_judged_is_a_user() -> None:
    class Allows:
        def authenticate(self, connect: Connect) -> ReasonCode:
            return ReasonCode.SUCCESS

    stage = Stage(hooks=Hooks(authenticator=Allows()))
    assert come(stage, "ann").connack.reason_code == 0
    assert come(stage, "bob").connack.reason_code == NOT_AUTHORIZED


def test_a_name_that_nothing_has_judged_is_no_user() -> None:
    stage = Stage()
    come(stage, "ann")
    assert come(stage, "bob").connack.session_present


def test_a_long_user_name_counts_as_state_until_the_session_ends() -> None:
    stage = make_stage(state_bytes_max=16 * 1024, bound_to_user=False)
    name = "a" * 10_000
    come(stage, name)
    assert stage.node.state.state_budget.used_bytes == name_bytes(name)
    assert come(stage, "b" * 20_000).connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    come(stage, "bob", clean=True, expiry_s=0).close()
    assert stage.node.state.state_budget.used_bytes == 0


# --- bounds and the older connection ---------------------------------------------------------

ONE_EACH = """
[roles.device]
users = ["ann"]
[roles.few]
users = ["bob"]
connections_max = 1
"""


def with_rules(**node: object) -> Stage:
    hooks = Hooks(checker=SaidNames(), rules=parse_toml(ONE_EACH, "acl.toml"))
    return Stage({"node": node, "session": {"bound_to_user": False}}, hooks=hooks)


def test_the_older_connection_stays_where_the_role_of_the_newer_one_is_full() -> None:
    stage = with_rules()
    ann, bob = come(stage, "ann"), come(stage, "bob", "b")
    assert come(stage, "bob").connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert not ann.is_closed
    assert come(stage, "bob", "b").connack.reason_code == 0
    assert bob.is_closed


def test_the_older_connection_stays_where_no_more_sessions_may_be_kept() -> None:
    stage = with_rules(sessions_max=1)
    ann = come(stage, "ann", expiry_s=0)
    come(stage, "ann", "kept")
    assert come(stage, "ann").connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert not ann.is_closed
    assert come(stage, "ann", "kept").connack.session_present
    assert come(stage, "ann", expiry_s=0).connack.reason_code == 0
    assert ann.is_closed

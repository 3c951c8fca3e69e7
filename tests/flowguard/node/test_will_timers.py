"""Timers of sessions without a connection, and what an error in one of them costs the others.

1. A session without a connection has a timer for its will if and only if it has a will.
2. It has a timer for its end if and only if it expires. A connected session has no timer.
3. An error in one timer, or in one part of a tick, costs no other timer its turn.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowguard.access.rules_toml import parse_toml
from flowguard.cluster import Cluster
from flowguard.codec.packets import Connack, Connect, Will
from flowguard.config import FlowSettings
from flowguard.node.connect.authentication import Hooks
from flowguard.node.upkeep.timers import Timers
from flowguard.types import MQTT_5, SESSION_NEVER_EXPIRES, Properties
from tests.flowguard.node.test_rules import SaidNames
from tests.support.stage import Client, Stage

RULES = """
[roles.all]
users = ["root", {users}]
publish = ["#"]
subscribe = ["#"]
"""
USERS = ("ann", "bob")
NAMES = st.sampled_from(USERS)


def rules_for(*users: str) -> Any:
    listed = ", ".join(f'"{user}"' for user in users)
    return parse_toml(RULES.replace("{users}", listed), "acl.toml")


def come(
    stage: Stage, user: str, *, clean: bool = False, expiry_s: int, delay_s: int | None
) -> Client:
    """A client; `delay_s`: of its will, or None if it has no will."""
    properties = Properties(will_delay_interval=delay_s)
    will = None if delay_s is None else Will("w", user.encode(), properties=properties)
    connect = Connect(user, MQTT_5, clean, username=user, will=will)
    connect.properties = Properties(session_expiry_interval=expiry_s)
    client = stage.attempt(connect)
    client.connack = client.expect(Connack)
    return client


def stage_for(*users: str) -> Stage:
    return Stage(hooks=Hooks(checker=SaidNames(), rules=rules_for(*users)))


class Wills(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = stage_for(*USERS)
        self.clients: dict[str, Client] = {}

    @rule(
        user=NAMES,
        clean=st.booleans(),
        expiry_s=st.sampled_from([0, 5, 20, SESSION_NEVER_EXPIRES]),
        delay_s=st.sampled_from([None, 0, 3, 10]),
    )
    def connect_or_take_over(
        self, user: str, clean: bool, expiry_s: int, delay_s: int | None
    ) -> None:
        client = come(self.stage, user, clean=clean, expiry_s=expiry_s, delay_s=delay_s)
        if client.connack.reason_code == 0:
            self.clients[user] = client

    @rule(user=NAMES)
    def lose_the_connection(self, user: str) -> None:
        if user in self.clients:
            self.clients.pop(user).close()

    @rule(user=NAMES, with_will=st.booleans())
    def disconnect(self, user: str, with_will: bool) -> None:
        if user in self.clients:
            self.clients.pop(user).disconnect(0x04 if with_will else 0)

    @rule(users=st.sets(NAMES))
    def reload_rules(self, users: set[str]) -> None:
        self.stage.node.use_rules(rules_for(*users), self.stage.now_s)
        self.stage.settle()

    @rule(user=NAMES)
    def another_broker_takes_the_session(self, user: str) -> None:
        self.stage.node.registry.forget(user, self.stage.now_s)
        self.stage.settle()

    @rule(seconds=st.sampled_from([1, 3, 8]))
    def time_passes(self, seconds: int) -> None:
        self.stage.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.stage.settle()
        self.clients.clear()

    @invariant()
    def each_will_and_each_end_has_its_timer(self) -> None:
        registry = self.stage.node.registry
        away = [each for each in registry.sessions.values() if each.outbound is None]
        assert set(registry.will_timers) == {each for each in away if each.will is not None}
        assert set(registry.expiry_timers) == {each for each in away if each.ends_at_s is not None}
        held = [*registry.will_timers.values(), *registry.expiry_timers.values()]
        armed = [entry[2] for entry in self.stage.node.timers._heap if entry[2].call is not None]
        assert sorted(map(id, held)) == sorted(map(id, armed))


TestWills = Wills.TestCase


def test_a_delayed_will_that_a_reload_takes_back_is_not_due() -> None:
    stage = stage_for("ann", "bob")
    root = come(stage, "root", expiry_s=0, delay_s=None)
    root.subscribe("w", qos=1)
    for user in ("ann", "bob"):
        come(stage, user, expiry_s=60, delay_s=5).close()
    stage.node.use_rules(rules_for("bob"), stage.now_s)
    stage.advance(6)
    assert [message.payload for message in root.publishes()] == [b"bob"]


def fail(*_: object) -> None:
    raise LookupError("broken")


def test_an_error_in_one_timer_costs_no_other_its_turn() -> None:
    errors: list[Exception] = []
    timers, called = Timers(errors.append), []
    timers.at(1.0, fail, "first")
    timers.at(2.0, called.append, "second")
    timers.at(3.0, fail, "third")
    assert not timers.fire(5.0, 5.0)
    assert called == [5.0]
    assert [error.__notes__ for error in errors] == [["timer: first"], ["timer: third"]]


def test_an_error_in_one_part_of_a_tick_costs_no_timer_its_turn() -> None:
    """The guard fails: what it tells other nodes cannot be sent."""
    stage = Stage(tell=fail, cluster=Cluster("a", 1, FlowSettings()))
    errors: list[Exception] = []
    stage.node._on_error = errors.append
    late = stage.connect("late", keep_alive_s=1)
    watcher = stage.connect("watcher")
    watcher.subscribe("w")
    properties = Properties(will_delay_interval=1)
    will = Will("w", b"x", properties=properties)
    stage.connect("c", will=will, session_expiry_interval=60).close()
    stage.advance(3)
    assert late.is_closed
    assert [message.payload for message in watcher.publishes()] == [b"x"]
    assert len(errors) == stage.node.counters.errors > 0

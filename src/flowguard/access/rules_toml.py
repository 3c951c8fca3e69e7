"""Rules in a TOML file: roles, their users, and their rights (docs/operate/security.md).

[roles.device]
users = ["dev1", "dev2"]
publish = ["devices/%u/up/#", {topic = "devices/%u/state", qos_max = 1, retain = false}]
subscribe = ["devices/%u/down/#"]

[roles.everybody]
users = ["*"]
anonymous = true
receive = ["news/#"]
deny = ["news/secret/#"]

[roles.analytics]
users = ["spark"]
class = "application"
subscribe = ["#"]
"""

import tomllib
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from flowguard.access.rights import PUBLISH, Headcount, Quotas, RuleStage, Statement, published_as
from flowguard.access.rules import Role, Rules, levels_of
from flowguard.config import PACKET_SIZE_MIN
from flowguard.errors import ConfigError
from flowguard.section import Section, complaint

ANYBODY = "*"


class _Topic(Section):
    """A filter with its limits; a plain text is a filter without limits."""

    topic: str
    qos_max: int = Field(2, ge=0, le=2)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, values: object) -> object:
        return {"topic": values} if isinstance(values, str) else values


class _Published(_Topic):
    retain: bool = True
    will: bool = True

    @property
    def published(self) -> int:
        """The bits of a decision that it allows."""
        bits = 0
        for qos in range(self.qos_max + 1):
            for retain in {False, self.retain}:
                for will in {False, self.will}:
                    bits |= published_as(qos, retain=retain, will=will)
        return bits


class _Role(Section):
    users: tuple[str, ...] = ()
    anonymous: bool = False
    publish: tuple[_Published, ...] = ()
    subscribe: tuple[_Topic, ...] = ()
    receive: tuple[_Topic, ...] = ()
    deny: tuple[str, ...] = ()
    deny_publish: tuple[str, ...] = ()
    deny_receive: tuple[str, ...] = ()
    connections_max: int | None = Field(None, ge=0)
    subscriptions_max: int | None = Field(None, ge=0)
    queue_messages_max: int | None = Field(None, ge=1)
    keep_alive_max_s: int | None = Field(None, ge=1, le=65_535)
    packet_size_max: int | None = Field(None, ge=PACKET_SIZE_MIN)
    window_max: int | None = Field(None, ge=1)
    client_class: Literal["device", "application"] | None = Field(None, alias="class")

    @property
    def is_application(self) -> bool | None:
        """True if its clients are applications, or None if it does not set this."""
        return None if self.client_class is None else self.client_class == "application"

    @property
    def quotas(self) -> Quotas:
        most = self.connections_max
        headcounts = [] if most is None else [Headcount(most)]
        return Quotas(
            headcounts,
            self.subscriptions_max,
            self.queue_messages_max,
            self.keep_alive_max_s,
            self.packet_size_max,
            self.window_max,
        )


class _File(Section):
    roles: dict[str, _Role]


def parse_toml(text: str, name: str) -> Rules:
    """Read a file called `name`; raises ConfigError with the invalid key."""
    try:
        file = _File.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "roles"
        raise ConfigError(f"{name}: {key}: {complaint(_File, first)}") from error
    roles = [
        Role(role, [_stage(each, f"{name}: roles.{role}")], each.quotas, each.is_application)
        for role, each in file.roles.items()
    ]
    by_user: dict[str, list[str]] = {}
    for role, each in file.roles.items():
        for user in each.users:
            by_user.setdefault(user, []).append(role)
    named = by_user.pop(ANYBODY, [])
    return Rules(roles, by_user, named, [r for r, each in file.roles.items() if each.anonymous])


def _stage(role: _Role, where: str) -> RuleStage:
    allowed = [
        Statement(
            levels_of(each.topic, f"{where}.publish"),
            each.published,
            origin=f"{where}.publish: {each.topic}",
        )
        for each in role.publish
    ]
    for key, topics, wide in (
        ("subscribe", role.subscribe, False),
        ("receive", role.receive, True),
    ):
        allowed += [
            Statement(
                levels_of(each.topic, f"{where}.{key}"),
                is_received=True,
                wide=wide,
                qos_max=each.qos_max,
                origin=f"{where}.{key}: {each.topic}",
            )
            for each in topics
        ]
    denied = [
        Statement(
            levels_of(topic, f"{where}.{key}"),
            published,
            is_received=is_received,
            origin=f"{where}.{key}: {topic}",
        )
        for key, topics, published, is_received in (
            ("deny", role.deny, PUBLISH, True),
            ("deny_publish", role.deny_publish, PUBLISH, False),
            ("deny_receive", role.deny_receive, 0, True),
        )
        for topic in topics
    ]
    return RuleStage(allowed, denied)

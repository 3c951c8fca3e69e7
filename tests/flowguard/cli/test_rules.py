"""`flowguard serve --acl`: rights of connected clients, SIGHUP, and starts without rules."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowguard.app.reloadable_files import rules_of
from flowguard.codec.packets import (
    Connack,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
)
from flowguard.errors import ConfigError
from flowguard.network_settings import NetworkSettings
from flowguard.types import ReasonCode, SubscriptionOptions
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.caller import Caller

GUESTS = '[roles.guest]\nanonymous = true\npublish = ["open/#"]\nreceive = ["open/#"]\n'


def hang_up(broker: Broker, caller: Caller, awaited: str) -> None:
    """SIGHUP, until the log has said so; the caller stays connected."""
    broker.process.send_signal(signal.SIGHUP)
    while awaited not in broker.log.read_text():
        ping(caller)


def ping(caller: Caller) -> None:
    caller.send(Pingreq())
    assert isinstance(caller.read(), Pingresp)


def published(caller: Caller, topic: str) -> int:
    caller.send(Publish(topic, b"", 1, packet_id=1))
    puback = caller.read()
    assert isinstance(puback, Puback)
    return puback.reason_code


@pytest.mark.slow
def test_rules_hold_and_sighup_changes_them_for_those_who_are_connected(tmp_path: Path) -> None:
    rules = tmp_path / "acl.toml"
    rules.write_text(GUESTS)
    none = ReasonCode.NO_MATCHING_SUBSCRIBERS
    with (
        running_broker(tmp_path / "b", "--acl", str(rules)) as broker,
        Caller(broker, username="nobody asked") as caller,
    ):
        assert isinstance(caller.read(), Connack)
        filters = (("open/#", SubscriptionOptions()), ("closed/#", SubscriptionOptions()))
        caller.send(Subscribe(1, filters))
        assert caller.read() == Suback(1, (0, ReasonCode.NOT_AUTHORIZED))
        assert published(caller, "closed/a") == ReasonCode.NOT_AUTHORIZED
        rules.write_text("[roles.guest]\nanonymous = 7 nonsense")
        hang_up(broker, caller, "reload failed")
        assert published(caller, "closed/a") == ReasonCode.NOT_AUTHORIZED
        rules.write_text(GUESTS.replace("open", "closed"))
        hang_up(broker, caller, "reloaded certificates, users, keys and rules")
        while published(caller, "closed/a") != none:
            ping(caller)
        assert published(caller, "open/a") == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ({"password_file": "users"}, "use --acl FILE, or --allow-all-topics"),
        ({"client_ca": "ca.pem"}, "use --acl FILE, or --allow-all-topics"),
        ({"listeners": [{"address": "mqtts://[::1]:0", "client_ca": "ca.pem"}]}, "use --acl FILE"),
        ({"allow_anonymous": False}, "use --acl FILE"),
        ({"acl_file": "acl", "allow_all_topics": True}, "leave one of them out"),
        ({"acl_file": "not-there"}, "cannot read not-there: No such file"),
    ],
)
def test_with_identities_nobody_may_do_anything_that_was_not_said(
    network: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        rules_of(NetworkSettings.model_validate(network))


def test_without_rules_everybody_may_where_that_was_said_or_nobody_is_asked() -> None:
    for network in ({}, {"password_file": "users", "allow_all_topics": True}):
        assert rules_of(NetworkSettings.model_validate(network)) is None


@pytest.mark.slow
def test_a_wrong_file_ends_the_start_with_its_line(tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read a\ntopic frobnicate b\n")
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "flowguard",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--acl",
            str(rules),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 2
    assert f"{rules}, line 2: expected user NAME" in ended.stderr

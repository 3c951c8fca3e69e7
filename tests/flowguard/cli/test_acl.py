"""`flowguard acl test`: against real brokers, and by a configuration."""

import json
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack
from flowguard.identity.passwords import PasswordFile
from tests.flowguard.cli.http_port import http_address, run
from tests.interop.broker import running_broker
from tests.support.caller import Caller

RULES = """
[roles.device]
users = ["ann"]
publish = [{topic = "up/%c", qos_max = 1}]
receive = ["news/#"]
deny = ["news/secret"]

[roles.operator]
publish = ["#"]
"""
CASES = {
    "publish": (("publish", "up/c1"), "allowed: {acl}: roles.device.publish: up/%c\n"),
    "of another client": (
        ("publish", "up/c2"),
        "denied: no rule of its roles matches: device\n",
    ),
    "qos": (
        ("publish", "up/c1", "--qos", "2"),
        "denied: {acl}: roles.device.publish: up/%c, but not with this QoS or RETAIN\n",
    ),
    "subscribe": (
        ("subscribe", "news/+"),
        "allowed up to QoS 2: {acl}: roles.device.receive: news/#\n",
    ),
    "shared": (
        ("subscribe", "$share/g/news/+"),
        "denied: {acl}: roles.device.deny: news/secret\n",
    ),
    "role of a token": (
        ("publish", "other", "--role", "operator"),
        "allowed: {acl}: roles.operator.publish: #\n",
    ),
    "a user without a role": (("publish", "a", "--user", "bob"), "denied: it has no role\n"),
    "no user": (("publish", "a", "--user", ""), "denied: it has no role\n"),
}


def make(folder: Path) -> tuple[Path, Path]:
    """A configuration with rules; the paths of both."""
    config, acl = folder / "broker.toml", folder / "acl.toml"
    acl.write_text(RULES)
    (folder / "users").write_text(PasswordFile({}).with_user("ann", b"secret").text())
    config.write_text(f'[network]\nacl_file = "{acl}"\npassword_file = "{folder}/users"\n')
    return config, acl


@pytest.mark.parametrize("case", CASES)
def test_verdict_by_a_configuration(case: str, tmp_path: Path) -> None:
    config, acl = make(tmp_path)
    arguments, said = CASES[case]
    options = ("--client", "c1", "--user", "ann", "--config", str(config))
    code, found, _ = run("acl", "test", *options, *arguments)
    assert found == said.format(acl=acl)
    assert code == (1 if said.startswith("denied") else 0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_verdict_of_a_running_broker_is_that_of_its_configuration(
    tmp_path: Path, workers: str
) -> None:
    config, acl = make(tmp_path)
    with running_broker(tmp_path, "--config", str(config), "--workers", workers) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        for arguments, said in CASES.values():
            options = ("--client", "c1", "--user", "ann", *url)
            code, found, _ = run("acl", "test", *options, *arguments)
            assert found == said.format(acl=acl)
            assert code == (1 if said.startswith("denied") else 0)
        for name in ("c1", "c2"):
            of_client = ("acl", "test", "publish", f"up/{name}", "--client", name, "--json", *url)
            assert json.loads(run(*of_client)[1])["rule"] == "it has no role"
            with Caller(broker, client_id=name, username="ann", password=b"secret") as caller:
                assert isinstance(caller.read(), Connack)
                answer = json.loads(run(*of_client)[1])
                assert (answer["allowed"], answer["roles"]) == (True, ["device"])


@pytest.mark.slow
def test_verdict_without_rules_and_about_no_topic(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        code, said, _ = run("acl", "test", "publish", "a", "--client", "c", *url)
        assert (code, said) == (0, "allowed: no rules are configured: clients may use all topics\n")
        code, said, _ = run("acl", "test", "publish", "$SYS/a", "--client", "c", *url)
        assert (code, said) == (1, "denied: only the broker publishes below $SYS/\n")
        for action, topic in (("publish", "a/+"), ("subscribe", "a/#/b"), ("publish", "")):
            code, _, complaint = run("acl", "test", action, topic, "--client", "c", *url)
            assert (code, "is no topic" in complaint) == (1, True)

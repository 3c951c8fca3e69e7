"""`flowguard check` and `flowguard reload`: what is read, what needs a restart, what is wrong."""

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack
from tests.flowguard.cli.http_port import http_address
from tests.interop.broker import PATIENCE_S, Broker, running_broker, start
from tests.support import commands
from tests.support.caller import Caller

RULES = '[roles.guest]\nanonymous = true\npublish = ["a"]\n'


def flowguard(*arguments: str) -> tuple[int, str]:
    """Exit code, and what was said."""
    code, stdout, stderr = commands.flowguard(*arguments)
    return code, (stdout + stderr).strip()


def write(folder: Path, text: str, rules: str = RULES) -> Path:
    """A configuration, and rules beside it."""
    (folder / "acl.toml").write_text(rules)
    config = folder / "broker.toml"
    config.write_text(text.replace("HERE", str(folder)))
    return config


GOOD = '[network]\nacl_file = "HERE/acl.toml"\nlisteners = ["127.0.0.1:0", "unix:HERE/socket"]\n'


@pytest.mark.slow
def test_a_good_configuration_is_good_and_nothing_was_started(tmp_path: Path) -> None:
    config = write(tmp_path, GOOD)
    assert flowguard("check", str(config)) == (0, f"{config} is good: 2 listeners, 1 role")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["acl.toml", "broker.toml"]


NO_ROOM = "there is none left for a client"
CHAIN = (
    "[network]\nallow_all_topics = true\nlisteners = ["
    '{address = "mqtts://[::1]:1", cert = "c", key = "k", chain = "a", client_ca = "b"}]\n'
)
REDIS = '[store]\nkind = "redis"\n[redis]\n'
KAFKA = '[store]\napplication_store = "kafka"\n[kafka]\n'
BOTH = '[telemetry]\nrecord_dir = "runs"\nrecord_topic = "kafka://127.0.0.1:1/runs"\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "rules", "complaint"),
    [
        ("[flow]\nwindow_mux = 1\n", RULES, "flow.window_mux: unknown setting"),
        (GOOD, "[roles.r]\npublich = []\n", "acl.toml: roles.r.publich"),
        (GOOD + 'cert = "no"\n', "", "acl.toml: roles"),
        (GOOD + 'client_ca = "no"\n', RULES, "HERE/no has no effect"),
        ('[network]\nlisteners = ["0.0.0.0:1"]\n', RULES, "--allow-plaintext"),
        ('[network]\nlisteners = ["mqtts://[::1]:1"]\n', RULES, "TLS needs a certificate"),
        (CHAIN, "", "authorities in chain would sign clients"),
        ('[network]\npassword_file = "not-there"\n', RULES, "cannot read HERE/not-there"),
        ('[network]\ncrl = "revoked.pem"\n', RULES, "set network.client_ca"),
        (REDIS + 'url = "http://foo"\n', RULES, "redis.url is no address"),
        (REDIS + 'url = "redis+sentinel://foo:1"\n', RULES, "no name of a primary"),
        (REDIS + 'url = "redis+cluster://foo"\n', RULES, "redis.url names the node 'foo'"),
        ("[node]\nworkers = 2\nconnections_max = 1\n", RULES, "node.connections_max: 1 cannot be"),
        (BOTH, RULES, "telemetry.record_dir and telemetry.record_topic: choose one of them"),
        ('[telemetry]\nrecord_topic = "runs"\n', RULES, "telemetry.record_topic: "),
        (
            KAFKA + 'user = "u"\npassword_file = "not-there"\n',
            RULES,
            "kafka.password_file: cannot read",
        ),
        (KAFKA + 'tls = true\ntls_authority_file = "x"\n', RULES, "kafka.tls_authority_file"),
        ("[node]\ndescriptors_reserve = 99999999\n", RULES, NO_ROOM),
    ],
)
def test_a_wrong_one_is_refused_with_what_is_wrong(
    tmp_path: Path, text: str, rules: str, complaint: str
) -> None:
    config = str(write(tmp_path, text, rules))
    serve = ["serve", "--config", config, "--data", str(tmp_path / "data"), "--http", "none"]
    if "listeners" not in text:
        serve += ["--listen", "127.0.0.1:0"]
    for command in (("check", config), serve):
        code, said = flowguard(*command)
        assert code == 2
        assert complaint.replace("HERE", str(tmp_path)) in " ".join(said.split())
        if command[0] == "check":
            assert (f"{config} is wrong\n" in said) == (complaint != NO_ROOM)


def test_what_this_machine_lacks_is_no_fault_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "aiokafka.py").write_text("raise ModuleNotFoundError(name='aiokafka')\n")
    (tmp_path / "argon2.py").write_text("raise ModuleNotFoundError(name='argon2')\n")
    (tmp_path / "users").write_text("")
    text = '[network]\npassword_file = "HERE/users"\nacl_file = "HERE/acl.toml"\n'
    text += "[node]\ndescriptors_reserve = 99999999\n" + KAFKA
    config = str(write(tmp_path, text))
    with start("check", config, environment={"PYTHONPATH": str(tmp_path)}) as process:
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    heading, *lacking = said.splitlines()
    assert heading == f"{config} is good, but this machine is not ready for it"
    for line, what in zip(lacking, ("[passwords]'", "[kafka]'", NO_ROOM), strict=True):
        assert what in line
    config = str(write(tmp_path, text, "["))
    assert flowguard("check", config)[1].startswith(f"{config} is wrong\n")


@pytest.mark.slow
def test_reload_says_what_was_read_and_what_needs_a_restart(tmp_path: Path) -> None:
    config = write(tmp_path, '[network]\nacl_file = "HERE/acl.toml"\n')
    with running_broker(tmp_path / "b", "--config", str(config)) as broker:
        address = http_address(broker)
        asked = ("reload", "--url", f"http://{address}")
        read = "reloaded: 0 certificates, 0 users, 0 token keys, 2 roles"
        write(tmp_path, config.read_text(), RULES + "[roles.other]\n")
        assert flowguard(*asked) == (0, read)
        config.write_text(config.read_text() + "[flow]\nwindow_max = 50\n")
        assert flowguard(*asked) == (
            0,
            f"{read}\nchanged, but in force only after a restart: flow.window_max",
        )
        (tmp_path / "acl.toml").write_text("[roles\n")
        code, said = flowguard(*asked)
        assert code == 1
        logged = Path(broker.log).read_text()
        assert logged.count("reloaded certificates, users, keys and rules") == 2
        assert logged.count("roles=2") == 2
        assert [
            line.split("status=")[1][:3] for line in logged.splitlines() if "audit" in line
        ] == [*("200", "200", "409")]
        assert "keys=0" not in logged, "zeros are left out"
        assert logged.count("reload failed; nothing has changed") == 1
        assert said.startswith("flowguard reload: nothing has changed: ")
        assert "acl.toml is not valid TOML" in said
        config.write_text("[flow]\nwindow_mux = 50\n")
        code, said = flowguard(*asked)
        assert code == 1
        assert "flow.window_mux: unknown setting" in said
        request = urllib.request.Request(f"http://{address}/reload", b"{}")
        with pytest.raises(urllib.error.HTTPError, match="403"):  # A page of the web asks so.
            urllib.request.urlopen(request, timeout=PATIENCE_S)


@contextmanager
def broker_with_a_pipe(folder: Path) -> Iterator[tuple[Broker, Path]]:
    """A broker whose rules are a pipe now, which gives nothing until a test writes to it."""
    config = write(folder, '[network]\nacl_file = "HERE/acl.toml"\n')
    rules = folder / "acl.toml"
    with running_broker(folder / "b", "--config", str(config)) as broker:
        rules.unlink()
        os.mkfifo(rules)
        yield broker, rules


@pytest.mark.slow
def test_a_file_that_takes_long_to_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    with broker_with_a_pipe(tmp_path) as (broker, rules):
        asked = ("reload", "--url", f"http://{http_address(broker)}")
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(flowguard, *asked)
            with rules.open("w") as pipe:  # From now on it is being read.
                with Caller(broker) as client:
                    assert isinstance(client.read(), Connack)
                code, said = flowguard(*asked)
                assert (code, "a reload is already running" in said) == (1, True)
                assert not answer.done()
                pipe.write(RULES + "[roles.other]\n")
            code, said = answer.result()
    assert (code, said.rpartition(", ")[2]) == (0, "2 roles")


@pytest.mark.slow
def test_a_broker_ends_though_a_file_is_never_read_to_its_end(tmp_path: Path) -> None:
    with broker_with_a_pipe(tmp_path) as (broker, rules):
        broker.process.send_signal(signal.SIGHUP)
        with rules.open("w"):
            broker.process.terminate()
            assert broker.process.wait(PATIENCE_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "complaint"),
    [
        (None, "http.token_file: cannot read"),
        ("short\n", "has to begin with a line of 16 bytes at least"),
        ("\n0123456789abcdef\n", "has to begin with a line"),
    ],
)
def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str | None, complaint: str) -> None:
    if token is not None:
        (tmp_path / "token").write_text(token)
    code, said = flowguard("check", str(write(tmp_path, '[http]\ntoken_file = "HERE/token"\n')))
    assert code == 2
    assert complaint in said

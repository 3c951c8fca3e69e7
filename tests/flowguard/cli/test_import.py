"""`flowguard import`: what became of each line of a mosquitto.conf, and a result that is good."""

import re
import tomllib
from pathlib import Path

import pytest

from flowguard.cli.mosquitto_conf import ABSENT, PLAIN, MosquittoImport
from flowguard.config import Settings
from tests.flowguard.cli.test_reload import flowguard
from tests.support.authority import Authority

WHOLE = """\
# a comment
per_listener_settings false
listener 1883 127.0.0.1
listener 8883
certfile {certificate}
keyfile {key}
cafile {authority}
require_certificate true
use_identity_as_username true
max_connections 500
listener 9001 127.0.0.1
protocol websockets
listener 0 {folder}/mqtt.sock
password_file {folder}/users
allow_anonymous true
persistence true
persistence_location /var/lib/mosquitto/
persistent_client_expiration 2w
max_inflight_messages 20
max_queued_messages 1000
max_queued_bytes 0
max_packet_size 100000
max_keepalive 600
message_size_limit 50000
sys_interval 5
log_type notice
log_dest file /var/log/mosquitto.log
ciphers HIGH
bind_interface eth0
frobnicate 7
connection upstream
address 192.0.2.1
topic # both
"""


def settings(text: str) -> dict[str, dict[str, object]]:
    return tomllib.loads(MosquittoImport(text).toml())


def test_a_whole_file_becomes_settings() -> None:
    found = settings(WHOLE.replace("{folder}", "/run"))
    assert found["network"]["listeners"] == [
        {"address": "mqtt://127.0.0.1:1883"},
        {
            "address": "mqtts://0.0.0.0:8883",
            "cert": "{certificate}",
            "key": "{key}",
            "client_ca": "{authority}",
            "connections_max": 500,
        },
        {"address": "ws://127.0.0.1:9001"},
        {"address": "unix:/run/mqtt.sock"},
    ]
    assert found["network"]["allow_anonymous"] is True
    assert found["session"] == {
        "session_expiry_max_s": 1_209_600,
        "inflight_max": 20,
        "queue_messages_max": 1_000,
        "packet_size_max": 100_000,
        "keep_alive_max_s": 600,
        "payload_bytes_max": 50_000,
    }
    assert found["store"] == {"kind": "rocks"}
    assert found["log"] == {"level": "info"}
    Settings.model_validate(found)


def test_every_line_that_says_something_has_a_remark_and_what_was_not_taken_says_why() -> None:
    text = WHOLE.replace("{folder}", "/run")
    remarks = [each for each in MosquittoImport(text).remarks if each.text]
    lines = [number for number, line in enumerate(WHOLE.splitlines(), 1) if line[0] != "#"]
    assert [each.line for each in remarks] == lines
    assert all(each.said for each in remarks)
    left_out = [each.text.split()[0] for each in remarks if not each.taken]
    assert left_out == [
        *("persistence_location", "max_queued_bytes", "ciphers", "bind_interface", "frobnicate"),
        *("connection", "address", "topic"),
    ]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("persistence false", "store.kind", "memory"),
        ("max_inflight_messages 20\nmax_inflight_messages 30", "session.inflight_max", 30),
        ("listener 1883", "network.allow_plaintext", True),
        ("listener 1883", "network.allow_anonymous", False),
        ("listener 1883", "network.allow_all_topics", True),
        ("port 1884", "network.listeners", [{"address": "mqtt://0.0.0.0:1884"}]),
        ("bind_address ::1", "network.listeners", [{"address": "mqtt://[::1]:1883"}]),
        ("tls_version tlsv1.3", "network.tls_version_min", "1.3"),
    ],
)
def test_what_mosquitto_takes_for_granted_is_said(text: str, key: str, value: object) -> None:
    assert MosquittoImport(text).settings[key] == value


@pytest.mark.parametrize(
    "line",
    [
        "listener",
        "listener 0",
        "listener 70000",
        "listener 1 2 3",
        "max_queued_messages many",
        "allow_anonymous maybe",
        "persistent_client_expiration 2",
        "persistence perhaps",
        "protocol http",
        "max_inflight_messages 0",
        "per_listener_settings true",
    ],
)
def test_a_value_that_is_none_is_not_taken(line: str) -> None:
    found = MosquittoImport(line)
    assert [each.taken for each in found.remarks if each.text] == [False]
    Settings.model_validate(tomllib.loads(found.toml()))


def test_settings_that_it_writes_exist() -> None:
    assert not set(PLAIN) & set(ABSENT)
    for key, _ in PLAIN.values():
        section, _, name = key.partition(".")
        annotation = Settings.model_fields[section].annotation
        assert name in annotation.model_fields, key  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_result_passes_the_check_and_each_line_is_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue("localhost")
    (tmp_path / "users").write_text("")
    text = WHOLE.format(
        folder=tmp_path, certificate=server.cert, key=server.key, authority=authority.cert
    )
    conf, out = tmp_path / "mosquitto.conf", tmp_path / "flowguard.toml"
    conf.write_text(text)
    code, said = flowguard("import", str(conf), "--out", str(out))
    assert code == 0, said
    said = re.sub(r"\n(?!\S*mosquitto\.conf:|\d+ remarks|next:)", "", said)
    assert f"{conf}:27: log_dest file" in said
    assert f"{conf}:30: frobnicate 7: NOT TAKEN: no option" in said
    assert "next: flowguard check" in said
    code, said = flowguard("check", str(out))
    assert code == 0, said
    assert "is good: 4 listeners" in said
    code, said = flowguard("import", str(conf), "--out", str(out))
    assert code == 2
    assert "File exists" in said


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    code, said = flowguard("import", str(tmp_path / "none.conf"))
    assert code == 2
    assert "none.conf: No such file" in re.sub(r"\s+", " ", said)


# --- nobody comes in who did not before ---------------------------------------------------------


def test_what_one_listener_allows_is_not_allowed_to_all() -> None:
    of_one = "listener 8883\nallow_anonymous false\npassword_file users\nacl_file acl\n"
    of_other = "listener 1883 127.0.0.1\nallow_anonymous true\n"
    found = MosquittoImport(f"per_listener_settings true\n{of_one}{of_other}")
    assert found.settings["network.allow_anonymous"] is False
    assert not {"network.password_file", "network.allow_all_topics"} & set(found.settings)
    left_out = [each.text.partition(" ")[0] for each in found.remarks if not each.taken]
    assert left_out[:-1] == [
        *("per_listener_settings", "allow_anonymous", "password_file"),
        *("acl_file", "allow_anonymous"),
    ]
    assert "no start without a network.acl_file" in found.remarks[-1].said


def test_rules_of_a_plugin_are_not_taken_for_none() -> None:
    found = MosquittoImport("listener 1883 127.0.0.1\nplugin /lib/mosquitto_dynamic_security.so")
    assert "network.allow_all_topics" not in found.settings


def test_what_stands_behind_a_bridge_and_is_none_of_its_options_counts() -> None:
    bridge = "connection up\naddress 192.0.2.1\n"
    found = MosquittoImport(f"listener 1883\n{bridge}acl_file acl\npassword_file users").settings
    assert (found["network.acl_file"], found["network.password_file"]) == ("acl", "users")
    assert "network.allow_all_topics" not in found


@pytest.mark.parametrize("of_it", ["require_certificate true\ncapath /etc/ca", "psk_hint hint"])
def test_a_listener_that_would_ask_less_is_left_out(of_it: str) -> None:
    tls = "certfile c\nkeyfile k"
    found = MosquittoImport(f"listener 1883 127.0.0.1\nlistener 8883\n{tls}\n{of_it}\n")
    assert found.settings["network.listeners"] == [{"address": "mqtt://127.0.0.1:1883"}]
    assert [each.line for each in found.remarks if "it is left out" in each.said] == [2]


def test_options_of_a_listener_that_was_not_taken_are_no_other_ones() -> None:
    found = settings("listener 8883\ncertfile a\nkeyfile b\nlistener 0 not-whole\ncertfile c\n")
    assert found["network"]["listeners"] == [
        {"address": "mqtts://0.0.0.0:8883", "cert": "a", "key": "b"}
    ]

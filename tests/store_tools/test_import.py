"""`flowguard import`: the outcome of each line of a mosquitto.conf, and a result that is good."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.config import Settings
from store_tools.mosquitto.conf import MosquittoImport
from store_tools.mosquitto.options import OF_ACCESS, OF_ALL, OF_LISTENER, PLAIN
from tests.flowguard.cli.test_reload import flowguard
from tests.store_tools.mosquitto_files import EQUAL
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
max_inflight_messages 20 # the default
max_queued_messages 1000
max_queued_bytes 0
max_packet_size 100000
max_keepalive 600
message_size_limit 50000
sys_interval 5
log_type notice
log_dest file /var/log/mosquitto.log
ciphers HIGH
connection upstream
address 192.0.2.1
topic # both
"""


def imported(text: str) -> MosquittoImport:
    return MosquittoImport(text.encode())


def settings(text: str) -> dict[str, dict[str, object]]:
    return tomllib.loads(imported(text).toml())


def test_import_turns_a_whole_file_into_settings() -> None:
    found = settings(WHOLE.replace("{folder}", "/run"))
    assert found["network"]["listeners"] == [
        {"address": "mqtt://127.0.0.1:1883"},
        {
            "address": "mqtts://[::]:8883",
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


def test_import_remarks_on_every_line_and_gives_the_reason_when_it_is_not_taken() -> None:
    found = imported(WHOLE.replace("{folder}", "/run"))
    remarks = [each for each in found.remarks if each.text]
    lines = [number for number, line in enumerate(WHOLE.splitlines(), 1) if line[0] != "#"]
    assert [each.place for each in remarks] == [f"mosquitto.conf:{line}" for line in lines]
    assert all(each.said for each in found.remarks)
    not_taken = [each.text.split()[0] for each in remarks if not each.taken]
    assert not_taken == [
        *("persistence_location", "max_queued_bytes", "ciphers", "connection", "address", "topic"),
    ]
    assert not found.left_out


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("persistence 0", "store.kind", "memory"),
        ("max_inflight_messages 20\nmax_inflight_messages 30", "session.inflight_max", 30),
        ("listener 1883", "network.allow_plaintext", True),
        ("listener 1883", "network.allow_anonymous", False),
        ("", "network.allow_anonymous", True),
        ("allow_anonymous false", "network.allow_anonymous", False),
        ("listener 1883", "network.allow_all_topics", True),
        ("port 1884", "network.listeners", [{"address": "mqtt://[::]:1884"}]),
        ("bind_address ::1", "network.listeners", [{"address": "mqtt://[::1]:1883"}]),
        (
            "listener 1883 ::",
            "network.listeners",
            [{"address": "mqtt://[::]:1883", "ipv6_only": True}],
        ),
        (
            "listener 1883\ncertfile c\nkeyfile k\ncafile a",
            "network.listeners",
            [{"address": "mqtts://[::]:1883", "cert": "c", "key": "k", "chain": "a"}],
        ),
        (
            "listener 1\ncertfile c\nkeyfile k\ntls_version tlsv1.3\n"
            "listener 2\ncertfile c\nkeyfile k\ntls_version tlsv1.2",
            "network.tls_version_min",
            "1.3",
        ),
    ],
)
def test_import_writes_what_mosquitto_takes_for_granted(text: str, key: str, value: object) -> None:
    assert imported(text).settings[key] == value


@pytest.mark.parametrize(
    "line",
    [
        "max_inflight_messages 0",
        "max_queued_messages many",
        "max_packet_size 25",
        "check_retain_source true",
        "check_retain_source 1 # the default",
        "queue_qos0_messages true",
        "connection up",
    ],
)
def test_import_keeps_listeners_when_a_line_of_no_access_is_not_taken(line: str) -> None:
    found = imported(f"listener 1883\nallow_anonymous true\n{line}\n")
    assert [each.text for each in found.remarks if each.text and not each.taken] == [line]
    assert found.settings["network.listeners"] == [{"address": "mqtt://[::]:1883"}]
    assert not found.left_out
    Settings.model_validate(tomllib.loads(found.toml()))


def test_import_names_check_retain_source_when_rules_are_taken() -> None:
    found = imported("listener 1883\nacl_file rules")
    assert any("check_retain_source is true" in each.said for each in found.remarks)
    assert not imported("listener 1883\nacl_file rules\ncheck_retain_source false").left_out


def test_import_writes_settings_that_exist() -> None:
    assert not set(PLAIN) & set(OF_ACCESS | OF_ALL | OF_LISTENER)
    for key, _ in PLAIN.values():
        section, _, name = key.partition(".")
        annotation = Settings.model_fields[section].annotation
        assert name in annotation.model_fields, key  # type: ignore[union-attr]


@pytest.mark.slow
def test_import_reports_each_line_and_its_result_passes_the_check(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue("localhost")
    (tmp_path / "users").write_text("")
    text = WHOLE.format(
        folder=tmp_path, certificate=server.cert, key=server.key, authority=authority.cert
    )
    conf, out = tmp_path / "mosquitto.conf", tmp_path / "flowguard.toml"
    conf.write_text(f"{text}log_dest \x1b[2J\n")
    code, said = flowguard("import", str(conf), "--out", str(out))
    assert code == 1, said
    assert "\x1b" not in said
    assert "nothing is written" in said
    conf.write_text(text)
    code, said = flowguard("import", str(conf), "--out", str(out))
    assert code == 0, said
    assert f"{conf}:27: log_dest file" in said
    assert "next: flowguard check" in said
    code, said = flowguard("check", str(out))
    assert code == 0, said
    assert "is good: 4 listeners" in said
    code, said = flowguard("import", str(conf), "--out", str(out))
    assert code == 2
    assert "File exists" in said


@pytest.mark.slow
def test_import_exits_with_1_when_one_of_two_listeners_is_left_out(tmp_path: Path) -> None:
    conf, out = tmp_path / "mosquitto.conf", tmp_path / "flowguard.toml"
    conf.write_text("listener 1883 127.0.0.1\nlistener 1884\nmount_point a/\n")
    code, said = flowguard("import", str(conf), "--out", str(out))
    assert code == 1
    assert "mosquitto.conf:2: NOT TAKEN: the listener is left out: line 3 is not taken" in said
    assert "127.0.0.1:1883" in out.read_text()
    assert "1884" not in out.read_text()


@pytest.mark.slow
def test_import_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    code, said = flowguard("import", str(tmp_path / "none.conf"))
    assert code == 2
    assert "No such file" in said


# --- no client is let in that was rejected ------------------------------------------------------


def opened(found: MosquittoImport) -> set[tuple[str, ...]]:
    """The listeners of the result, with all settings that decide on clients."""
    access = {}
    for name in ("allow_anonymous", "password_file", "acl_file", "tls_version_min"):
        access[name] = found.settings.get(f"network.{name}")
    listeners = set()
    for each in found.settings["network.listeners"]:
        # A client's certificate decides alone.
        own = {"acl_file": access["acl_file"]} if "client_ca" in each else access
        listeners.add(tuple(f"{key}={value}" for key, value in (each | own).items()))
    return listeners


NOT_TAKEN = [
    *("clientid_prefixes a", "mount_point a/", "bind_interface lo", "psk_hint h"),
    *("use_username_as_clientid true", "use_username_as_clientid 1", "use_subject_as_username 1"),
    *("use_username_as_clientid true # c", "allow_zero_length_clientid false"),
    *("allow_zero_length_clientid 0 # no", "plugin a.so", "auth_plugin a.so", "auth_opt_a b"),
    *("plugin_opt_a b", "auth_plugin_deny_special_chars false", "tls_engine e", "global_plugin a"),
    *("frobnicate 7", "listener_allow_anonymous false", "allow_anonymous yes", "allow_anonymous"),
    *("allow_anonymous True", "require_certificate yes", "require_certificate\ttrue", "acl_file"),
    *("\ufeffacl_file a", "password_file a # b", "protocol mqttsn", "socket_domain ipv5"),
    *("include_dir /nowhere/conf.d", "\tmax_connections 3", " # a comment", "allow_anonymous 0\t"),
    *("max_connections 3\x00", "listener 70000", "listener 0", "port 0", "tls_version tlsv1"),
]


@given(st.sampled_from(sorted(EQUAL)), st.sampled_from(NOT_TAKEN), st.integers(0, 100))
def test_import_opens_no_more_when_a_line_of_access_is_not_taken(
    name: str, line: str, at: int
) -> None:
    lines = EQUAL[name].encode("utf-8", "surrogateescape").decode("latin-1").split("\n")
    text = "\n".join(lines).replace("{p}", "1").replace("{q}", "2").replace("{folder}", "/nowhere")
    lines = [each for each in text.split("\n") if not each.startswith("include_dir")]
    before = imported("\n".join(lines))
    lines.insert(at % len(lines), line)
    found = imported("\n".join(lines))
    assert not before.left_out
    assert any(each.text == line.strip() and not each.taken for each in found.remarks)
    assert found.left_out
    assert opened(found) <= opened(before)


def test_any_file_name_makes_valid_toml() -> None:
    found = settings("listener 1883 127.0.0.1\npassword_file /users\x7f😀\n")
    assert found["network"]["password_file"] == "/users\x7f😀"

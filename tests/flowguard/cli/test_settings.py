import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from flowguard.address import parse_address
from flowguard.cli.settings import load, settings_toml
from flowguard.config import Settings
from flowguard.errors import ConfigError
from flowguard.section import Section

LISTENER = "[[network.listeners]]\naddress = '127.0.0.1:0'\n"


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    return load(path, environ).settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "flowguard.toml"


# --- settings ---------------------------------------------------------------------------------


def test_without_file_and_variables_there_are_the_defaults() -> None:
    assert load_settings(None, {}) == Settings()


def test_an_empty_file_changes_nothing(file: Path) -> None:
    file.write_text("")
    assert load_settings(file, {}) == Settings()


def test_the_file_overrides_the_defaults(file: Path) -> None:
    file.write_text("[flow]\nwindow_max = 7\n[node]\ndrain_s = 0.5\n")
    settings = load_settings(file, {})
    assert (settings.flow.window_max, settings.node.drain_s) == (7, 0.5)
    assert settings.session == Settings().session


def test_variables_override_the_file(file: Path) -> None:
    file.write_text("[flow]\nwindow_max = 7\nconnect_buffer_max = 9\n")
    settings = load_settings(file, {"FLOWGUARD_FLOW__WINDOW_MAX": "5"})
    assert (settings.flow.window_max, settings.flow.connect_buffer_max) == (5, 9)


def test_options_override_variables_and_are_the_source(file: Path) -> None:
    file.write_text("[store]\nkind = 'redis'\n")
    variables = {"FLOWGUARD_STORE__KIND": "redis"}
    loaded = load(file, variables, None, {"store.kind": ("--store", "memory")})
    assert loaded.settings.store.kind == "memory"
    assert loaded.origins["store.kind"] == "--store"
    assert 'kind = "memory"  # --store' in settings_toml(loaded)


def test_listeners_of_the_command_line_replace_those_of_the_file(file: Path) -> None:
    file.write_text(LISTENER)
    addresses = ["mqtt://127.0.0.1:0", "mqtt://127.0.0.1:1884"]
    settings = load(file, {}, None, {"network.listeners": ("--listen", addresses)}).settings
    assert [each.address for each in settings.network.listeners] == addresses


@pytest.mark.parametrize(
    ("name", "text", "section", "value"),
    [
        ("SESSION__RETAIN_AVAILABLE", "false", "session", False),
        ("SESSION__KEEP_ALIVE_MAX_S", "30", "session", 30),
        ("NODE__SYS_INTERVAL_S", "2.5", "node", 2.5),
    ],
)
def test_the_text_of_a_variable_becomes_what_the_setting_is(
    name: str, text: str, section: str, value: object
) -> None:
    settings = load_settings(None, {f"FLOWGUARD_{name}": text})
    assert getattr(getattr(settings, section), name.partition("__")[2].lower()) == value


@pytest.mark.parametrize("name", ["FLOWGUARD_NO_APT", "FLOW__WINDOW_MAX", "PATH", "A__B"])
def test_other_variables_are_none_of_ours(name: str) -> None:
    assert load_settings(None, {name: "5"}) == Settings()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[flow]\nwindow_maximum = 5\n", "flow.window_maximum"),
        ("[flows]\nwindow_max = 5\n", "flows"),
        ("[flow]\nwindow_max = 0\n", "flow.window_max"),
        ("[flow]\nwindow_max = 70000\n", "flow.window_max"),
        ("[session]\nmaximum_qos = 'two'\n", "session.maximum_qos"),
        ("flow = 5\n", "flow"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_path(file: Path, text: str, path: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"^{path}: "):
        load_settings(file, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flow = 5", "flow: a table is expected"),
        ("[network]\nlisteners = 5", "network.listeners: a list is expected"),
        ("[network]\nlisteners = [5]", "network.listeners.0: a table is expected"),
        ("[session]\napplication_users = 5", "session.application_users: a list is expected"),
        ("[network]\ncert = 5", "network.cert: a path is expected, as a text"),
        ("[http]\nnames = [5]", "http.names.0: a text is expected"),
        ("[flow]\nwindow_max = 'x'", "flow.window_max: a whole number is expected"),
        ("[flow]\nwindow_max = 1.5", "flow.window_max: a whole number is expected"),
        ("[flow]\nqueue_objective_s = 'x'", "flow.queue_objective_s: a number is expected"),
        ("[log]\nlevel = 'loud'", "log.level: Input should be 'debug', 'info', "),
        ("[network]\nallow_plaintext = 'so'", "network.allow_plaintext: true or false is expected"),
        ("[redis]\nprefix = '{'", "redis.prefix: a prefix has no braces"),
        ("[[network.listeners]]\ncert = 'x'", "network.listeners.0.address: is missing"),
        (
            LISTENER + "addres = 'x'",
            "network.listeners.0.addres: unknown key; did you mean add",
        ),
        (
            LISTENER + "tls = 1",
            "network.listeners.0.tls: unknown key; known are address, cert, ",
        ),
        (
            LISTENER + "certs = [{server_name = 'a', cert = 'b', key = 'c', kee = 'd'}]",
            "network.listeners.0.certs.0.kee: unknown key; did you mean key?",
        ),
    ],
)
def test_complaints_speak_of_what_a_file_has(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {})
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("key", ["flow.window_max", "flow.queue_objective_s", "node.sessions_max"])
@pytest.mark.parametrize("truth", ["true", "false"])
def test_true_is_no_number(file: Path, key: str, truth: str) -> None:
    section, _, name = key.partition(".")
    file.write_text(f"[{section}]\n{name} = {truth}\n")
    with pytest.raises(ConfigError, match=f"^{key}: a number is expected, and not true or false$"):
        load_settings(file, {})


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("FLOWGUARD_FLOW__WINDOW_MAX", "flow.window_max"),
        ("FLOWGUARD_FLOW__WINDOW_MAXIMUM", "flow.window_maximum"),
        ("FLOWGUARD_FLOWS__WINDOW_MAX", "flows"),
    ],
)
def test_what_is_wrong_in_a_variable_is_named_with_its_path(name: str, path: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{path}: "):
        load_settings(None, {name: "many"})


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"FLOW__WINDOW_MAX": "0"}, "flow.window_max"),
        ({"FLOW__WINDOW_FLOOR": "0"}, "flow.window_floor"),
        ({"FLOW__WINDOW_FLOOR": "200"}, "flow.window_floor is above flow.window_max"),
        ({"FLOW__UNFINISHED_MAX": "-1"}, "flow.unfinished_max"),
        ({"FLOW__UNFINISHED_BYTES_MAX": "-1"}, "flow.unfinished_bytes_max"),
        ({"FLOW__CONNECT_BUFFER_MAX": "-1"}, "flow.connect_buffer_max"),
        ({"FLOW__QUEUE_OBJECTIVE_S": "0"}, "flow.queue_objective_s"),
        ({"FLOW__STORE_OBJECTIVE_S": "0"}, "flow.store_objective_s"),
        ({"FLOW__MEMORY_OBJECTIVE": "0"}, "flow.memory_objective"),
        ({"FLOW__MEMORY_MAX_BYTES": str(70 << 20)}, "flow.memory_max_bytes"),
        ({"FLOW__POLICY": "magic"}, "flow.policy"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_its_key(
    variables: dict[str, str], key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(None, {f"FLOWGUARD_{name}": text for name, text in variables.items()})
    assert key in str(refused.value)


def test_no_number_of_any_setting_is_without_end(file: Path) -> None:
    """JSON has no infinity: `/status` could not be answered, and nothing else would be bounded."""
    keys = [
        (section, key)
        for section, field in Settings.model_fields.items()
        for key, each in cast(type[Section], field.annotation).model_fields.items()
        if each.annotation is float
    ]
    assert ("flow", "queue_objective_s") in keys
    for section, key in keys:
        for number in ("inf", "nan"):
            file.write_text(f"[{section}]\n{key} = {number}\n")
            with pytest.raises(ConfigError, match=rf"^{section}.{key}: .*finite"):
                load_settings(file, {})
    with pytest.raises(ConfigError, match="finite"):
        load_settings(None, {"FLOWGUARD_FLOW__CONNECT_PATIENCE_S": "inf"})


@pytest.mark.parametrize(
    ("text", "relation"),
    [
        ("inflight_bytes_max = 1048576", "session.packet_size_max is above node.inflight_bytes"),
        ("input_bytes_max = 1048576", "session.packet_size_max is above node.input_bytes_max"),
        ("state_bytes_max = 1048576", "session.state_bytes_max is above node.state_bytes_max"),
    ],
)
def test_what_one_client_may_have_is_never_more_than_the_node(
    file: Path, text: str, relation: str
) -> None:
    session = "packet_size_max = 2097152\nstate_bytes_max = 2097152\n"
    file.write_text(f"[session]\n{session}[node]\n{text}\n")
    with pytest.raises(ConfigError, match=rf"{relation}.*raise the node's"):
        load_settings(file, {})


def test_all_mistakes_are_named_at_once(file: Path) -> None:
    file.write_text("[flow]\nwindow_max = 0\n[node]\ndrain = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(file, {})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "flow.window_max",
        "node.drain",
    ]


def test_an_impossible_relation_says_what_to_do(file: Path) -> None:
    text = "[session]\nqueue_bytes_max = 2097152\n[node]\nqueue_bytes_max = 1048576\n"
    file.write_text(text)
    with pytest.raises(ConfigError, match="raise the node's or lower the session's"):
        load_settings(file, {})


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*flowguard\.toml: No such file"):
        load_settings(file, {})


@pytest.mark.parametrize("content", [b"[flow\n", b"\xff\xfe", b"a = " + b"[" * 9_999])
def test_a_file_that_is_no_toml(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"flowguard\.toml is not valid TOML"):
        load_settings(file, {})


def test_names_of_the_http_port_are_a_list_or_a_variable(file: Path) -> None:
    file.write_text('[http]\nnames = ["Broker.example."]\n')
    assert load_settings(file, {}).http.names == ("broker.example",)
    variables = {"FLOWGUARD_HTTP__NAMES": "a.example, b.example"}
    assert load_settings(None, variables).http.names == ("a.example", "b.example")
    for wrong in ("a.example:9883", "http://a", "*.example"):
        with pytest.raises(ConfigError, match=r"http\.names.*without scheme, port and wildcard"):
            load_settings(None, {"FLOWGUARD_HTTP__NAMES": wrong})


def test_a_variable_for_a_section_that_is_no_table(file: Path) -> None:
    file.write_text("flow = 5\n")
    with pytest.raises(ConfigError, match="FLOWGUARD_FLOW__WINDOW_MAX"):
        load_settings(file, {"FLOWGUARD_FLOW__WINDOW_MAX": "5"})


# --- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1883", ("127.0.0.1", 1883)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("localhost:65535", ("localhost", 65_535)),
        ("[::1]:1883", ("::1", 1883)),
        ("[::]:0", ("::", 0)),
    ],
)
def test_an_address(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "1883", ":1883", "[]:1883", "host", "host:", "host:-1", "host:65536", "host:1883x"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("text", ["Zähler", "😀", "\x7f", 'a "quoted" \\ one'])
def test_any_text_can_be_read_back_from_the_settings_that_are_shown(text: str, file: Path) -> None:
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    file.write_text(f"[network]\ntoken_issuer = {quoted}\n", encoding="utf-8")
    shown = settings_toml(load(file, {}))
    assert tomllib.loads(shown)["network"] == {"token_issuer": text}

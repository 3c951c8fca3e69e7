"""Relative paths of a configuration file begin at its folder; those of variables do not."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest

from flowguard.cli.settings import load, settings_toml
from flowguard.config import Settings
from flowguard.errors import ConfigError
from tests.flowguard.cli.http_port import run
from tests.flowguard.cli.test_manners import run_in
from tests.interop.broker import PATIENCE_S, start
from tests.support.authority import Authority

OTHERS = {
    "kafka": "tls = true\nuser = 'a'\nmechanism = 'PLAIN'\n",
    "network": "token_audience = 'a'\nlisteners = [{address = 'mqtts://127.0.0.1:0', cert = 'f', "
    "key = 'f', chain = 'f', client_ca = 'f', crl = 'f', "
    "certs = [{server_name = 'a', cert = 'f', key = 'f'}]}]\n",
}
"""Values of other keys that those with paths need, by section."""


def keys_with_paths() -> Iterator[tuple[str, str]]:
    for section, field in Settings.model_fields.items():
        form: Any = field.annotation
        for name, item in form.model_fields.items():
            if Path in ({item.annotation, *get_args(item.annotation)} - {NoneType}):
                yield section, name


def paths_in(value: object) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from paths_in(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from paths_in(each)


def test_each_path_in_a_file_begins_at_its_folder(tmp_path: Path) -> None:
    texts = dict(OTHERS)
    keys = list(keys_with_paths())
    for section, name in keys:
        texts[section] = texts.get(section, "") + f"{name} = 'f'\n"
    file = tmp_path / "flowguard.toml"
    file.write_text("".join(f"[{section}]\n{text}" for section, text in texts.items()))
    found = load(file, {}).settings.model_dump()
    paths = list(paths_in(found))
    assert len(paths) == len(keys) + 7
    assert set(paths) == {tmp_path / "f"}
    assert ("network", "acl_file") in keys


def test_paths_of_variables_and_whole_paths_stay(tmp_path: Path) -> None:
    file = tmp_path / "flowguard.toml"
    file.write_text("[network]\nacl_file = '/rules'\n")
    loaded = load(file, {"FLOWGUARD_HTTP__TOKEN_FILE": "token"}).settings
    assert (loaded.network.acl_file, loaded.http.token_file) == (Path("/rules"), Path("token"))
    assert load(None, {}).settings.store.data_dir == Path("flowguard-data")


def test_shown_settings_can_be_stored_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    file = Path("one/flowguard.toml")
    file.write_text("[network]\nacl_file = 'rules'\n")
    other = tmp_path / "flowguard.toml"
    other.write_text(settings_toml(load(file, {})))
    assert load(other, {}).settings == load(file, {}).settings
    assert tomllib.loads(other.read_text())["network"]["acl_file"] == str(tmp_path / "one/rules")


def test_a_file_that_is_where_it_was_looked_for_before_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "rules").touch()
    file = Path("etc/flowguard.toml")
    file.write_text("[network]\nacl_file = 'rules'\n")
    with pytest.raises(ConfigError) as moved:
        load(file, {})
    assert str(moved.value) == (
        f"{tmp_path}/etc/rules does not exist, but rules does: relative paths in {file} begin at "
        f"its folder; write ../rules or {tmp_path}/rules"
    )
    (tmp_path / "rules").unlink()
    code, complaint = run_in(tmp_path, "check", str(file))
    assert code == 2
    assert f"cannot read {tmp_path}/etc/rules: No such file" in complaint


def test_serve_takes_files_store_and_http_port_from_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    pair = Authority(folder).issue("localhost")
    file = folder / "flowguard.toml"
    text = (
        "[network]\nlisteners = ['mqtts://127.0.0.1:0']\n"
        f"cert = '{pair.cert.name}'\nkey = '{pair.key.name}'\n"
        "[store]\ndata_dir = 'store'\n[http]\naddress = '127.0.0.1:0'\n"
    )
    file.write_text(text)
    process = start("serve", "--config", str(file))
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(" mqtts\n")
        assert process.stdout.readline().startswith("http on http://127.0.0.1:")
        assert (folder / "store" / "CURRENT").exists()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
    file.write_text(text.replace("'127.0.0.1:0'\n", "'127.0.0.1'\n"))
    code, _, complaint = run("check", str(file))
    assert code == 2
    assert "http.address: 127.0.0.1: expected HOST:PORT" in complaint


def test_import_into_another_folder_keeps_what_relative_paths_name(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "mosquitto.conf").write_text("listener 1883 127.0.0.1\nacl_file rules\n")
    (tmp_path / "rules").write_text("topic a\n")
    for name, names in (("here.toml", "rules"), ("etc/there.toml", f"{tmp_path}/rules")):
        out = str(tmp_path / name)
        assert run_in(tmp_path, "import", "mosquitto.conf", "--out", out)[0] == 0
        assert tomllib.loads(Path(out).read_text())["network"]["acl_file"] == names
        assert json.loads(run("check", out, "--json")[1])["good"]

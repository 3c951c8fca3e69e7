"""The compose files: each is checked by its schema, and together they name only what there is."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flowguard.cli.settings import load
from tests.deploy.checkers import checked
from tests.deploy.test_prometheus import promtool_accepts
from tests.deploy.unpacked_image import FILE, ROOT, stages

FOLDER = FILE.parent
FILES = sorted(FOLDER.glob("compose*.yml"))
PARTS = [yaml.safe_load(path.read_text()) for path in FILES]
MERGED: dict[str, Any] = {
    section: {name: value for part in PARTS for name, value in part.get(section, {}).items()}
    for section in ("volumes", "configs")
}
SERVICES = [(name, each) for part in PARTS for name, each in part["services"].items()]


@pytest.mark.peers
@pytest.mark.slow
def test_schema_accepts_each() -> None:
    ended = checked("check-jsonschema", "--builtin-schema", "vendor.compose-spec", *FILES)
    assert ended.returncode == 0, ended.stdout


def test_they_name_only_volumes_folders_services_and_files_that_exist() -> None:
    assert {path.name for path in FILES} == {
        "compose.yml",
        "compose.redis.yml",
        "compose.monitoring.yml",
    }
    names = {name for name, _ in SERVICES}
    for _, service in SERVICES:
        assert {*service.get("depends_on", ())} <= names
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if not source.startswith("."):
                assert source in MERGED["volumes"]
            elif source != "./etc":  # the user's own; Docker makes it
                assert (FOLDER / source).exists()
        for config in service.get("configs", ()):
            assert config["source"] in MERGED["configs"]
    build = dict(SERVICES)["flowguard"].get("build") or PARTS[-1]["services"]["flowguard"]["build"]
    context = FOLDER / build["context"]
    assert context.resolve() == ROOT
    assert (context / build["dockerfile"]).samefile(FILE)


def test_broker_is_published_on_ports_of_the_image_without_rights_on_the_machine() -> None:
    (broker,) = [each for name, each in SERVICES if name == "flowguard" and "ports" in each]
    ports = {port.rpartition(":")[2] for port in broker["ports"]}
    assert ports == {*dict(stages()[-1])["EXPOSE"].split()}
    # The port without TLS, and that of HTTP, are for this machine.
    assert {port for port in broker["ports"] if port.startswith("127.0.0.1:")} == {
        "127.0.0.1:1883:1883",
        "127.0.0.1:9883:9883",
    }
    assert broker["cap_drop"] == ["ALL"]
    assert broker["read_only"] is True
    settings = load(None, {}, None, {}).settings.node
    assert int(broker["stop_grace_period"].rstrip("s")) > settings.drain_s + settings.drain_over_s


def test_variables_are_settings() -> None:
    given = {
        name: value
        for service, each in SERVICES
        if service == "flowguard"
        for name, value in each.get("environment", {}).items()
    }
    http = load(None, given, None, {}).settings.http
    assert http.names == ("flowguard",)
    (target,) = yaml.safe_load(MERGED["configs"]["prometheus"]["content"])["scrape_configs"]
    assert http.token_file == Path(target["authorization"]["credentials_file"])
    assert target["static_configs"][0]["targets"][0].split(":")[0] in http.names


def test_grafana_finds_data_source_and_dashboard() -> None:
    source = yaml.safe_load(MERGED["configs"]["datasource"]["content"])["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load(MERGED["configs"]["dashboards"]["content"])["providers"]
    place = provider["options"]["path"]
    volumes = next(each["volumes"] for name, each in SERVICES if name == "grafana")
    (folder,) = [each.split(":")[0] for each in volumes if f":{place}" in each]
    boards = [json.loads(path.read_text()) for path in (FOLDER / folder).glob("*.json")]
    assert "flowguard" in {board["title"] for board in boards}


@pytest.mark.peers
@pytest.mark.slow
def test_promtool_accepts_the_settings_of_prometheus(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    text = MERGED["configs"]["prometheus"]["content"]
    config.write_text(text.replace("/run/flowguard/http-token", str(token)))
    (tmp_path / "alerts.yml").symlink_to(ROOT / "deploy" / "prometheus" / "alerts.yml")
    promtool_accepts(tmp_path, "check", "config", config.name)

"""The compose files: each is checked by its schema, and together they name only what there is."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from flowguard.app.workers.shares import check_shares
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
NODES = ("node-1", "node-2", "node-3")
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
        "compose.cluster.yml",
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
        if "build" in service:
            context = FOLDER / service["build"]["context"]
            assert context.resolve() == ROOT
            assert (context / service["build"]["dockerfile"]).samefile(FILE)
    assert [name for name, service in SERVICES if "build" in service] == [*NODES, "flowguard"]


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


def prometheus_settings(targets: str = "") -> str:
    """Return the text with the variable, or with its default."""
    text: str = MERGED["configs"]["prometheus"]["content"]
    return re.sub(r"\$\{FLOWGUARD_TARGETS:-(.*?)\}", lambda found: targets or str(found[1]), text)


def test_variables_are_settings_and_prometheus_asks_all() -> None:
    text = (FOLDER / "compose.cluster.yml").read_text()
    (of_cluster,) = re.findall(r"FLOWGUARD_TARGETS='(.*)'", text)
    for service, targets in (("flowguard", ""), *((name, of_cluster) for name in NODES)):
        (given,) = [
            each["environment"]
            for name, each in SERVICES
            if name == service and "environment" in each
        ]
        http = load(None, given, None, {}).settings.http
        (job,) = yaml.safe_load(prometheus_settings(targets))["scrape_configs"]
        assert http.token_file == Path(job["authorization"]["credentials_file"])
        hosts = [target.split(":")[0] for target in job["static_configs"][0]["targets"]]
        assert tuple(hosts) == http.names
        assert service in hosts


def test_memory_of_a_node_is_enough_for_all_shards(tmp_path: Path) -> None:
    file = tmp_path / "flowguard.toml"
    file.write_text(MERGED["configs"]["node"]["content"])
    settings = load(file, {}, None, {}).settings
    assert {dict(SERVICES)[name]["mem_limit"] for name in NODES} == {"1g"}
    assert check_shares(settings, settings.cluster.shards, 2**30).memory_bytes > 0


def test_haproxy_finds_the_nodes_and_is_their_only_proxy() -> None:
    services = dict(SERVICES)
    haproxy = services["haproxy"]
    addresses = {name: services[name]["networks"]["default"]["ipv4_address"] for name in NODES}
    assert haproxy["extra_hosts"] == addresses
    text = MERGED["configs"]["node"]["content"]
    (listener,) = tomllib.loads(text)["network"]["listeners"]
    assert listener["proxies"] == [haproxy["networks"]["default"]["ipv4_address"]]
    source, target, _ = haproxy["volumes"][0].split(":")
    for word in haproxy["command"][2::2]:
        file = FOLDER / source / Path(word).relative_to(target)
        assert [*re.findall(r"server \S+ (\S+):\d+", file.read_text())] == [*NODES]


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
    text = prometheus_settings()
    config.write_text(text.replace("/run/flowguard/http-token", str(token)))
    (tmp_path / "alerts.yml").symlink_to(ROOT / "deploy" / "prometheus" / "alerts.yml")
    promtool_accepts(tmp_path, "check", "config", config.name)

"""The Helm chart, rendered by Helm and checked by the schemas of Kubernetes."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from flowguard import __version__
from flowguard.cli.settings import load
from tests.deploy.checkers import checked
from tests.deploy.unpacked_image import ROOT, stages

CHART = ROOT / "deploy" / "chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
RENDER = """
import json, sys
import helm_python as helm
folder, values = sys.argv[1], json.loads(sys.argv[2])
with helm.Chart.load(folder) as chart:
    found = chart.render(values, name="demo", namespace="prod")
print(json.dumps([helm.lint(folder), found]))
"""
FULL = {
    "secret": "files",
    "httpTokenSecret": "token",
    "env": [{"name": "FLOWGUARD_FLOW__WINDOW_MAX", "value": "50"}],
    "args": ["--workers", "2"],
    "storage": {"className": "fast"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "mqtt", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "podAnnotations": {"a": "b"},
    "service": {"type": "LoadBalancer", "annotations": {"c": "d"}},
    "ports": {"mqtts": 8883, "wss": 8443},
}
CLUSTER: dict[str, Any] = {"enabled": True, "redisSecret": "redis"}
TLS = {**CLUSTER, "tlsSecret": "cluster"}

pytestmark = [pytest.mark.peers, pytest.mark.slow]


def rendered(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return Helm's findings, and the text of each file."""
    ended = checked("python", "-c", RENDER, CHART, json.dumps(values))
    assert ended.returncode == 0, ended.stderr
    findings, files = json.loads(ended.stdout)
    return findings, files


@pytest.mark.parametrize(
    ("values", "count"),
    [({}, 4), (FULL, 4), ({"cluster": CLUSTER}, 6), ({**FULL, "cluster": TLS}, 6)],
    ids=["defaults", "every value", "cluster", "cluster with every value"],
)
def test_kubernetes_accepts_what_helm_renders(
    values: dict[str, Any], count: int, tmp_path: Path
) -> None:
    findings, files = rendered(values)
    assert findings["errors"] == []
    assert [each["error"] for each in findings["messages"]] == ["icon is recommended"]
    paths = []
    for name, text in files.items():
        if name.endswith(".yaml"):
            paths.append(tmp_path / Path(name).name)
            paths[-1].write_text(text)
    ended = checked("kubernetes-validate", "--strict", *paths)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" passed ") == count


def test_every_value_has_an_effect() -> None:
    pod = rendered(FULL)[1]["flowguard/templates/statefulset.yaml"]
    others = {"image", "config", "resources", "terminationGracePeriodSeconds", "cluster"}
    assert FULL.keys() | others == {*VALUES}
    given = yaml.safe_load(pod)["spec"]["template"]["spec"]
    (broker,) = given["containers"]
    assert broker["args"] == FULL["args"]
    assert [each["name"] for each in broker["env"]] == [
        "FLOWGUARD_HTTP__TOKEN_FILE",
        "FLOWGUARD_FLOW__WINDOW_MAX",
    ]
    assert [each["name"] for each in broker["ports"]] == ["mqtts", "wss", "http"]
    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity"):
        assert given[name] == FULL[name]


def test_pod_fits_the_image() -> None:
    text = rendered({})[1]["flowguard/templates/statefulset.yaml"]
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    (broker,) = pod["containers"]
    last = dict(stages()[-1])
    security = pod["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == last["USER"]
    places = {each["mountPath"] for each in broker["volumeMounts"]}
    assert {last["VOLUME"], last["WORKDIR"]} <= places
    assert {str(each["containerPort"]) for each in broker["ports"]} <= {*last["EXPOSE"].split()}
    assert broker["image"] == f"flowguard:{__version__}"


def test_settings_of_the_values_are_those_of_flowguard(tmp_path: Path) -> None:
    text = rendered({})[1]["flowguard/templates/configmap.yaml"]
    file = tmp_path / "flowguard.toml"
    file.write_text(yaml.safe_load(text)["data"]["flowguard.toml"])
    assert tomllib.loads(file.read_text()) == tomllib.loads(VALUES["config"])
    network = load(file, {}, None, {}).settings.network
    assert [each.address for each in network.listeners] == ["mqtts://0.0.0.0:8883"]


def test_pods_of_a_cluster_are_its_nodes() -> None:
    files = rendered({"args": ["--workers", "2"], "cluster": {**CLUSTER, "nodes": 5, "shards": 9}})
    texts = files[1]
    stateful = yaml.safe_load(texts["flowguard/templates/statefulset.yaml"])["spec"]
    assert stateful["replicas"] == 5
    assert "volumeClaimTemplates" not in stateful
    pod = stateful["template"]["spec"]
    (broker,) = pod["containers"]
    service = stateful["serviceName"]
    name = f"$(POD_NAME).{service}.prod.svc.cluster.local:7000"
    assert broker["args"] == ["--cluster", name, "--store", "redis", "--workers", "2"]
    variables = {each["name"]: each for each in broker["env"]}
    given = {key: each["value"] for key, each in variables.items() if "value" in each}
    settings = load(None, given, None, {"cluster.address": ("", "pod:7000")}).settings
    assert settings.cluster.shards == 9
    assert settings.cluster.allow_plaintext
    reference = variables["FLOWGUARD_REDIS__URL"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "redis", "key": "url"}
    longest_s = pod["terminationGracePeriodSeconds"]
    assert longest_s > settings.node.drain_s + settings.node.drain_over_s
    assert broker["livenessProbe"]["httpGet"]["path"] == "/health"
    assert broker["readinessProbe"]["httpGet"]["path"] == "/ready"
    # A name is found also while its pod is not ready: else no node would reach another one.
    services = [*yaml.safe_load_all(texts["flowguard/templates/service.yaml"])]
    (headless,) = [each for each in services if each["metadata"]["name"] == service]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True
    budget, policy = yaml.safe_load_all(texts["flowguard/templates/cluster.yaml"])
    assert budget["spec"]["maxUnavailable"] == 1
    labels = stateful["selector"]
    assert budget["spec"]["selector"] == policy["spec"]["podSelector"] == labels
    for_all, for_nodes = policy["spec"]["ingress"]
    assert [each["port"] for each in for_all["ports"]] == ["mqtts", "http"]
    assert for_nodes == {"from": [{"podSelector": labels}]}


def test_nodes_find_the_certificate_of_their_secret() -> None:
    text = rendered({"cluster": TLS})[1]["flowguard/templates/statefulset.yaml"]
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    (broker,) = pod["containers"]
    given = {each["name"]: each["value"] for each in broker["env"] if "value" in each}
    cluster = load(None, given, None, {"cluster.address": ("", "pod:7000")}).settings.cluster
    assert not cluster.allow_plaintext
    (place,) = [each for each in broker["volumeMounts"] if each["name"] == "cluster"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "cluster"]
    assert volume["secret"]["secretName"] == "cluster"
    names = [str(path) for path in (cluster.cert, cluster.key, cluster.ca)]
    assert names == [f"{place['mountPath']}/{name}" for name in ("tls.crt", "tls.key", "ca.crt")]


def test_cluster_without_a_redis_is_an_error() -> None:
    values = json.dumps({"cluster": {"enabled": True}})
    ended = checked("python", "-c", RENDER, CHART, values)
    assert ended.returncode != 0
    assert "cluster.redisSecret" in ended.stderr

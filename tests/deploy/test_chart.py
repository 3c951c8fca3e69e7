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

pytestmark = [pytest.mark.peers, pytest.mark.slow]


def rendered(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return Helm's findings, and the text of each file."""
    ended = checked("python", "-c", RENDER, CHART, json.dumps(values))
    assert ended.returncode == 0, ended.stderr
    findings, files = json.loads(ended.stdout)
    return findings, files


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "every value"])
def test_kubernetes_accepts_what_helm_renders(values: dict[str, Any], tmp_path: Path) -> None:
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
    assert ended.stdout.count(" passed ") == 4


def test_every_value_has_an_effect() -> None:
    pod = rendered(FULL)[1]["flowguard/templates/statefulset.yaml"]
    assert FULL.keys() | {"image", "config", "resources", "terminationGracePeriodSeconds"} == {
        *VALUES
    }
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

from pathlib import Path

import pytest

from flowguard.errors import ConfigError
from simulations.scenario_files.loading import change, load, names, parameters


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refusal(name: str, *changes: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(name, dict(map(change, changes)))
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("name", names())
def test_every_scenario_of_the_library_says_what_it_is_and_where_to_look(name: str) -> None:
    scenario = load(name).scenario
    assert 0 < len(f"{name}: {scenario.title}") <= 80
    assert "Look at" in scenario.description


def test_a_toml_file_is_a_scenario_and_changes_override_its_keys(tmp_path: Path) -> None:
    mine = written(
        tmp_path,
        "mine.toml",
        """
        nodes = 2
        [populations.a]
        clients = 10
        [[faults]]
        kind = "node_down"
        at_s = 5
        """,
    )
    loaded = load(mine, dict(map(change, ["nodes=3", "faults.0.at_s=7", "node.noise=0.1"])))
    assert loaded.name == "mine"
    assert loaded.scenario.nodes == 3
    assert loaded.scenario.faults[0].at_s == 7.0
    assert loaded.scenario.node.noise == 0.1
    assert loaded.scenario.populations["a"].clients == 10
    assert loaded.changes == {"nodes": 3, "faults.0.at_s": 7, "node.noise": 0.1}


def test_an_empty_value_takes_a_key_out(tmp_path: Path) -> None:
    mine = written(tmp_path, "mine.toml", "node.restart_s = 3.0")
    assert load(mine).scenario.node.restart_s == 3.0
    assert load(mine, dict([change("node.restart_s=")])).scenario.node.restart_s is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((".9", 0.9), ("1.", 1.0), ("-.5", -0.5), ("005", 5), ("0100", 100), ("2e5", 2e5)),
        *(("True", True), ("yes", True), ("ON", True), ("False", False), ("no", False)),
        *(("off", False), ("None", None), ("fixed", "fixed"), ("'005'", "005"), ("1.2.3", "1.2.3")),
        *(("[1", "[1"), ("[" * 9_999, "[" * 9_999), ("{", "{")),
    ],
)
def test_numbers_and_truths_may_be_written_as_people_write_them(text: str, value: object) -> None:
    read = change(f"key={text}")[1]
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    "value",
    [True, False, None, 7, 0.9, 3e-06, "fixed", [1, True, None], {"kind": "fixed", "first_s": 2.0}],
)
def test_what_a_recording_says_of_a_parameter_can_be_set_again(value: object) -> None:
    assert change(f"key={value}") == ("key", value)


def test_numbers_and_truths_of_the_command_line_reach_parameters_and_keys() -> None:
    assert load("retry_storm", dict([change("load=.9")])).changes == {"load": 0.9}
    changes = ["acceptors_first=True", "clients=005", "flow.refusal_share=.1"]
    scenario = load("flash_crowd", dict(map(change, changes))).scenario
    assert scenario.node.accepts_first
    assert scenario.clients == 5
    assert scenario.flow.refusal_share == 0.1


def test_clients_are_shared_out_as_in_the_file(tmp_path: Path) -> None:
    mine = written(
        tmp_path, "mine.toml", "[populations]\na.clients = 10\nb.clients = 90\nc.clients = 1"
    )
    populations = load(mine, {"clients": 1_010}).scenario.populations
    assert {name: plan.clients for name, plan in populations.items()} == {
        "a": 100,
        "b": 900,
        "c": 10,
    }


def test_a_python_file_takes_parameters_with_their_types_and_keys_besides(tmp_path: Path) -> None:
    mine = written(
        tmp_path,
        "mine.py",
        "from simulations.scenario import PopulationPlan, Scenario\n"
        "def scenario(load: float = 0.5) -> Scenario:\n"
        "    crowd = PopulationPlan(clients=int(100 * load))\n"
        "    return Scenario(populations={'crowd': crowd})\n",
    )
    assert parameters(mine) == {"load": 0.5}
    assert load(mine).scenario.clients == 50
    changed = load(mine, dict(map(change, ["load=0.7", "populations.crowd.retry.kind=fixed"])))
    assert changed.scenario.clients == 70
    assert changed.scenario.populations["crowd"].retry.kind == "fixed"
    assert refusal(mine, "load=much") == f"{mine}: load: 'much' is no number"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodess = 1", "nodess: unknown key; did you mean nodes or node?"),
        ("node.connect_ms = 1", "node.connect_ms: unknown key; did you mean connect_s"),
        (
            "[populations.a]\nretry.frist_s = 1",
            "populations.a.retry.frist_s: unknown key; did you mean first_s",
        ),
        ("nodes = 0", "nodes: 0 is less than 1"),
        ("node.connect_s = -0.5", "node.connect_s: -0.5 is not more than 0"),
        ("node.accept_s = -1", "node.accept_s: -1 is less than 0"),
        ("node.noise = 1.5", "node.noise: 1.5 is more than 1"),
        ("duration_s = inf", "duration_s: inf is no number"),
        ("nodes = 'three'", "nodes: 'three' is no whole number"),
        ("nodes = true", "nodes: True is no whole number"),
        ("nodes = '2'", "nodes: '2' is no whole number"),
        ("populations.a.clients = '50'", "populations.a.clients: '50' is no whole number"),
        ("populations.a.at = [false]", "populations.a.at: [False] is no whole number"),
        ("populations.a.stay_s = '1'", "populations.a.stay_s: '1' is no number"),
        ("ends_when_connected = 'yes'", "ends_when_connected: 'yes' is neither true nor false"),
        ("ends_when_connected = 1", "ends_when_connected: 1 is neither true nor false"),
        ("flow.window_max = '10'", "flow.window_max: '10' is no whole number"),
        ("flow.window_max = true", "flow.window_max: True is no whole number"),
        ("flow = { window_max = 'x', refusal_share = 'y' }", "flow.window_max: 'x' is no whole"),
        ("flow = 3", "flow: 3 is no table"),
        ("flow.policy = 'vegas'", "flow.policy is not allowed in a scenario"),
        ("flow.shadow_policy = 'vegas'", "flow.shadow_policy is not allowed in a scenario"),
        (f"seed = {2**63}", f"seed: {2**63} is more than {2**63 - 1}"),
        ("node.connect_s = 'long'", "node.connect_s: 'long' is no number"),
        ("node.noise = -1\nnodes = 0", "nodes: 0 is less than 1 (and 1 more)"),
        ("node = 3", "node: 3 is no table"),
        ("faults = 3", "faults: 3 is no list"),
        ("ends_when_connected = 'soon'", "ends_when_connected: 'soon' is neither true nor false"),
        ("[populations]", "populations: there is none"),
        ("[[faults]]\nkind = 'node_down'", "faults.0.at_s: is missing"),
        ("network.replicas = 2", "network.replicas is 2: there are 1 nodes"),
        ("[[faults]]\nkind = 'fire'\nat_s = 1", "faults.0.kind: 'fire' is none of 'node_down', "),
        ("nodes =", "is not valid TOML: "),
        ("nodes = " + "[" * 9_999, "is not valid TOML: "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_that_names_file_and_key(
    tmp_path: Path, text: str, words: str
) -> None:
    mine = written(tmp_path, "mine.toml", text)
    assert refusal(mine).startswith(f"{mine}: {words}")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("nodes=0", "nodes: 0 is less than 1"),
        ("populations.b.clients=2", "populations.b: no population of that name; there are a"),
        ("faults.1.at_s=2", "faults.1: there are 1, counted from 0"),
        ("nodes.count=2", "nodes: is a value, no table"),
        ("clients=0", "clients: 0 is less than 1"),
        ("clients=true", "clients: True is no whole number"),
        ("nodes=true", "nodes: True is no whole number"),
        ("ends_when_connected=maybe", "ends_when_connected: 'maybe' is neither true nor false"),
    ],
)
def test_what_is_wrong_with_a_change_is_one_line_that_names_the_key(
    tmp_path: Path, changed: str, words: str
) -> None:
    text = "nodes = 1\n[populations.a]\n[[faults]]\nkind = 'slow_cpu'\nat_s = 1"
    assert refusal(written(tmp_path, "mine.toml", text), changed).endswith(f"mine.toml: {words}")


@pytest.mark.parametrize(
    ("text", "changed", "words"),
    [
        ("populations = 3", "clients=10", "populations: 3 is no table"),
        ("populations.a = 3", "clients=10", "populations.a: 3 is no table"),
        ("populations = 3", "populations.a.clients=10", "populations: 3 is no table"),
        (
            "[populations.a]\nclients = 'x'",
            "clients=10",
            "populations.a.clients: 'x' is no number of clients",
        ),
        (
            "[populations.a]\nclients = 0",
            "clients=10",
            "populations.a.clients: 0 is no number of clients",
        ),
        ("faults = [1]", "faults.0.node=1", "faults.0: is a value, no table"),
    ],
)
def test_a_change_of_a_file_that_is_wrong_itself_is_one_line_too(
    tmp_path: Path, text: str, changed: str, words: str
) -> None:
    assert refusal(written(tmp_path, "mine.toml", text), changed).endswith(f"mine.toml: {words}")


@pytest.mark.parametrize(
    ("scenario", "changed", "words"),
    [
        ("flash_crowd", "connects_per_s=0", "connects_per_s: 0 is not more than 0"),
        ("flash_crowd", "refuse_cost=-1", "refuse_cost: -1 is less than 0"),
        ("cascade", "second_after_s=-5", "second_after_s: -5 is less than 0"),
        ("partition", "replicas=true", "replicas: True is no whole number"),
        ("partition", "cut_s='5'", "cut_s: '5' is no number"),
        ("partition", "flow.policy=vegas", "flow.policy is not allowed in a scenario"),
        ("partition", f"seed={2**63}", f"seed: {2**63} is more than"),
        ("partition", "replicas=9", "network.replicas is 9: there are 3 nodes"),
    ],
)
def test_an_impossible_parameter_is_one_line(scenario: str, changed: str, words: str) -> None:
    assert refusal(scenario, changed).startswith(f"{scenario}.py: {words}")


def test_whole_numbers_are_numbers_and_a_number_may_be_whole(tmp_path: Path) -> None:
    mine = written(tmp_path, "mine.toml", "duration_s = 3\nnode.noise = 0\nnodes = 2e0")
    assert load(mine).scenario.duration_s == 3.0
    changed = load(mine, dict(map(change, ["nodes=3", "ends_when_connected=true", "clients=7"])))
    assert (changed.scenario.nodes, changed.scenario.clients) == (3, 7)
    assert changed.scenario.ends_when_connected


def test_a_change_is_a_key_and_a_value() -> None:
    assert refusal("flash_crowd", "nodes").startswith("--set nodes: expected KEY=VALUE")


def test_a_scenario_that_is_not_there_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    assert refusal("flashcrowd") == (
        "flashcrowd: no scenario of that name; did you mean flash_crowd?"
    )
    assert refusal("xyz").startswith("xyz: no scenario of that name; there are ")
    assert refusal("./mine.toml") == "./mine.toml: there is no such file"
    other = written(tmp_path, "mine.yaml", "")
    assert refusal(other) == f"{other}: a scenario is a .toml or .py file"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def scenario(:\n", "line 1: "),
        ("x = 1\n", "has no function scenario(...) -> Scenario"),
        ("def scenario():\n    return 3\n", "scenario() gives no Scenario"),
        ("def scenario():\n    return 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("raise RuntimeError('no crowd')\n", "line 1: RuntimeError: no crowd"),
        (
            "from simulations.scenario import Scenario\n"
            "def scenario():\n    return Scenario(nodes=0)\n",
            "nodes: 0 is less than 1",
        ),
    ],
)
def test_what_is_wrong_with_a_python_file_is_one_line(
    tmp_path: Path, text: str, words: str
) -> None:
    mine = written(tmp_path, "mine.py", text)
    assert refusal(mine).startswith(f"{mine}: {words}")

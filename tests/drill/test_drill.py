"""The drill with a few clients: each step finds what it has to find."""

from pathlib import Path

import pytest

from tests.drill.__main__ import PAGE
from tests.drill.page import page
from tests.drill.proxy_steps import ProxyDrill
from tests.drill.scene import Scene
from tests.drill.steps import BrokerDrill
from tests.drill.store_steps import StoreDrill
from tests.drill.terminal import Command, Step, Terminal

CLIENTS = 20
AWAY_S = 5.0
"""A commit must take 3 s until its store counts as unavailable."""


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.long
def test_each_step_finds_its_fault(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    scene = Scene(terminal)
    if missing := scene.missing():
        pytest.skip(
            f"missing: {', '.join(missing)} (apt-get install prometheus redis-server mosquitto)"
        )
    scene.prepare()
    BrokerDrill(scene, CLIENTS, "1s").run()
    StoreDrill(scene, AWAY_S).run()
    ProxyDrill(scene, CLIENTS, "5s").run()
    written = [line for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    named = [f"## {step.title}" for step in terminal.steps]
    assert [line.replace("2,000", str(CLIENTS)) for line in written] == named, "run make drill"


def test_long_output_is_shortened_by_rule() -> None:
    output = "".join(f"line {number}\n\n" for number in range(50)) + "x" * 300
    text = page([Step("Title", "Purpose.", [Command("one |\n    two", output)])], 5)
    lines = text.splitlines()
    assert "$ one |" in lines
    assert "> two" in lines
    assert lines[lines.index("line 15") + 1 :][:3] == ["[32 lines]", "line 48", "line 49"]
    assert lines[-2] == "x" * 199 + "…"

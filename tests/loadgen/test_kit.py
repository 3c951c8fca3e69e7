"""`flowguard storm --kit` as a program, and its scoreboard."""

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.command.kit_page import page
from loadgen.command.kit_view import show_report
from loadgen.kit import EXPERIMENTS, Finding, KitFigure, KitReport, MemoryUse, Survival
from tests.broker_adapter.upstream import MOSQUITTO, mosquitto
from tests.interop.broker import running_broker
from tests.support.browser import open_page
from tests.support.commands import flowguard
from tests.support.patience import HANG_S

FLOWGUARD = [sys.executable, "-m", "flowguard"]
SENTENCE = "990 of 1,000 clients in, 99 % after 1.2 s; 12 attempts reset <by peer>."

CONTRASTS = """
(() => {
  const light = (css) => {
    const [r, g, b] = css.match(/[\\d.]+/g).slice(0, 3).map((v) => {
      v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll('p, th, td, li, a, caption, .badge, h1, h2')].map((e) => {
    const ink = light(getComputedStyle(e).color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  });
})()
"""


def storm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FLOWGUARD, "storm", *words], capture_output=True, text=True, timeout=HANG_S, check=False
    )


def report(name: str, verdict: Survival, value: float | None) -> KitReport:
    findings = tuple(
        Finding(
            experiment=experiment.key,
            title=experiment.title,
            verdict=verdict,
            figure=KitFigure(name=experiment.figure, value=value, unit=experiment.unit),
            sentence=SENTENCE,
            memory=MemoryUse(before_mib=10.0, peak_mib=25.0),
        )
        for experiment in EXPERIMENTS
    )
    return KitReport(
        name=name,
        target="127.0.0.1:1883",
        version="5.0",
        clients=1_000,
        made_at="today",
        made_by="a test",
        findings=findings,
    )


REPORTS = [
    report("good & fast", Survival.SURVIVED, 0.4),
    report("mediocre", Survival.STRUGGLED, 12.5),
    report("bad", Survival.FAILED, None),
    report("nobody-knows", Survival.UNCLEAR, 1234.0),
]


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.skipif(MOSQUITTO is None, reason="no mosquitto here")
def test_mosquitto_is_tried_and_the_report_can_be_compared(tmp_path: Path) -> None:
    path, html = tmp_path / "a.json", tmp_path / "a.html"
    with mosquitto(tmp_path) as broker:
        words = ["--clients", "20", "--only", "connect-storm,wide-fan-out", "--name", "mosquitto"]
        done = storm(
            *("--kit", f"127.0.0.1:{broker.port}", *words, "--pid", str(broker.pid)),
            *("--json", str(path), "--html", str(html)),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    made = KitReport.read(path)
    assert len(made.findings) == 2
    good = {Survival.SURVIVED, Survival.STRUGGLED}  # On a busy machine Mosquitto may be slow.
    assert {f.verdict for f in made.findings} <= good
    assert made.findings[0].values["connected"] == 20
    assert made.findings[1].values["received"] == made.findings[1].values["expected"]
    assert all(f.memory is not None and f.memory.before_mib > 0 for f in made.findings)
    assert "mosquitto" in html.read_text()
    both = tmp_path / "both.html"
    compared = storm("--compare", str(path), str(path), "--html", str(both))
    assert compared.returncode == 0, compared.stderr
    assert both.read_text().count("<strong>mosquitto</strong>") == 2


@pytest.mark.slow
def test_json_is_all_that_stdout_has(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        address = f"{broker.host}:{broker.port}"
        words = ["--clients", "10", "--only", "connect-storm", "--json", "-"]
        done = storm("--kit", address, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"] == address
    assert "Connect storm: " in done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--kit", "127.0.0.1:1"], "no broker listens on 127.0.0.1:1"),
        (["--kit", "127.0.0.1:1", "connect"], "one broker"),
        (["--kit", "127.0.0.1:1", "--only", "restart"], "needs --restart-command COMMAND"),
        (["--kit", "127.0.0.1:1", "--only", "tornado"], "known experiments are connect-storm"),
        (["--kit", "127.0.0.1:1", "--pid", "99999999"], "--pid 99999999: there is no such process"),
        (["--compare", "/there/is/none.json"], "No such file"),
        (["--compare", __file__], "flowguard storm --kit"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_done_is_said_at_once(words: list[str], hint: str) -> None:
    code, _, said = flowguard("storm", *words)
    assert code == 2
    assert hint in re.sub(r"[\s│]+", " ", said)
    assert "Traceback" not in said


def test_what_a_report_says_is_shown_as_it_is() -> None:
    console = Console(width=100, record=True, file=StringIO())
    show_report(REPORTS[0].model_copy(update={"name": "[red]x[/nothing]"}), console)
    assert "[red]x[/nothing] at 127.0.0.1:1883" in console.export_text()


def test_the_page_stands_alone_and_escapes_what_others_say() -> None:
    html = page(REPORTS)
    assert "good &amp; fast" in html
    assert "&lt;by peer&gt;" in html
    assert not re.search(r"<script|src=|@import|url\(|https?:", html)


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_is_readable_narrow_and_wide_light_and_dark(tmp_path: Path) -> None:
    path = tmp_path / "board.html"
    path.write_text(page(REPORTS))
    with open_page(tmp_path / "profile") as tab:
        for width in (390, 1280):
            for scheme in ("light", "dark"):
                feature = {"name": "prefers-color-scheme", "value": scheme}
                tab.call("Emulation.setEmulatedMedia", features=[feature])
                tab.open(path, width)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                assert min(tab.evaluate(CONTRASTS)) >= 4.5
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
        assert {address.partition(":")[0] for address in tab.requests} == {"file"}
        assert not tab.errors


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_is_fit_for_keyboards_and_screen_readers(tmp_path: Path) -> None:
    path = tmp_path / "board.html"
    path.write_text(page(REPORTS))
    with open_page(tmp_path / "profile") as tab:
        tab.open(path, 390)
        for kind in ("keyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab")
        assert tab.evaluate("document.activeElement.textContent") == "Skip to the overview"
        tab.call("Accessibility.enable")
        nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in nodes if not node.get("ignored")]
    tables = len(EXPERIMENTS) + 1
    assert roles.count("table") == tables  # Laid out as cards, they are tables still.
    assert roles.count("rowheader") == tables * len(REPORTS)
    assert roles.count("heading") == 1 + tables + 1
    assert {"main", "columnheader", "cell"} <= set(roles)

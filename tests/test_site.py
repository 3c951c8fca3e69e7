"""`make docs`: the pages as a site; a link that leads nowhere fails it."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import open_page
from tests.support.patience import HANG_S

ROOT = Path(__file__).parents[1]
PARTS = (
    "docs",
    "mkdocs.yml",
    "benchmarks/results",
    "scripts/site.py",
    *(path.name for path in ROOT.glob("*.md")),
)

PHONE_WIDTH = 390

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="no MkDocs: make docs"),
]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of all that the site is made of."""
    for name in PARTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    return tmp_path


def build(folder: Path) -> tuple[int, str]:
    """Exit code of MkDocs, and what it said; with --quiet it would not see its own warnings."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=folder,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_site_is_built_without_a_warning_and_has_every_page(sources: Path) -> None:
    code, said = build(sources)
    assert code == 0, said
    assert "WARNING" not in said
    folder = sources / "docs"
    pages = {path.relative_to(folder).with_suffix(".html") for path in folder.rglob("*.md")}
    assert pages
    assert all((sources / "site" / page).exists() for page in pages)
    assert (sources / "site" / "index.html").exists()
    assert (sources / "site" / "benchmarks" / "results" / "brokers.html").exists()


@pytest.mark.browser
def test_every_page_fits_a_phone_and_asks_no_other_server(sources: Path) -> None:
    """Tables and code scroll inside their boxes, so no page is wider than the screen."""
    code, said = build(sources)
    assert code == 0, said
    wide = []
    with open_page(sources / "chromium") as page:
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=PHONE_WIDTH,
            height=900,
            deviceScaleFactor=1,
            mobile=True,
        )
        for path in sorted((sources / "site").rglob("*.html")):
            page.call("Page.navigate", url=path.resolve().as_uri())
            page.wait_for("document.readyState === 'complete'")
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > PHONE_WIDTH:
                wide.append(f"{path.name}: {width} pixels")
        asked = {address.partition(":")[0] for address in page.requests}
    assert not wide, "\n".join(wide)
    assert asked <= {"file", "data", "blob"}
    assert not page.errors


def test_a_link_that_leads_nowhere_fails_it(sources: Path) -> None:
    with (sources / "docs" / "explain" / "limits.md").open("a") as page:
        page.write("\n[x](nowhere.md) [y](../operate/operations.md#no-such-place)\n")
    code, said = build(sources)
    assert code == 1
    warnings = [line for line in said.splitlines() if line.startswith("WARNING")]
    for link in ("nowhere.md", "#no-such-place"):
        assert any("limits.md" in line and link in line for line in warnings), said

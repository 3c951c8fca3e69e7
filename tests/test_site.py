"""`make docs`: the pages as a site; a link that leads nowhere fails it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import Page, open_page
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
WHOLE = ("404.html", "index.html", "benchmarks/results/brokers.html")
"""Pages that the browser opens. Of the others it shows the article, which is much cheaper."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="no MkDocs: make docs"),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all that the site is made of."""
    folder = tmp_path_factory.mktemp("sources")
    for name in PARTS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(sources: Path) -> Path:
    """The folder with the sources and the site."""
    code, said = build(sources)
    assert code == 0, said
    assert "WARNING" not in said
    return sources


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


def test_the_site_is_built_without_a_warning_and_has_every_page(built: Path) -> None:
    folder = built / "docs"
    pages = {path.relative_to(folder).with_suffix(".html") for path in folder.rglob("*.md")}
    assert pages
    assert all((built / "site" / page).exists() for page in pages)
    assert (built / "site" / "index.html").exists()
    assert (built / "site" / "benchmarks" / "results" / "brokers.html").exists()


def article_of(path: Path) -> str:
    """Return what a page has of its own: all else is the same on each page."""
    html = path.read_text()
    return html[html.index("<article") : html.index("</article>")]


def show_article(page: Page, path: Path) -> None:
    """Put the article of another page into the open one."""
    html, base = json.dumps(article_of(path)), json.dumps(path.resolve().as_uri())
    page.evaluate(
        f"(() => {{ document.querySelector('base').href = {base};"
        f" document.querySelector('article').outerHTML = {html};"
        " return Promise.all([...document.images].map((one) => one.decode())); })()"
    )


@pytest.mark.browser
def test_every_page_fits_a_phone_and_asks_no_other_server(built: Path, tmp_path: Path) -> None:
    """Tables and code scroll inside their boxes, so no page is wider than the screen."""
    wide = []
    site = built / "site"
    pages = sorted(site.rglob("*.html"))
    whole = [site / name for name in WHOLE]
    with open_page(tmp_path / "chromium") as page:
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=PHONE_WIDTH,
            height=900,
            deviceScaleFactor=1,
            mobile=True,
        )
        for path in [*whole, *(path for path in pages if path not in whole)]:
            if path in whole:
                page.call("Page.navigate", url=path.resolve().as_uri())
                page.wait_for("document.readyState === 'complete'")
                page.evaluate("document.head.prepend(document.createElement('base'))")
            else:
                show_article(page, path)
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > PHONE_WIDTH:
                wide.append(f"{path.name}: {width} pixels")
        asked = {address.partition(":")[0] for address in page.requests}
    assert len(pages) > 100
    assert not wide, "\n".join(wide)
    assert asked <= {"file", "data", "blob"}
    # Page 404 has addresses from the root of a site, because it stands for a page in any folder.
    assert not [error for error in page.errors if '"file:///assets/' not in error]


def test_a_link_that_leads_nowhere_fails_it(sources: Path) -> None:
    with (sources / "docs" / "explain" / "limits.md").open("a") as page:
        page.write("\n[x](nowhere.md) [y](../operate/operations.md#no-such-place)\n")
    code, said = build(sources)
    assert code == 1
    warnings = [line for line in said.splitlines() if line.startswith("WARNING")]
    for link in ("nowhere.md", "#no-such-place"):
        assert any("limits.md" in line and link in line for line in warnings), said

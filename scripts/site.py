"""A hook of MkDocs that adds pages outside docs/ to the site.

README.md is the first page, and the other pages of the root are beside it. A link to a page outside
(`../benchmarks/results/x.md`) leads to a copy of it. A link to any other file is left as its text.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FIRST = "index.md"
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]*)(#[^)]*)?\)")
IN_DOCS = re.compile(r"\]\(docs/([\w./-]+\.(?:md|png))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and those that are linked from docs/."""
    for path in ROOT.glob("*.md"):
        text = IN_DOCS.sub(r"](\1", path.read_text(encoding="utf-8"))
        name = FIRST if path.name == "README.md" else path.name
        files.append(File.generated(config, name, content=text))
    linked: set[str] = set()
    for path in (ROOT / "docs").glob("*.md"):
        linked |= {found[2] for found in OUTSIDE.finditer(path.read_text(encoding="utf-8"))}
    for name in sorted(linked):
        path = ROOT / name
        if path.suffix == ".md" and path.parent != ROOT and path.is_file():
            text = path.read_text(encoding="utf-8")
            file = File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(file)
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.svg")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to what `on_files` has added."""
    if "/" in page.file.src_uri:
        return markdown  # A page from outside: its links are among its neighbours.

    def inside(found: re.Match[str]) -> str:
        text, name, anchor = found[1], found[2], found[3] or ""
        name = FIRST if name == "README.md" else name
        return f"[{text}]({name}{anchor})" if files.get_file_from_path(name) else text

    return OUTSIDE.sub(inside, markdown)

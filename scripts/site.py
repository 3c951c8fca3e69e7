"""A hook of MkDocs that adds pages outside docs/ to the site.

README.md is the first page, and the other pages of the root are beside it. A link from docs/ to
a page outside leads to a copy of it. A link to any other file is left as its text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FIRST = "index.md"
OUTSIDE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")
IN_DOCS = re.compile(r"\]\(docs/([\w./-]+\.(?:md|png))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and those that are linked from docs/."""
    for path in ROOT.glob("*.md"):
        text = IN_DOCS.sub(r"](\1", path.read_text(encoding="utf-8"))
        name = FIRST if path.name == "README.md" else path.name
        files.append(File.generated(config, name, content=text))
    docs = ROOT / "docs"
    linked: set[str] = set()
    for path in docs.rglob("*.md"):
        page = path.relative_to(docs).as_posix()
        text = path.read_text(encoding="utf-8")
        linked |= {target_of(page, found[2]) for found in OUTSIDE.finditer(text)}
    for name in sorted(linked):
        path = ROOT / name
        is_added = docs in path.parents or path.parent == ROOT
        if path.suffix == ".md" and path.is_file() and not is_added:
            text = path.read_text(encoding="utf-8")
            file = File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(file)
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.svg")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def target_of(page: str, link: str) -> str:
    """Return the path in the repository that a link of a page of docs/ leads to."""
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to what `on_files` has added."""
    here = page.file.src_uri
    if page.file.generated_by is not None:
        return markdown  # A page from outside: its links are among its neighbours.

    def inside(found: re.Match[str]) -> str:
        name = target_of(here, found[2])
        if name.startswith("docs/"):
            return found[0]
        name = FIRST if name == "README.md" else name
        if files.get_file_from_path(name) is None:
            return found[1]
        link = posixpath.relpath(name, posixpath.dirname(here) or ".")
        return f"[{found[1]}]({link}{found[3] or ''})"

    return OUTSIDE.sub(inside, markdown)

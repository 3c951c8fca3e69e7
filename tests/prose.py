"""Count sentences that are hard to read: `python -m tests.prose [--list] [--write]`.

The patterns find ten habits, not every bad sentence. Open source projects that are known for their
prose have 0 to 3 % of such sentences. CONTRIBUTING.md, "Write", has the rules.
"""

import argparse
import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = (
    "src",
    "broker_adapter",
    "simulations",
    "spark_analysis",
    "spark_sweep",
    "loadgen",
    "store_tools",
    "benchmarks",
)
RECORD: Final = ROOT / "tests" / "prose.json"
"""Marked sentences by kind and file; a file may only have fewer."""
CODE: Final = frozenset({"docstring", "attribute", "comment"})
WORDS_MIN: Final = 3
MESSAGE_WORDS_MIN: Final = 4

_BEFORE_WHO = (
    "of|to|by|is|as|or|if|for|and|but|all|say|ask|not|nor|from|with|that|than|tell|says|asks|also"
    "|when|tells|where|those|knows|wants|shows|after"
)
_AFTER_WHERE = (
    "it|there|that|this|one|they|a|an|the|no|its|all|who|what|some|nobody|somebody|several|nothing"
    "|rules|clients|many|these|those|time|memory|messages"
)
HABITS: Final = {
    "begins with a relative": r"^(Who|What|Whose|Whom|Whoever|Whatever|Which)\b(?!.*\?$)",
    "'who' without a noun": (
        rf"(?:^|[,;:(] | (?:{_BEFORE_WHO}) )(?:who|whoever|whom|whose)\b(?=[^?]*$)"
    ),
    "'where' for 'if' or 'when'": rf"\b[Ww]here (?:{_AFTER_WHERE})\b",
    "number without a noun": (
        r"^So (?:long|many|much|far|few)\b|\bso (?:many|much|long)\b(?! (?:as|that))"
    ),
    "no subject": r"^(?:Of|By which|Since when|Until when|The same|Theirs?|Its|Up to here|None)\b",
    "'somebody' for a thing": r"(?i)\b(?:somebody|nobody|everybody|anybody)\b",
    "private metaphor": (
        r"(?i)\b(?:house|rooms?|doors?|storeys?|floors?|furniture|doorway|guest|neighbour)\b"
    ),
    "'away', 'here', 'anew'": (
        r"\b(?:is|are|was|were|been|be) (?:away|here|there|over|gone|anew|theirs|ours|another's)\b"
        r"|\banew\b"
    ),
    "'as many as may'": r"\bas (?:many|much|long|few)[^.]{0,40} as may\b",
    "things that speak": (
        r"\b(?:is|are|was|were) told\b|\bhears?\b"
        r"|\bsays? (?:so|nothing|what|why|that|which|how|where)\b"
        r"|\btells? (?:nobody|who|what|apart|why|how)\b"
    ),
}
_COMPILED = {name: re.compile(pattern) for name, pattern in HABITS.items()}


@dataclass(frozen=True)
class Sentence:
    file: str
    line: int
    kind: str
    """docstring, attribute, comment, message or docs."""
    text: str

    @property
    def habit(self) -> str | None:
        """The first habit that it shows, or None."""
        return next((name for name, found in _COMPILED.items() if found.search(self.text)), None)

    @property
    def package(self) -> str:
        parts = Path(self.file).parts
        return "/".join(parts[:3]) if parts[0] == "src" and len(parts) > 3 else parts[0]


def words_of(text: str) -> list[str]:
    return re.findall(r"[A-Za-z']{2,}", text)


def split(text: str) -> list[str]:
    """Return the sentences of a paragraph."""
    joined = re.sub(r"\s+", " ", text.strip())
    parts = re.split(r"(?<=[.;:!?])\s+(?=[A-Z`\[(0-9])", joined)
    return [part for part in parts if len(words_of(part)) >= WORDS_MIN]


def of_python(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of everything in a file that people read."""
    source = path.read_text()
    tree = ast.parse(source)
    documentation = set()
    for part, kind in _documentation(tree):
        documentation.add(id(part))
        yield part.lineno, kind, str(part.value)
    for node in ast.walk(tree):
        text = "" if id(node) in documentation else _literal(node)
        if len(words_of(text)) >= MESSAGE_WORDS_MIN:
            yield getattr(node, "lineno", 0), "message", text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], "comment", token.string.lstrip("# ")


def _documentation(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    """Yield the strings that stand alone in a body: docstrings and those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for index, part in enumerate(node.body):
                value = part.value if isinstance(part, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value, "attribute" if index else "docstring"


def _literal(node: ast.AST) -> str:
    """Return the text of a string literal, or "" of any other node."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        return "".join(map(str, parts))
    return ""


def of_markdown(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of each paragraph, list item and longer table cell."""
    text = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.S)
    paragraph, start = "", 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        begins = not line.strip() or line.startswith(("|", "#"))
        if begins or line.lstrip().startswith(("- ", "* ")):
            if paragraph:
                yield start, "docs", paragraph
            paragraph, start = ("" if begins else line), number
            for cell in line.strip("|").split("|") if line.startswith("|") else ():
                if len(cell.split()) >= MESSAGE_WORDS_MIN:
                    yield number, "docs", cell
        else:
            paragraph, start = f"{paragraph} {line.strip()}", start if paragraph else number


def sentences() -> Iterator[Sentence]:
    """Yield every sentence of the packages, the pages and the files in the root."""
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from _of(path, of_python(path))
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))):
        yield from _of(path, of_markdown(path))


def _of(path: Path, found: Iterator[tuple[int, str, str]]) -> Iterator[Sentence]:
    file = path.relative_to(ROOT).as_posix()
    for line, kind, text in found:
        for sentence in split(text):
            yield Sentence(file, line, kind, sentence)


def marked_by_file(of: Iterable[Sentence]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return sentences and marked ones by file and kind; docstrings and comments are "code"."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for each in of:
        key = each.file, "code" if each.kind in CODE else each.kind
        total, marked = counts.get(key, (0, 0))
        counts[key] = total + 1, marked + (each.habit is not None)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print each marked sentence")
    parser.add_argument("--write", action="store_true", help="record the counts of today")
    arguments = parser.parse_args()
    shares: dict[str, list[bool]] = {}
    for each in sentences():
        shares.setdefault(each.kind, []).append(each.habit is not None)
        if arguments.list and each.habit:
            print(f"{each.file}:{each.line}: [{each.habit}] {each.text[:200]}")
    for kind, marks in sorted(shares.items()):
        print(f"{kind:10} {len(marks):6} sentences, {100 * sum(marks) / len(marks):4.1f} % marked")
    if arguments.write:
        counts = marked_by_file(sentences())
        record: dict[str, dict[str, int]] = {}
        for (file, kind), (_, marked) in counts.items():
            if marked:
                record.setdefault(kind, {})[file] = marked
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

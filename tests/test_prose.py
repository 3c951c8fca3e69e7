"""A stranger understands each sentence at the first reading: CONTRIBUTING.md, "Write"."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from tests import prose
from tests.prose import Sentence

SHARE_MAX = {"message": 0.02, "docs": 0.02}
"""Share of marked sentences in text that users read. It may only be lowered."""
NEW_FILE_SHARE_MAX = 0.05
"""Share of marked sentences in the code of a file without a record; texts for users have none."""
DOCS_WORDS_MAX = 25.0
"""Mean words of a sentence in the documentation."""


@cache
def found() -> list[Sentence]:
    return list(prose.sentences())


@pytest.fixture(scope="module", autouse=True)
def _forget_sentences() -> Iterator[None]:
    yield
    found.cache_clear()


@pytest.mark.parametrize("kind", SHARE_MAX)
def test_text_for_users_is_plain(kind: str) -> None:
    of_kind = [each for each in found() if each.kind == kind]
    marked = [each for each in of_kind if each.habit]
    packages = [
        f"{package}: {len(list(group))}"
        for package, group in groupby(marked, lambda each: each.package)
    ]
    lines = [f"{each.file}:{each.line}: [{each.habit}] {each.text}" for each in marked]
    assert len(marked) <= SHARE_MAX[kind] * len(of_kind), "\n".join([*packages, *lines])


def test_no_file_gets_more_sentences_that_are_hard_to_read() -> None:
    """A new file begins below its own limit; one with a record may only get better."""
    record = json.loads(prose.RECORD.read_text())
    worse = []
    for (file, kind), (total, marked) in prose.marked_by_file(found()).items():
        free = int(NEW_FILE_SHARE_MAX * total) if kind == "code" else 0
        allowed = max(record.get(kind, {}).get(file, 0), free)
        if marked > allowed:
            worse.append(f"{file}: {marked} marked sentences ({kind}), at most {allowed}")
    assert not worse, "\n".join(["python -m tests.prose --list shows them", *worse])


def test_sentences_of_the_documentation_are_short() -> None:
    lengths = [len(each.text.split()) for each in found() if each.kind == "docs"]
    assert sum(lengths) <= DOCS_WORDS_MAX * len(lengths)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("message", 'MESSAGE = "nobody is told whose law protects it"\n'),
        ("docstring", '"""Whose law protects: nobody is told where there is none."""\n'),
        ("attribute", 'LIMIT = 1\n"""So many lead to them, as long as there is room."""\n'),
        ("comment", "# Who is in may do everything.\n"),
        ("docs", "Beyond this limit nobody is told why.\n"),
    ],
)
def test_a_bad_sentence_is_marked(kind: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / ("page.md" if kind == "docs" else "module.py")
    path.write_text(text)
    read = prose.of_markdown if kind == "docs" else prose.of_python
    seen = [
        (of_kind, part) for _, of_kind, paragraph in read(path) for part in prose.split(paragraph)
    ]
    assert [of_kind for of_kind, _ in seen] == [kind]
    assert all(Sentence(path.name, 1, kind, part).habit for _, part in seen)


@pytest.mark.parametrize(
    ("subject", "is_good"),
    [
        ("tls: bound what a handshake holds", True),
        ("stores/redis: keep the epoch", True),
        ("Revert an earlier commit", True),
        ("Bound what a handshake holds", False),
        ("tls: Bound what a handshake holds", False),
        ("tls: bound what a handshake holds.", False),
        (f"tls: {'bound ' * 12}", False),
    ],
)
def test_commit_subjects_are_checked(subject: str, is_good: bool, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nThe reason.\n")
    script = prose.ROOT / "scripts" / "check-commit-message.sh"
    done = subprocess.run([script, message], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is is_good, done.stderr
    assert bool(done.stderr) is not is_good


def test_the_hooks_of_pre_commit_can_be_read() -> None:
    """Otherwise pre-commit fails each commit, and installs no check of the message."""
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"],
        cwd=prose.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout

"""The pages of docs/reference are those that the code of this version makes."""

import importlib.util

import pytest

from tests.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_page_of_the_reference_is_up_to_date(name: str) -> None:
    if name == "command-line" and importlib.util.find_spec("pyspark") is None:
        pytest.skip("no Spark, so its commands are unknown")
    assert (FOLDER / f"{name}.md").read_text() == PAGES[name](), "run: python -m tests.reference"


def test_reference_has_no_other_page() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(PAGES)

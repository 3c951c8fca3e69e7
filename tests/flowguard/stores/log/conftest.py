"""Topics that differ little vary: with the usual bounds tests would need thousands of them."""

from collections.abc import Iterator

import pytest

from flowguard.stores.log import structure


@pytest.fixture(autouse=True, scope="package")
def few_children() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "CHILDREN_MAX", 1)
        patch.setattr(structure, "ROOT_CHILDREN_MAX", 2)
        yield

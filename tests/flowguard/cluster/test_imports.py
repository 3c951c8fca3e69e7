"""The package may be imported before any other."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["flowguard.cluster", "flowguard.flow", "flowguard.node.node"])
def test_a_package_can_be_the_first_that_a_process_imports(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, timeout=60)

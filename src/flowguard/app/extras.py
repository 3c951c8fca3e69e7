"""Extras of this package, and how to install them."""

import sys
from typing import Final

DISTRIBUTION: Final = "flowguard-mqtt"
"""The name that pip installs: `flowguard` is another project in the package registry."""


def needs_extra(extra: str) -> str:
    """Return the command that installs the packages of an extra."""
    return f"needs: {sys.executable} -m pip install '{DISTRIBUTION}[{extra}]'"

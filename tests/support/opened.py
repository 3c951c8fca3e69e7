"""Connections that stores of a test have opened, closed or not."""

from typing import Protocol


class Closing(Protocol):
    def close(self) -> None: ...


OPENED: list[Closing] = []
"""The conftest of tests/flowguard closes what a test did not."""

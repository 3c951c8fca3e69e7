"""The command line: one file per command, all of them thin."""

from flowguard.cli.app import app

__all__ = ["app"]

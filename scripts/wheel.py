"""What hatch asks while it builds a wheel: which files the compiled rooms add.

Where there is a C compiler the wheel is for this platform and has them; elsewhere, and with
FLOWGUARD_PURE=1, it is for any platform and in pure Python. `pip install` of a checkout or of a
source archive comes through here.
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

import compile as rooms


class CompiledRooms(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel; an editable install has none in it."""

    def dependencies(self) -> list[str]:
        """What compiling needs: mypyc, and all whose types it looks up."""
        if self._why_pure() is not None:
            return []
        project = self.metadata.core
        return [*project.dependencies, *project.optional_dependencies["compile"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the rooms where they are not up to date, and name them to the builder."""
        if version == "editable":
            return
        if (why := self._why_pure()) is not None:
            self.app.display_warning(f"a wheel in pure Python, at half the speed: {why}")
            return
        folder = rooms.up_to_date()
        for path in folder.rglob("*.so"):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _why_pure(self) -> str | None:
        return "FLOWGUARD_PURE is set" if os.environ.get("FLOWGUARD_PURE") else rooms.missing()

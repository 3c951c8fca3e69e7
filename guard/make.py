"""`python guard/make.py FOLDER`: write the project of the distribution flowguard-guard to a folder.

The distribution has its own package, `flowguard_guard`, made of the modules that the guard imports.
The imports of these modules are renamed. So no file belongs to two distributions, and either can be
removed alone.
The package has its own `section`, because pydantic's core alone takes most of 5 MB.
"""

import ast
import re
import shutil
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PLACES: Final = {"flowguard": ROOT / "src" / "flowguard", "broker_adapter": ROOT / "broker_adapter"}
PACKAGE: Final = "flowguard_guard"
FIRST: Final = ("host_guard", "waits", "asyncio_guard", "trio_guard", "asgi", "metrics")
"""The modules of `broker_adapter` that the package offers."""
OWN: Final = ("flowguard.config", "flowguard.section", "flowguard", "broker_adapter")
"""Modules that are not copied."""
SETTINGS: Final = ("KIB", "MIB", "PolicyName", "FlowSettings")
"""The part of `flowguard.config` that the guard needs."""
IMPORTED: Final = re.compile(r"^(\s*(?:from|import) )(flowguard|broker_adapter)\b", re.MULTILINE)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / PACKAGE
    for name, path in sources().items():
        to = package / path.relative_to(PLACES[name.partition(".")[0]])
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(IMPORTED.sub(rf"\1{PACKAGE}", path.read_text()))
    (package / "config.py").write_text(config())
    (package / "version.py").write_text(version())
    (package / "py.typed").touch()
    for name in ("__init__.py", "section.py"):
        shutil.copy(ROOT / "guard" / name, package)
    for path in (ROOT / "guard" / "pyproject.toml", ROOT / "guard" / "README.md", ROOT / "LICENSE"):
        shutil.copy(path, folder)


def sources() -> dict[str, Path]:
    """Return the modules that the guard imports, directly or not, with their files."""
    found: dict[str, Path] = {}
    open_names = [f"broker_adapter.{name}" for name in FIRST]
    while open_names:
        name = open_names.pop()
        if name in OWN or name in found or (path := _file(name)) is None:
            continue
        found[name] = path
        open_names.append(name.rpartition(".")[0])  # The package of a module is imported before it.
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                open_names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            elif isinstance(node, ast.Import):
                open_names += [each.name for each in node.names]
    return found


def _file(name: str) -> Path | None:
    """Return the file of a module of ours, or None."""
    top, *rest = name.split(".")
    if top not in PLACES:
        return None
    path = PLACES[top].joinpath(*rest)
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in candidates if each.is_file()), None)


def config() -> str:
    """Return the source of the settings of a guard, from that of all settings."""
    source = (PLACES["flowguard"] / "config.py").read_text()
    parts = [
        '"""The settings of a guard."""\n',
        "from typing import Literal\n",
        f"from {PACKAGE}.section import Field, Section\n",
    ]
    for node in ast.parse(source).body:
        names = [each.id for each in getattr(node, "targets", []) if isinstance(each, ast.Name)]
        if {*names, getattr(node, "name", "")} & {*SETTINGS}:
            text = ast.get_source_segment(source, node)
            assert text is not None
            parts.append(text + "\n")
    return "\n".join(parts)


def version() -> str:
    text = (PLACES["flowguard"] / "__init__.py").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("__version__")]
    return f'"""The version of flowguard that this is made from."""\n\n{line}\n'


if __name__ == "__main__":
    main(Path(sys.argv[1]))

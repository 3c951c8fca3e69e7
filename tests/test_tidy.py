"""The house rules, as tests.

Each failure names the file, the line and the rule. The answer is to tidy up; where that must wait,
LONG_FUNCTIONS is the one place to say so, and its numbers only ever go down.
"""

import ast
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "flowguard"
PACKAGES = [
    "src/flowguard",
    "broker_adapter",
    "loadgen",
    "simulations",
    "spark_analysis",
    "spark_sweep",
    "store_tools",
]

APPLICATIONS = SRC / "node" / "applications"

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
GLOSSARY_LINES_MAX = 60

# "src/flowguard/room/file.py:Class.function": lines it may have until it has been split.
LONG_FUNCTIONS: dict[str, int] = {}

FOLDER_FILES_MAX = 15

# "package/room": files of its largest import circle; the numbers only ever go down.
CIRCLE_FILES = {
    "simulations": 4,
}

# An object has parts instead of bases. The numbers only ever go down: members of the largest class
# with what it inherits, classes with more than 40, classes that inherit from one of the project,
# and of these, classes whose base is no interface, no error and no layout (`is_part`).
MEMBERS = {"members": 61, "large": 22, "heirs": 110, "heirs_of_parts": 31}

CONSTRUCTOR_PARAMETERS_MAX = 7
# Records that a store encodes have a parameter for each field; the numbers only ever go down.
LONG_CONSTRUCTORS = {"WindowRecord": 10}

# Beginnings of a docstring that make a riddle of it: its subject is missing, or elsewhere.
FRAGMENT = re.compile(
    r"(Whose|Whom?|Whoever|What|Whatever|Which|Of|So|The same|Those|Nor|Also|But|And|Or)\b"
    r"(?![^.:;]*\?)"  # A question is a whole sentence.
)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """Parsed once for all rules, which one process looks at (TOGETHER in conftest.py)."""
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """A million nodes would be in the way of the collector for all tests that follow."""
    yield
    tree_of.cache_clear()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def report(findings: list[str]) -> None:
    assert not findings, "\n".join(["", *findings])


def functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Every function below node, with its class: qualified name and lines."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            assert child.end_lineno is not None
            yield f"{prefix}{child.name}", child.end_lineno - child.lineno + 1
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def tracked_files() -> list[Path]:
    """The text files under version control."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()]


def test_no_file_is_too_long() -> None:
    findings = []
    for path in python_files(*PACKAGES, "benchmarks", "tests"):
        lines = len(path.read_text().splitlines())
        if lines > FILE_LINES_MAX:
            findings.append(f"{name_of(path)}: {lines} lines, at most {FILE_LINES_MAX}: split it")
    report(findings)


def test_no_function_is_too_long() -> None:
    findings = []
    waiting = dict(LONG_FUNCTIONS)
    for path in python_files(*PACKAGES):
        for function, lines in functions(tree_of(path), f"{name_of(path)}:"):
            allowed = waiting.pop(function, FUNCTION_LINES_MAX)
            if lines > allowed:
                findings.append(f"{function}: {lines} lines, at most {allowed}")
            elif FUNCTION_LINES_MAX < allowed != lines:
                findings.append(f"{function}: only {lines} lines now: lower LONG_FUNCTIONS")
            elif allowed < FUNCTION_LINES_MAX:
                findings.append(f"{function}: needs no entry in LONG_FUNCTIONS")
    findings += [f"{function}: is in LONG_FUNCTIONS and nowhere else" for function in waiting]
    report(findings)


def test_no_file_outside_its_package_names_what_applications_have_apart() -> None:
    """Other packages use `ApplicationLane`: a null object if there is one store."""
    findings = []
    for path in python_files("src"):
        others = [] if APPLICATIONS in path.parents else ast.walk(tree_of(path))
        for node in others:
            names = {str(getattr(node, field, "")) for field in ("id", "attr", "arg", "name")}
            if any(name.strip("_").lower() == "apart" for name in names):
                findings.append(f"{name_of(path)}:{getattr(node, 'lineno', 1)}: apart")
    report(findings)


def test_public_class_names_are_unique() -> None:
    """A name in a traceback, a log or a review is understood without its module."""
    places: dict[str, list[str]] = {}
    for path in python_files(*PACKAGES):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    report([f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1])


def own_members(node: ast.ClassDef) -> set[str]:
    """Names of methods, class attributes and attributes of `self`, without special methods.

    The values of an enum are no members: each of them is understood alone.
    """
    found = set[str]()
    # Values of an enum and columns of a table's row are data.
    is_data = any(ast.unparse(base).endswith(("Enum", "NamedTuple")) for base in node.bases)
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(each.name)
        elif is_data:
            continue
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found.add(each.target.id)
        elif isinstance(each, ast.Assign):
            found |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            found |= {each.attr} if ast.unparse(each.value) == "self" else set()
    return {name for name in found if not name.startswith("__")}


def test_no_class_grows_by_inheritance() -> None:
    """A reader of a class has to know all members, also those in the files of its bases."""
    classes: dict[str, tuple[set[str], list[str]]] = {}
    nodes: dict[str, ast.ClassDef] = {}
    for path in python_files(*PACKAGES):
        tree = tree_of(path)
        foreign = foreign_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(base).split("[")[0] for base in node.bases]
                own = [own_name(base, path) for base in names if base not in foreign]
                name = own_name(node.name, path)
                classes[name], nodes[name] = (own_members(node), own), node
    heirs = [name for name, (_, bases) in classes.items() if any(b in classes for b in bases)]
    parts = {name for name in classes if is_part(name, classes, nodes)}
    of_parts = [name for name in heirs if not parts.isdisjoint(classes[name][1])]
    members = {name: len(all_members(name, classes)) for name in classes}
    large = [name for name in members if members[name] > 40]
    largest = max(members, key=lambda name: members[name])
    found = {
        "members": members[largest],
        "large": len(large),
        "heirs": len(heirs),
        "heirs_of_parts": len(of_parts),
    }
    assert found == MEMBERS, (found, largest, sorted(large), sorted(of_parts), sorted(heirs))


def foreign_names(tree: ast.Module) -> set[str]:
    """Names that a file imports from other projects."""
    projects = {package.rsplit("/", 1)[-1] for package in PACKAGES}
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        if node.module.split(".")[0] not in projects
        for alias in node.names
    } - {"BaseModel", "Protocol"}


def own_name(name: str, path: Path) -> str:
    """A private name is another class in each file."""
    return f"{name_of(path)}:{name}" if name.startswith("_") else name


def is_part(
    name: str, classes: dict[str, tuple[set[str], list[str]]], nodes: dict[str, ast.ClassDef]
) -> bool:
    """Whether a class has attributes of its own, and is no protocol, no error and no layout."""
    node, bases = nodes[name], ancestors(name, classes)
    if name.endswith("Error") or not bases.isdisjoint({"BaseModel", "Protocol"}):
        return False
    return any(isinstance(each, ast.AnnAssign) for each in node.body) or any(
        isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and ast.unparse(each.value) == "self"
        for each in ast.walk(node)
    )


def ancestors(name: str, classes: dict[str, tuple[set[str], list[str]]]) -> set[str]:
    bases = classes[name][1] if name in classes else []
    return set(bases).union(*(ancestors(base, classes) for base in bases))


def test_no_constructor_has_too_many_parameters() -> None:
    """Dataclasses and the layouts of packets have a parameter for each field."""
    findings, waiting = [], dict(LONG_CONSTRUCTORS)
    for path in python_files(*PACKAGES):
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            if any(ast.unparse(each).startswith("dataclass") for each in node.decorator_list):
                continue
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    count = len(each.args.args) + len(each.args.kwonlyargs) - 1
                    allowed = waiting.pop(node.name, CONSTRUCTOR_PARAMETERS_MAX)
                    if count > allowed:
                        findings.append(f"{name_of(path)}:{each.lineno}: {count} parameters")
    report([*findings, *(f"{name}: lower LONG_CONSTRUCTORS" for name in waiting)])


def all_members(name: str, classes: dict[str, tuple[set[str], list[str]]]) -> set[str]:
    """Members of a class and of its bases in the project."""
    own, bases = classes.get(name, (set[str](), []))
    return own.union(*(all_members(base, classes) for base in bases))


def room_of(path: Path) -> str:
    """Return `src/flowguard/node`, or the package if it has no subpackages."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:3] if parts[0] == "src" and len(parts) > 3 else parts[:1])


def test_docstrings_are_sentences_or_noun_phrases() -> None:
    """ "A number that grows with every change", not "Of the changes": it is read alone."""
    findings = []
    for path in python_files(*PACKAGES):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if FRAGMENT.match(text):
                    line = getattr(node, "lineno", 1)
                    findings.append(f"{name_of(path)}:{line}: {text.splitlines()[0]}")
    report(findings)


def test_the_glossary_defines_what_exists() -> None:
    """The glossary defines `package/file.Class` in docs/explain/glossary.md, and it stays a
    page."""
    page = (ROOT / "docs" / "explain" / "glossary.md").read_text()
    assert len(page.splitlines()) <= GLOSSARY_LINES_MAX
    findings = []
    for file, name in re.findall(r"`([a-z_/]+)\.([A-Z]\w*)`", page):
        path = SRC / f"{file}.py"
        if not path.exists() or not re.search(rf"^class {name}\b", path.read_text(), re.MULTILINE):
            findings.append(f"docs/explain/glossary.md: there is no {name} in {file}")
    report(findings)


def test_nothing_prints() -> None:
    findings = []
    for path in python_files(*PACKAGES):
        for node in ast.walk(tree_of(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ):
                findings.append(f"{name_of(path)}:{node.lineno}: print; use a console, or the log")
    report(findings)


def test_every_open_end_has_an_issue() -> None:
    open_end = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
    findings = []
    for path in python_files(*PACKAGES, "benchmarks", "tests"):
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if open_end.search(line):
                findings.append(f"{name_of(path)}:{number}: write it as TODO(#issue), or do it")
    report(findings)


@pytest.mark.parametrize(
    ("prefix", "statements"), [("", "mqtt5.toml"), ("v3 ", "mqtt311.toml")], ids=["5.0", "3.1.1"]
)
def test_every_cited_statement_exists(prefix: str, statements: str) -> None:
    """`[MQTT-1.2.3-4]` cites MQTT 5.0, `[v3 MQTT-1.2.3-4]` MQTT 3.1.1."""
    path = ROOT / "tests" / "spec" / statements
    if not path.exists():
        pytest.skip(f"there is no {name_of(path)}")
    known = {statement["id"] for statement in tomllib.loads(path.read_text())["statement"]}
    # One pair of brackets may hold several statements: `[MQTT-3.3.4-9, MQTT-4.9.0-1]`.
    citation = re.compile(rf"\[{prefix}(MQTT-[^\]]*)\]")
    findings = []
    for source in python_files("src"):
        for number, line in enumerate(source.read_text().splitlines(), start=1):
            for cited in citation.findall(line):
                for statement in cited.split(","):
                    if statement.strip().removeprefix(prefix) not in known:
                        findings.append(f"{name_of(source)}:{number}: no {prefix}{statement}")
    report(findings)


def test_every_cited_page_exists_and_has_the_section() -> None:
    """`docs/page.md`, or `docs/page.md, "Section"`: a reader who looks there finds it."""
    citation = re.compile(r'((?:design|docs)/[\w/-]+\.md)(?:, "([^"]+)")?', re.IGNORECASE)
    findings = []
    for source in python_files(*PACKAGES, "benchmarks", "tests"):
        if source == Path(__file__).resolve():
            continue
        text = re.sub(r"\s*\n\s*(# )?", " ", source.read_text())
        for page, section in citation.findall(text):
            path = ROOT / page
            if not path.exists():
                findings.append(f"{name_of(source)}: there is no {page}")
            elif section and not re.search(
                rf"^#+ (?:\d[\d.]* )?{re.escape(section)}$", path.read_text(), re.MULTILINE
            ):
                findings.append(f"{name_of(source)}: {page} has no section {section!r}")
    report(findings)


def test_a_room_that_lists_its_files_lists_all_of_them() -> None:
    findings = []
    for init in (path for path in python_files(*PACKAGES) if path.name == "__init__.py"):
        listed = ast.get_docstring(tree_of(init)) or ""
        if "- `" in listed:
            files = {path.stem for path in init.parent.glob("*.py")} - {"__init__", "__main__"}
            findings += [
                f"{name_of(init)}: what is `{name}`?"
                for name in sorted(files)
                if f"`{name}`" not in listed
            ]
    report(findings)


def modules() -> dict[str, Path]:
    """Every module of the packages by the name of its import."""
    return {
        name_of(path).removeprefix("src/").removesuffix(".py").replace("/", "."): path
        for path in python_files(*PACKAGES)
        if path.stem != "__init__"
    }


def imports(files: dict[str, Path]) -> dict[str, set[str]]:
    """The modules of `files` that each of them imports, for types only included."""
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        found[name] = set()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                found[name] |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        found[name] &= set(files) - {name}
    return found


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Files of which each reaches all the others, and more than one."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        to_see, seen = [start], set[str]()
        while to_see:
            more = imports[to_see.pop()] - seen
            seen |= more
            to_see += more
        reached[start] = seen
    found = {frozenset(b for b in imports if b in reached[a] and a in reached[b]) for a in imports}
    return {circle for circle in found if len(circle) > 1}


def test_no_import_circle_of_a_room_grows() -> None:
    """Also under TYPE_CHECKING: a reader of one file of a circle has to read all."""
    findings = []
    files = modules()
    largest: dict[str, frozenset[str]] = {}
    for circle in sorted(circles(imports(files)), key=len):
        largest |= {room_of(files[name]): circle for name in circle}
    for room in sorted({*largest, *CIRCLE_FILES}):
        circle, allowed = largest.get(room, frozenset()), CIRCLE_FILES.get(room, 1)
        if len(circle) > allowed:
            findings.append(f"{room}: a circle of {', '.join(sorted(circle))}")
        elif len(circle) < allowed:
            findings.append(f"{room}: only {len(circle)} now: lower CIRCLE_FILES")
    report(findings)


def test_no_folder_has_too_many_files() -> None:
    """A folder is one topic; a reader finds a file by going down, not along a list."""
    folders = Counter(name_of(path.parent) for path in python_files(*PACKAGES))
    report(
        [
            f"{folder}: {files} files, at most {FOLDER_FILES_MAX}: sort them by topic"
            for folder, files in sorted(folders.items())
            if files > FOLDER_FILES_MAX
        ]
    )


def test_the_wheel_holds_the_packages_and_nothing_else() -> None:
    pyproject: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = {"custom": {"path": "scripts/wheel.py"}}
    """Adds extension modules: `tests/test_wheels.py` looks into the wheels."""
    targets = pyproject["tool"]["hatch"]["build"]["targets"]
    assert targets == {"wheel": {"packages": PACKAGES, "hooks": hook}}
    for package in PACKAGES:
        assert ast.get_docstring(tree_of(ROOT / package / "__init__.py"))


def test_no_python_file_lies_in_the_root() -> None:
    """An editable install puts the root on the path, so that it could be imported by accident."""
    report([name_of(path) for path in ROOT.glob("*.py")])


def test_no_file_knows_one_machine() -> None:
    """No folder or package registry of one machine is named; make gets them from its
    environment."""
    folder = re.compile(r"(?<![\w.$+#{}~-])/(home|Users|root|work)/\w")
    registries = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "npmjs" + ".com"]
    findings = []
    for path in tracked_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if folder.search(line):
                findings.append(f"{name_of(path)}:{number}: a folder of one machine")
            findings += [f"{name_of(path)}:{number}: {host}" for host in registries if host in line]
    report(findings)


def test_nobody_is_told_to_install_the_distribution_of_another_project() -> None:
    """For pip the name is `flowguard-mqtt`: `flowguard` is a stranger's program."""
    pyproject: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert pyproject["project"]["name"] == "flowguard-mqtt"
    stranger = r"flowguard(?![\w-])(?!\.git)"
    patterns = [
        rf"\binstall\s+(?:-{{1,2}}[\w-]+[ =]+)*[\"'`]?{stranger}",
        r"\bflowguard\[\w+(?:,\w+)*\][\"'`]",
        rf"\b(?:version|requires|distribution|metadata|files)\([\"']{stranger}",
    ]
    wrong = re.compile("|".join(patterns))
    findings = []
    for path in tracked_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if wrong.search(line):
                findings.append(f"{name_of(path)}:{number}: flowguard-mqtt is what pip installs")
    report(findings)

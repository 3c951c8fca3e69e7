"""No closure of a compiled file is in a reference cycle.

mypyc keeps all captured variables of a function in one object, which its closures refer to. So a
closure that refers to itself or to its sibling is in a cycle with that object, which pure Python
has not. So is every closure of a generator, and one that is kept by what the function captures.
Such a cycle keeps its message in memory until the garbage collector runs.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.support.compiled import script

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SUSPENDS = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)


def test_no_closure_of_a_compiled_file_is_in_a_cycle() -> None:
    compiler = script()
    sources = [
        *compiler.sources_of((*compiler.MODULES, *compiler.ROOMS), compiler.PACKAGE.parent),
        *compiler.sources_of(compiler.PROXY, compiler.ROOT),
    ]
    assert len(sources) > 100
    assert [
        f"{path.relative_to(compiler.ROOT)}:{found}"
        for path in sources
        for found in cycles_of(path.read_text())
    ] == []


def cycles_of(source: str) -> list[str]:
    """The line of each closure that makes a cycle, and why it does."""
    functions = [each for each in ast.walk(ast.parse(source)) if isinstance(each, Function)]
    return [each for function in functions for each in cycles_in(function)]


def cycles_in(function: Function) -> Iterator[str]:
    own = list(scope(function))
    closures = [each for each in own if isinstance(each, Function)]
    names = {each.name for each in closures if not isinstance(each, ast.Lambda)}
    captured = {name for each in closures for name in captured_by(each)}
    for node in own:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            if not makes_closure(node.value, names):
                continue
            for target in targets_of(node):
                if root_of(target) in captured:
                    yield f"{node.lineno}: {root_of(target)} is captured, and keeps a closure"
    for closure in closures:
        for name in sorted(captured_by(closure) & names):
            yield f"{closure.lineno}: it refers to {name}, a closure of the same function"
        if any(isinstance(node, SUSPENDS) for node in own):
            yield f"{closure.lineno}: its function is a generator or a coroutine"


def scope(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, its closures included, but not what is in them."""
    body = function.body if isinstance(function.body, list) else [function.body]
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function):
            waiting += ast.iter_child_nodes(node)


def captured_by(closure: Function) -> set[str]:
    """The names that it uses, without its parameters and its own variables."""
    names = [node for node in ast.walk(closure) if isinstance(node, ast.Name)]
    shared = {
        name for node in ast.walk(closure) if isinstance(node, ast.Nonlocal) for name in node.names
    }
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)} - shared
    own |= {node.arg for node in ast.walk(closure.args) if isinstance(node, ast.arg)}
    return {node.id for node in names} - own


def makes_closure(value: ast.expr, names: set[str]) -> bool:
    """Whether the value of an assignment is a closure, or holds one; to call one makes none."""
    called = {node.func for node in ast.walk(value) if isinstance(node, ast.Call)}
    return any(
        isinstance(node, ast.Lambda) or (isinstance(node, ast.Name) and node.id in names)
        for node in ast.walk(value)
        if node not in called
    )


def targets_of(node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def root_of(target: ast.expr) -> str:
    """The variable that an assignment changes: `a` of `a`, `a.b` and `a.b[0]`."""
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


@pytest.mark.parametrize(
    "body",
    [
        "    def again(): again()\n",
        "    def one(): pass\n    def two(): one()\n",
        "    def deep():\n        def deeper(): deep()\n",
        "    then = lambda: then()\n",
        "    def change():\n        nonlocal then\n        then = None\n    then = change\n",
        "    self.then = lambda: self.close()\n",
        "    self.calls[0] = [lambda: self.close()]\n",
        "    self.then = lambda: None\n    return lambda: self\n",
        "    def close(): self.close()\n    self.then = close\n",
        "    yield 1\n    def close(): self.close()\n",
        "    return (yield), lambda: 1\n",
    ],
)
def test_a_closure_that_mypyc_puts_into_a_cycle_is_found(body: str) -> None:
    assert cycles_of(f"def outer(self):\n{body}")


@pytest.mark.parametrize(
    "body",
    [
        "    def done(now_s): self.close(now_s)\n    self.journal.append(done)\n",
        "    def one(): pass\n    def two(): pass\n    return one() or two\n",
        "    self.then = lambda number: number\n",
        "    def made(): pass\n    call = made()\n    return lambda: call\n",
        "    def made():\n        call = 1\n    call = made\n",
        "    context.choose = lambda name: named[name]\n",
        "    return sorted(self, key=lambda each: each.name)\n",
    ],
)
def test_a_closure_without_a_cycle_is_let_be(body: str) -> None:
    assert cycles_of(f"def outer(self):\n{body}") == []

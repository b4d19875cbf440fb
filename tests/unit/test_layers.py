"""The shape of the package: who imports whom, who touches files, what is public."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import stratalog
from stratalog import errors

PACKAGE = Path(stratalog.__file__).parent
ROOT = PACKAGE.parent.parent
LINES_MAX = 600

# From the bottom to the top; what shares a line does not import each other.
LAYERS = [
    ["errors"],
    ["model", "reports"],
    ["options"],
    ["settings"],
    ["clock", "memory_budget", "metrics"],
    ["fs", "format"],
    ["arguments", "testing"],
    ["log"],
    ["segments"],
    ["state"],
    ["consume"],
    ["lake"],
    ["upkeep"],
    ["view"],
    ["backup"],
    ["handles"],
    [""],  # the package itself: open() and the public names
    ["remote"],
    ["tools", "interop", "aio"],
    ["spark", "server"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# The command line talks to the terminal and to users' files; fs/ is there to touch the store's.
MAY_TOUCH_FILES = {"fs", "cli"}
FILE_MODULES = {"fcntl", "glob", "io", "mmap", "pathlib", "shutil", "tempfile"}
# Not of a store: the archive of the package that is sent to a server of Spark Connect.
ALLOWED = {"spark/ship.py": ["import tempfile"]}
OS_HARMLESS = {
    "PathLike", "cpu_count", "environ", "fork", "fspath", "getpid", "kill", "path", "pathsep",
    "process_cpu_count", "register_at_fork", "sched_getaffinity", "strerror",
}  # fmt: skip
OS_PATH_HARMLESS = {
    "abspath", "basename", "commonpath", "dirname", "isabs", "join", "normpath", "relpath", "sep",
    "split", "splitext",
}  # fmt: skip

TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
each_file = pytest.mark.parametrize("file", TREES)


def _module(file: str) -> str:
    parts = ["stratalog", *file.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _layer(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


# What is imported from above for the type checker alone, and why it may be.
TYPES_FROM_ABOVE = {
    ("log/topic.py", "stratalog.segments.topic_segments"): (
        "A topic's end of the log carries the place of its older records, so that the modules that "
        "handle a topic, some ninety of them, are given one object. The log tells it which offsets "
        "are lost, and reads nothing from it."
    ),
    ("log/topic.py", "stratalog.state.group_state"): (
        "Likewise carried. The log never calls it, but after a fork, where all of a topic goes."
    ),
    ("log/topic.py", "stratalog.state.projection"): (
        "Likewise carried. The log only tells it that entered records were taken back."
    ),
    ("state/group_state.py", "stratalog.consume.engine"): (
        "Live engines are registered with the state of their groups, which asks them for floors, "
        "held offsets and snapshots, and keeps their type for the handles that look them up."
    ),
    ("__init__.py", "stratalog.tools.report"): (
        "verify() and repair() stand beside open(), and are loaded when called."
    ),
}


def _type_imports(file: str) -> Iterator[str]:
    """Modules of ours that a file imports for the type checker alone."""
    blocks = [node for node in ast.walk(TREES[file]) if _is_type_checking(node)]
    for node in [inner for block in blocks for inner in ast.walk(block)]:
        if isinstance(node, ast.ImportFrom):
            inner_names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {name if name in MODULES else str(node.module) for name in inner_names}


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: all but what is there for the type checker."""
    for child in ast.iter_child_nodes(node):
        if not _is_type_checking(child):
            yield child
            yield from _running(child)


MODULES = {_module(file) for file in TREES}


def _imports(file: str) -> Iterator[tuple[str, bool]]:
    """Modules of ours that a file imports, and whether it does so as it is itself imported."""
    tree = TREES[file]
    at_once = set(tree.body) | {
        node for outer in tree.body if isinstance(outer, ast.If | ast.Try) for node in outer.body
    }
    for node in _running(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in inner]
        for name in names:
            if name.split(".")[0] == "stratalog":
                yield name, node in at_once


def test_every_module_has_its_place() -> None:
    """A new module of the package is given a layer here, on purpose."""
    assert {_layer(module) for module in MODULES} <= set(RANK)


@each_file
def test_imports_go_one_way(file: str) -> None:
    """From the top down, never to a neighbour, wherever in the file they stand."""
    here = _layer(_module(file))
    for name, at_once in _imports(file):
        there = _layer(name)
        if here == "" and there == "tools" and not at_once:
            continue  # verify() and repair() stand beside open(), and are loaded when called
        assert here == there or RANK[there] < RANK[here], f"{file} imports {name}"


def test_types_come_from_below_as_well() -> None:
    """A module depends on names that only its type checker needs, too; exceptions are listed."""
    above = {
        (file, name)
        for file in TREES
        for name in _type_imports(file)
        if name.split(".")[0] == "stratalog"
        and _layer(name) != _layer(_module(file))
        and RANK[_layer(name)] >= RANK[_layer(_module(file))]
    }
    assert above == set(TYPES_FROM_ABOVE)


def test_no_module_imports_itself_in_a_circle() -> None:
    """Inside of a layer too, imports at the top of files have an order."""
    graph = {_module(file): {name for name, at_once in _imports(file) if at_once} for file in TREES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for name in graph[module]:
                visit(name, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.slow
def test_the_package_does_not_need_its_test_kit() -> None:
    """`stratalog.testing` is shipped for users' tests; only a store in memory runs on it."""
    users = {file for file in TREES for name, _ in _imports(file) if _layer(name) == "testing"}
    users = {file for file in users if _layer(_module(file)) != "testing"}
    assert users == {"handles/configure.py"}
    code = "import stratalog, sys; sys.exit('stratalog.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _file_uses(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {a.name}" for a in node.names if a.name in FILE_MODULES)
        elif isinstance(node, ast.ImportFrom):
            if node.module in FILE_MODULES or node.module in ("os", "os.path", "posixpath"):
                yield f"from {node.module} import"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "io.open"):
            yield "open()"
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "os" and node.attr not in OS_HARMLESS:
                yield f"os.{node.attr}"
            if owner in ("os.path", "posixpath") and node.attr not in OS_PATH_HARMLESS:
                yield f"{owner}.{node.attr}"


@each_file
def test_only_fs_touches_files(file: str) -> None:
    """Everything else goes through the seam, where a test can put a bad disk."""
    if _layer(_module(file)) not in MAY_TOUCH_FILES:
        assert list(_file_uses(TREES[file])) == ALLOWED.get(file, [])


def test_touching_files_is_noticed() -> None:
    """The rule above can fail."""
    code = "import os, mmap\nopen('x')\nos.rename('a', 'b')\nos.path.exists('a')\nos.path.join('')"
    assert list(_file_uses(ast.parse(code))) == [
        "import mmap", "open()", "os.rename", "os.path.exists",
    ]  # fmt: skip


@each_file
def test_no_module_is_too_long(file: str) -> None:
    """Past this, there are two modules in it."""
    assert len((PACKAGE / file).read_text().splitlines()) <= LINES_MAX


# What the seam's protocols say about their methods holds for all that implement them.
SEAM_METHODS = {
    method.name
    for file in ("fs/__init__.py", "fs/cold.py")
    for node in TREES[file].body
    if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    for method in node.body
    if isinstance(method, ast.FunctionDef)
}


def _undocumented(node: ast.AST, path: str) -> Iterator[str]:
    """Public classes, functions and methods without a docstring; functions are not entered."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if child.name.startswith("_") or "overload" in map(ast.unparse, child.decorator_list):
            continue
        name = f"{path}.{child.name}"
        is_method = isinstance(node, ast.ClassDef)
        if ast.get_docstring(child) is None and not (is_method and child.name in SEAM_METHODS):
            yield name
        if isinstance(child, ast.ClassDef) and not path.startswith("stratalog.testing."):
            yield from _undocumented(child, name)


@each_file
def test_everything_public_says_what_it_is(file: str) -> None:
    """Modules, classes and functions, and methods but for those of fakes."""
    tree = TREES[file]
    assert ast.get_docstring(tree), f"{file} has no docstring"
    assert list(_undocumented(tree, _module(file))) == []


def test_all_is_sorted_and_true() -> None:
    """`__all__` has every public name of ours and no other, in order."""
    names = stratalog.__all__
    assert names == sorted(set(names))
    public = {
        name
        for name, value in vars(stratalog).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", "").startswith("stratalog")
    }
    assert set(names) == public | {"__version__"}


def test_every_error_can_be_caught_by_its_public_name() -> None:
    """Users can name every error that the package raises on purpose, without looking for it."""
    ours = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert ours <= set(stratalog.__all__)


def test_the_version_is_stated_once() -> None:
    """The package and its metadata agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == stratalog.__version__


@pytest.mark.slow
@pytest.mark.parametrize("module", ["pyarrow", "pyspark", "rich", "typer"])
def test_importing_the_package_does_not_import(module: str) -> None:
    """Who appends bytes does not wait for a library that reads tables or draws them."""
    code = f"import sys, stratalog; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _drawn_tree(text: str) -> dict[str, tuple[str, str | None]]:
    """Parent and other base of every error in the drawing, by name."""
    tree: dict[str, tuple[str, str | None]] = {}
    path: list[str] = []
    for line in text.splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+Error)\b(?:.*\(also an? (\w+)\))?", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            tree[found[2]] = (path[depth - 1] if depth else "Exception", found[3])
    return tree


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    """Names, parents and the built-in errors they also are."""
    drawn = _drawn_tree(errors.__doc__ or "")
    classes = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    assert drawn == {
        name: (value.__bases__[0].__name__, *[base.__name__ for base in value.__bases__[1:]])
        if len(value.__bases__) > 1
        else (value.__bases__[0].__name__, None)
        for name, value in classes.items()
    }

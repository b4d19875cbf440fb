"""Words and openings that the house style has retired stay out of code and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SELF = "tests/unit/test_prose.py"

# A retired word, and what to write instead. Whole words, in any case, in code and prose alike.
RETIRED = {
    "behind": "after, later than, past; a reader lags",
    "whoever": "the caller, the reader, the process that",
    "whomever": "the caller, the reader, the process that",
    "somebody": "another thread, another process, a reader",
    "someone": "another thread, another process, a reader",
    "anybody": "any thread, any reader",
    "anyone": "any thread, any reader",
    "nobody": "no reader, no thread, nothing",
    "everybody": "every reader, all of them",
    "he": "it, they, or the name of the thing",
    "him": "it, them, or the name of the thing",
    "his": "its, their, or the name of the thing",
    "data frame": "DataFrame",
    "data frames": "DataFrames",
}

# A docstring of a function begins with a verb, one of a class or a module with a noun.
OPENINGS = ("What", "Of", "The same")

WORDS = re.compile(rf"\b({'|'.join(RETIRED)})\b", re.IGNORECASE)
OPENING = re.compile(rf"({'|'.join(OPENINGS)})\b")


def _area(path: str) -> str:
    """Name the part of the repository that a file belongs to."""
    parts = path.split("/")
    if path.startswith("src/stratalog/"):
        return "/".join(parts[:3])
    return "/".join(parts[:2]) if parts[0] == "tests" else parts[0]


def _files() -> Iterator[str]:
    for pattern in ("*.md", "docs/**/*.md", "src/**/*.py", "tests/**/*.py"):
        yield from (path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
    for folder in ("benchmarks", "examples", "scripts"):
        yield from (path.relative_to(ROOT).as_posix() for path in ROOT.glob(f"{folder}/**/*.py"))


FILES = sorted(path for path in _files() if path != SELF)
AREAS = sorted({_area(path) for path in FILES})


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find every string that stands alone: those of attributes are docstrings, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield node.lineno, text


def _faults(path: str) -> Iterator[str]:
    text = (ROOT / path).read_text()
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORDS.findall(line):
            yield f"{path}:{number}: {word!r} is retired: {RETIRED[word.lower()]}"
    if path.endswith(".py"):
        for number, docstring in _docstrings(ast.parse(text)):
            if found := OPENING.match(docstring):
                yield f"{path}:{number}: a docstring begins with {found[0]!r}: use a verb or a noun"


@pytest.mark.parametrize("area", AREAS)
def test_retired_words_stay_out(area: str) -> None:
    """Nothing in an area uses a retired word or opening."""
    faults = [fault for path in FILES if _area(path) == area for fault in _faults(path)]
    assert not faults, "\n".join(faults)


def test_a_retired_word_and_a_retired_opening_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check sees words in any case and place, and docstrings of functions and attributes."""
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "page.md").write_text("Fine.\nNobody knows what is behind.\n")
    (tmp_path / "module.py").write_text('def f():\n    """What it is."""\nx = 1\n"""Of x."""\n')
    assert [fault.split(":")[:2] for fault in _faults("page.md")] == [["page.md", "2"]] * 2
    assert [fault.split(":")[1] for fault in _faults("module.py")] == ["4", "2"]

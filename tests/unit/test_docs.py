"""The documents: their examples run, their links lead somewhere, no feature is forgotten."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))

EXAMPLES = [
    (page, number, code)
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]


@pytest.mark.parametrize(
    ("page", "number", "code"), EXAMPLES, ids=[f"{p.name}-{n}" for p, n, _ in EXAMPLES]
)
def test_every_example_runs(tmp_path: Path, page: Path, number: int, code: str) -> None:
    """Twice in a row, in a directory of its own, with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    if "\ndef test_" in code:  # pytest is what runs it
        (tmp_path / "test_example.py").write_text(code)
        command[3:] = ["-m", "pytest", "-q", "-p", "pytest_stratalog", "-p", "no:cacheprovider"]
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_every_example_passes_the_type_checker(tmp_path: Path) -> None:
    """As strictly as the package itself, in one run; its cache is that of `make lint`."""
    for page, number, code in EXAMPLES:
        (tmp_path / f"{page.stem.replace('-', '_').lower()}_{number}.py").write_text(code)
    files = sorted(map(str, tmp_path.glob("*.py")))
    assert len(files) == len(EXAMPLES)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *files]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_example_is_there() -> None:
    """The README shows code before anything else, or the test above would test nothing."""
    assert any(page.name == "README.md" for page, _, _ in EXAMPLES)


def test_every_script_in_examples_runs(tmp_path: Path) -> None:
    """As it is, from any directory; those that need Spark are run by its tests."""
    scripts = [
        script
        for script in sorted((ROOT / "examples").glob("*.py"))
        if "stratalog.spark" not in script.read_text()
    ]
    assert scripts
    for script in scripts:
        command = [sys.executable, "-W", "error", str(script)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links to files of the project."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_walk_of_a_record_is_that_of_the_code() -> None:
    """Files that the page on architecture names are there, and so is each function of a step."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "src" / "stratalog"
    steps = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", text, re.M)
    assert len(steps) > 40
    for file, function in steps:
        assert f"def {function}(" in (package / file).read_text(), f"no {function} in {file}"
    for file in re.findall(r"`(\w+/[\w/]+\.py)`", text):
        assert (package / file).exists(), f"{file} is not there"


def test_every_feature_is_answered_once() -> None:
    """All ids of the founding documents are on the page, each once."""
    text = (ROOT / "docs" / "features.md").read_text()
    cells = re.findall(r"^\| ([FLTO]\d+(?:, [FLTO]\d+)*) \|", text, re.M)
    found = [id for cell in cells for id in cell.split(", ")]
    counts = {"F": 61, "L": 135, "T": 76, "O": 55}
    expected = [f"{kind}{n}" for kind, count in counts.items() for n in range(1, count + 1)]
    assert sorted(set(expected) - set(found)) == []
    assert sorted(found) == sorted(expected)

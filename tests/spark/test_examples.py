"""The examples that need Spark, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = [one for one in sorted(EXAMPLES.glob("*.py")) if "stratalog.spark" in one.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_example_runs(script: Path, tmp_path: Path) -> None:
    """As it is, from any directory."""
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "each once: True" in done.stdout

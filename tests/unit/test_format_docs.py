"""The generated pages are what the code says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def _check(root: Path) -> subprocess.CompletedProcess[str]:
    script = root / "scripts" / "format_docs.py"
    return subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_format_page_is_up_to_date() -> None:
    """Otherwise it says which lines differ and what to run."""
    run = _check(ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_a_page_out_of_date_is_noticed(tmp_path: Path) -> None:
    """One changed line is enough, and so is no page at all."""
    for name in ("scripts", "docs"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "scripts" / "format_docs.py", tmp_path / "scripts")
    assert _check(tmp_path).returncode == 1
    text = (ROOT / "docs" / "format.md").read_text()
    (tmp_path / "docs" / "format.md").write_text(text.replace("| 3 | gzip |", "| 4 | gzip |"))
    run = _check(tmp_path)
    assert run.returncode == 1
    assert "-| 4 | gzip |" in run.stdout
    assert "run python scripts/format_docs.py" in run.stderr

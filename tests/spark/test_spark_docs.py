"""The examples of docs/spark.md, all in one session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_every_example_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in a directory of their own."""
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.S)
    assert blocks
    monkeypatch.chdir(tmp_path)
    text = "\n".join(blocks)
    for name in ("data", "copy", "copy-checkpoint"):  # Spark's processes are elsewhere
        text = text.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(compile(text, str(PAGE), "exec"), {"spark": spark})

"""Examples that stand for whole programs stay short; `test_docs.py` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["webhook_queue", "audit_log", "late_devices"])
def test_a_program_is_under_sixty_lines(name: str) -> None:
    """An example that does not fit is too much work for its user: the package lacks something."""
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert len(lines) < 60

"""docs/benchmarks.md says what the last run measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import page


def test_the_page_of_benchmarks_is_up_to_date() -> None:
    """Otherwise run python -m benchmarks.page."""
    assert page.main(["--check"]) == 0


def test_a_page_that_says_something_else_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One changed figure is enough, and so is no page at all."""
    text = page.PAGE.read_text()
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    assert page.main(["--check"]) == 1
    page.PAGE.write_text(text.replace("21 rounds", "22 rounds"))
    assert page.main(["--check"]) == 1
    assert "python -m benchmarks.page" in capsys.readouterr().out


def test_every_measurement_of_the_run_is_on_the_page() -> None:
    """No contestant is left out."""
    data = json.loads(page.RESULTS.read_text())
    text = page.PAGE.read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for item in data["measurements"]:
        assert any(item["contestant"] in row for row in rows), item["contestant"]

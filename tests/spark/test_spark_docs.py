"""The examples that need Spark in the documents, all in one session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import stratalog

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name", ["README.md", "docs/spark.md", "docs/spark-writing.md", "docs/pipelines.md"]
)
def test_every_example_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One after the other, in a directory of their own."""
    page = ROOT / name
    blocks = re.findall(r"```py\n(.*?)```", page.read_text(), re.S)
    assert blocks
    monkeypatch.chdir(tmp_path)
    if name in ("README.md", "docs/pipelines.md"):  # which have one already
        with stratalog.open("data") as store:
            store.topic("orders").append_many([b"1", stratalog.Record(value=b"2", key=b"k")])
    text = "\n".join(blocks)
    for place in (
        "data",
        "copy",
        "copy-checkpoint",
        "state",
        "state-of-logins",
    ):  # Spark's processes are elsewhere
        text = text.replace(f'"{place}"', repr(str(tmp_path / place)))
    names: dict[str, Any] = {"spark": spark}
    exec(compile(text, str(page), "exec"), names)
    if name == "docs/pipelines.md":
        assert names["found"].topics[0].keys.top[0].share == 1
        assert "orders" in (tmp_path / "report.html").read_text()
        assert names["clean"](stratalog.Record(value=b" 1 ")) == b"1"
    clean_values = {"README.md": [b"2"], "docs/spark-writing.md": [b"0", b"2"]}
    if name in clean_values:
        assert names["query"].awaitTermination(120), "the query of the page never ends"
        with stratalog.open("data", read_only=True) as store:
            assert store.topic("orders-clean").read_values() == clean_values[name]

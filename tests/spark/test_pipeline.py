"""Declared pipelines, run as a user runs them: a file, a command, a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stratalog

PIPELINE = '''\
[sources.numbers]
format = "parquet"
path = "numbers"
schema = "id long, k long"

[sources.names]
format = "csv"
path = "names.csv"
stream = false
options = { header = true, inferSchema = true }

[steps.joined]
sql = """
SELECT id, name
FROM STREAM(numbers) JOIN names USING (k)"""

[steps.large]
python = "steps.py:large"
inputs = ["joined"]

[sinks.out]
from = "large"
format = "parquet"
path = "out"
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a pipeline, its steps, and something to read."""
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    (tmp_path / "steps.py").write_text("def large(joined):\n    return joined.where('id >= 50')\n")
    (tmp_path / "names.csv").write_text("k,name\n0,zero\n1,one\n")
    (tmp_path / "numbers").mkdir()
    add_numbers(tmp_path, 0, 100)
    return tmp_path


def add_numbers(project: Path, first: int, end: int) -> None:
    table = pa.table({"id": range(first, end), "k": [n % 2 for n in range(first, end)]})
    pq.write_table(table, project / "numbers" / f"{first}.parquet")


def run(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stratalog.cli", "pipeline", "run", str(file)]
    return subprocess.run(
        [*command, "--master", "local[2]", *arguments],
        capture_output=True, text=True, timeout=300, cwd=file.parent,
    )  # fmt: skip


def rows(project: Path) -> list[dict[str, Any]]:
    found = [pq.read_table(file) for file in (project / "out").glob("*.parquet")]
    return sorted(pa.concat_tables(found).to_pylist(), key=lambda row: row["id"])


def test_a_pipeline_takes_in_what_is_new_and_nothing_twice(project: Path) -> None:
    file = project / "pipeline.toml"
    first = run(file, "--json")
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""
    summary = json.loads(first.stdout)
    assert summary["sinks"] == ["out"]
    assert [row["id"] for row in rows(project)] == list(range(50, 100))
    assert {row["name"] for row in rows(project)} == {"zero", "one"}
    add_numbers(project, 100, 120)
    second = run(file)
    assert second.stdout == "pipeline: done: numbers, names -> joined, large -> out\n"
    assert [row["id"] for row in rows(project)] == list(range(50, 120))


def test_the_pipeline_of_the_documents_runs(tmp_path: Path) -> None:
    """From a topic to a topic and to Parquet, as docs/pipelines.md has it."""
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    [toml] = re.findall(r"```toml\n(.*?)```", page, re.S)
    [steps] = re.findall(r"```py\n# steps.py\n(def large.*?)```", page, re.S)
    (tmp_path / "clean.toml").write_text(toml)
    (tmp_path / "steps.py").write_text(steps)
    (tmp_path / "countries.csv").write_text("code,name\nfr,France\njp,Japan\n")
    values = [b'{"country": "%s", "total": %d}' % (c, n) for n in (99, 100) for c in (b"fr", b"xx")]
    with stratalog.open(tmp_path / "data") as store:
        store.topic("orders").append_many(values)
    done = run(tmp_path / "clean.toml")
    assert done.returncode == 0, done.stderr
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        [value] = store.topic("orders-large").read_values()
    assert json.loads(value or b"")["country"] == "France"
    found = [pq.read_table(file) for file in (tmp_path / "lake").glob("*.parquet")]
    assert sorted(pa.concat_tables(found)["total"].to_pylist()) == [99, 100]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("SELECT id, name", "SELECT id,\n  nosuch", 15, "`nosuch` cannot be resolved"),
        ("steps.py:large", "broken.py:large", 18, "broken.py, line 2: AttributeError"),
    ],
)
def test_what_spark_cannot_make_sense_of_is_refused_by_line(
    project: Path, old: str, new: str, line: int, says: str
) -> None:
    (project / "broken.py").write_text("def large(joined):\n    return None.nosuch()\n")
    file = project / "pipeline.toml"
    file.write_text(PIPELINE.replace(old, new))
    result = run(file, "--dry-run")
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {file}, line {line}: step ")
    assert says in result.stderr
    assert not (project / "out").exists()

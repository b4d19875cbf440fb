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
from stratalog.errors import OptionError
from stratalog.spark.jobs.pipeline_file import load_pipeline

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


SHARED = """\
[sources.ticks]
topic = "ticks"
path = "data"
options = { startingOffsets = "earliest" }

[sources.numbers]
topic = "numbers"
path = "data"
stream = false

[steps.both]
python = "steps.py:both"
inputs = ["ticks", "numbers"]

[sinks.out]
from = "both"
format = "parquet"
path = "out"
"""


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


VIEWS = '''\
[sources.logins]
topic = "logins"
path = "data"
options = { startingOffsets = "earliest" }

[sources.users]
table = "users"
path = "data"

[sources.load]
series = "cpu"
path = "data"

[sources.waiting]
queue = "jobs"
path = "data"

[steps.known]
sql = """
SELECT CAST(users.key AS STRING) AS key,
       concat(CAST(users.value AS STRING), ' ', load.fields.user, ' ', waiting.state) AS value
FROM STREAM(logins) JOIN users ON users.key = logins.key CROSS JOIN load CROSS JOIN waiting"""

[sinks.seen]
from = "known"
table = "seen"
path = "data"
'''


def test_tables_series_and_queues_are_sources_and_a_table_is_a_sink(tmp_path: Path) -> None:
    """The sources are read whole, as of the run; the sink is changed by key."""
    (tmp_path / "views.toml").write_text(VIEWS)
    with stratalog.open(tmp_path / "data") as store:
        users = store.table("users")
        users.put("ada", b"admin")
        users.put("ada", b"owner")
        users.put("eve", b"guest")
        store.series("cpu").write({"user": 72.5}, tags={"host": "a"})
        store.queue("jobs").put(b"x")
        for key in (b"ada", b"bob"):
            store.topic("logins").append(b"login", key=key)
    done = run(tmp_path / "views.toml")
    assert done.returncode == 0, done.stderr
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert dict(store.table("seen")) == {"ada": b"owner 72.5 waiting"}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('table = "users"', 'table = "users"\nstream = true', "line 8: a table is read whole"),
        ('table = "users"', 'table = "users"\ntopic = "a"', "give one of topic and table"),
        ('table = "users"\npath = "data"', 'table = "users"', "line 6: a table needs its path"),
        ('table = "seen"', 'series = "seen"', "unknown key 'series'"),
        ('table = "seen"', 'table = "seen"\nformat = "csv"', "leave format out"),
    ],
)
def test_a_view_that_cannot_be_is_told_with_its_line(old: str, new: str, reason: str) -> None:
    """Before Spark runs."""
    assert old in VIEWS
    with pytest.raises(OptionError, match=reason):
        load_pipeline("views.toml", VIEWS.replace(old, new))


def test_a_topic_that_two_parts_of_a_step_share_is_read_whole_by_both(tmp_path: Path) -> None:
    """The filter of the first part once narrowed the second: 10 of 20 rows came out, and no error.

    The filters were pushed into the source, of which Spark keeps one plan.
    """
    (tmp_path / "both.toml").write_text(SHARED)
    (tmp_path / "steps.py").write_text(
        "def both(ticks, numbers):\n"
        "    ends = numbers.where('offset < 10').union(numbers.where('offset >= 990'))\n"
        "    return ticks.select('key').crossJoin(ends.select('offset'))\n"
    )
    with stratalog.open(tmp_path / "data") as store:
        store.topic("ticks").append(b"one")
        store.topic("numbers").append_many([b"%d" % n for n in range(1000)])
    done = run(tmp_path / "both.toml")
    assert done.returncode == 0, done.stderr
    found = [pq.read_table(file) for file in (tmp_path / "out").glob("*.parquet")]
    offsets = pa.concat_tables(found)["offset"].to_pylist()
    assert sorted(offsets) == [*range(10), *range(990, 1000)]


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


_FROM_TOPIC = """\
[sources.orders]
topic = "orders"
path = "data"

[steps.large]
python = "steps.py:large"
inputs = ["orders"]

[sinks.copy]
from = "large"
topic = "copy"
path = "data"
"""


# A missing CSV and a step that returned nothing ended in a traceback; a topic that was misspelt
# passed a dry run, and was found by the run itself.
@pytest.mark.parametrize(
    ("text", "steps", "argument", "line", "says"),
    [
        (PIPELINE.replace("names.csv", "nmaes.csv"), "joined", "--dry-run", 6, "nmaes.csv"),
        (PIPELINE, "None", "--dry-run", 18, "returns nothing: a step returns a DataFrame"),
        (_FROM_TOPIC.replace('"orders"\npath', '"ordres"\npath'), "x", "--dry-run", 1, "'ordres'"),
        (_FROM_TOPIC.replace('"orders"\npath', '"ordres"\npath'), "x", "--json", 1, "'ordres'"),
        (_FROM_TOPIC.replace('"data"\n\n[steps', '"dtaa"\n\n[steps'), "x", "--json", 1, "dtaa"),
        (_FROM_TOPIC + 'options = { topik = "x" }\n', "x", "--dry-run", 9, "'topic'"),
        (_FROM_TOPIC.replace('path = "data"\n\n[steps', 'path = "numbers"\n\n[steps'), "x",
         "--dry-run", 1, "not a Stratalog store"),
        (_FROM_TOPIC.removesuffix('"data"\n') + '"numbers"\n', "x", "--dry-run", 9, "not empty"),
    ],
)  # fmt: skip
def test_what_a_pipeline_cannot_read_is_refused_by_line(
    tmp_path: Path, text: str, steps: str, argument: str, line: int, says: str
) -> None:
    """In one sentence, by a dry run as by a run, and nothing is written."""
    with stratalog.open(tmp_path / "data", shards=1) as store:
        store.topic("orders").append(b"x")
    (tmp_path / "numbers").mkdir()
    add_numbers(tmp_path, 0, 10)
    (tmp_path / "names.csv").write_text("k,name\n0,zero\n1,one\n")
    (tmp_path / "steps.py").write_text(f"def large(joined):\n    return {steps}\n")
    file = tmp_path / "flow.toml"
    file.write_text(text)
    result = run(file, argument)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    (message,) = result.stderr.splitlines()
    assert message.startswith(f"error: {file}, line {line}: ")
    assert says in message
    assert not (tmp_path / "out").exists()
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert store.topics() == ["orders"]

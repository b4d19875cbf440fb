"""Declared pipelines, before Spark sees them: what is accepted, and which line is complained of."""

from __future__ import annotations

import os

import pytest

from stratalog.errors import OptionError
from stratalog.spark.jobs.pipeline_file import load_pipeline

GOOD = '''\
name = "orders"
storage = "state"

[spark]
"spark.sql.shuffle.partitions" = 2

[sources.orders]
topic = "orders"
path = "data"
options = { startingOffsets = "earliest", failOnDataLoss = false }

[sources.countries]
format = "csv"
path = "/lists/countries.csv"
stream = false
schema = "code string, name string"

[steps.parsed]
sql = """
SELECT decode(value, 'UTF-8') AS code
FROM STREAM(orders)"""

[steps.named]
python = "steps.py:name"
inputs = ["parsed", "countries"]

[sinks.clean]
from = "named"
topic = "clean"
path = "data"

[sinks.lake]
from = "named"
format = "parquet"
path = "s3://bucket/lake"
'''


def test_a_file_says_what_flows_where() -> None:
    pipeline = load_pipeline("/jobs/orders.toml", GOOD)
    assert (pipeline.name, pipeline.storage) == ("orders", "/jobs/state")
    assert pipeline.config == {"spark.sql.shuffle.partitions": "2"}
    orders, countries = pipeline.sources
    assert orders.format == "stratalog"
    assert orders.options == {
        "topic": "orders",
        "path": "/jobs/data",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
    }
    assert not countries.is_stream
    assert countries.schema == "code string, name string"
    parsed, named = pipeline.steps
    assert parsed.sql is not None
    assert GOOD.splitlines()[parsed.line - 1].startswith("SELECT")
    assert named.python == ("/jobs/steps.py", "name")
    assert named.inputs == ("parsed", "countries")
    assert [(sink.name, sink.source, sink.format) for sink in pipeline.sinks] == [
        ("clean", "named", "stratalog"),
        ("lake", "named", "parquet"),
    ]
    assert pipeline.sinks[1].options == {"path": "s3://bucket/lake"}


def test_names_and_places_have_defaults() -> None:
    text = '[sources.a]\ntopic = "a"\npath = "d"\n[sinks.b]\nfrom = "a"\ntopic = "b"\npath = "d"\n'
    pipeline = load_pipeline("copy.toml", text)
    assert pipeline.name == "copy"
    assert pipeline.storage == os.path.join(os.getcwd(), "copy.state")
    assert pipeline.steps == ()


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('name = "orders"', "name = orders", 1, "not TOML"),
        ('name = "orders"', "name = 7", 1, "is a text"),
        ("[sources.orders]", "[source.orders]", 7, "did you mean sources?"),
        ("[sources.orders]", "[sources.or-ders]", 7, "no name for SQL"),
        ('topic = "orders"', 'topics = "orders"', 8, "did you mean topic?"),
        ('topic = "orders"', "", 7, "needs topic"),
        ('path = "data"\noptions', "options", 7, "needs its path"),
        ("failOnDataLoss = false", "failOnDataLoss = []", 10, "a text or a number"),
        ("stream = false", 'stream = "no"', 15, "true or false"),
        ('format = "csv"', "format = 3", 13, "format is a text"),
        ("[steps.parsed]", "[steps.orders]", 18, "is a source already"),
        ('python = "steps.py:name"', 'python = "steps.py"', 24, "FILE:NAME"),
        ('python = "steps.py:name"', "", 23, "one of sql"),
        ('python = "steps.py:name"', 'sql = "SELECT 1"', 25, "names its own inputs"),
        ('inputs = ["parsed", "countries"]', "", 23, "needs inputs"),
        ('inputs = ["parsed", "countries"]', 'inputs = "parsed"', 25, "list of names"),
        ('["parsed", "countries"]', '["pased"]', 25, "did you mean 'parsed'?"),
        ('from = "named"\ntopic', "topic", 27, "needs from"),
        ('from = "named"\ntopic', 'from = "nowhere"\ntopic', 28, "no source or step"),
    ],
)
def test_a_bad_file_is_refused_by_line(old: str, new: str, line: int, says: str) -> None:
    assert old in GOOD
    with pytest.raises(OptionError) as caught:
        load_pipeline("/jobs/orders.toml", GOOD.replace(old, new, 1))
    assert str(caught.value).startswith(f"/jobs/orders.toml, line {line}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize("section", ["sources", "sinks"])
def test_a_pipeline_begins_and_ends_somewhere(section: str) -> None:
    with pytest.raises(OptionError, match=rf"needs \[{section}.NAME\]"):
        load_pipeline("x.toml", GOOD.replace(f"[{section}.", "[steps.x_"))

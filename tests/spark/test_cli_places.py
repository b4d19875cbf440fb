"""Every command that runs on Spark against every place that it cannot work with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.places import (
    CREATE,
    IS_ROOT,
    PLACES,
    SPARK_COMMANDS,
    assert_one_sentence,
    assert_refused,
    run,
)

import stratalog


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with rows to import and a function to replay with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "my_steps.py").write_text("def keep(record):\n    return record\n")
    return tmp_path


@pytest.fixture
def data(here: Path) -> Path:
    """A store with a topic."""
    with stratalog.open(here / "data", shards=1) as store:
        store.topic("orders").append(b"x")
    return here / "data"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", SPARK_COMMANDS)
def test_a_place_that_is_no_store_is_one_sentence(
    spark: Any, command: str, place: str, here: Path
) -> None:
    """Whatever is there instead, and the exit code says of what kind the mistake is."""
    if place == "unreadable" and IS_ROOT:
        pytest.skip("nothing is unreadable to root")
    path = PLACES[place][0](here)
    result = run(command, SPARK_COMMANDS[command], store=path, topic="orders")
    assert_refused(command, place, result)


@pytest.mark.parametrize("command", [name for name in SPARK_COMMANDS if name not in CREATE])
def test_a_misspelt_topic_is_one_sentence(spark: Any, command: str, data: Path) -> None:
    """It ends with 2, and no topic of that name is created."""
    if "<topic>" not in SPARK_COMMANDS[command]:
        pytest.skip("it names no topic")
    assert_one_sentence(run(command, SPARK_COMMANDS[command], store=data, topic="ordres"), {2})
    with stratalog.open(data, read_only=True) as store:
        assert store.topics() == ["orders"]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("import", ["<store>", "none.csv", "orders"]),
        ("import", ["<store>", "empty", "orders", "--format", "json"]),
        ("import", ["<store>", "rows.csv", "orders", "--format", "parquet"]),
        ("import", ["<store>", "rows.csv", "orders", "--format", "xml"]),
        ("import", ["<store>", "rows.csv", "orders", "--key", "nope"]),
        ("import", ["<store>", "rows.csv", "orders", "--timestamp", "a", "--bad-rows", "maybe"]),
        ("import", ["<store>", "rows.csv", "orders", "--option", "mode=NONE"]),
        ("import", ["<store>", "rows.csv", ""]),
        ("export", ["<store>", "rows.csv"]),
        ("export", ["<store>", "out", "--format", "xml"]),
        ("export", ["<store>", "out", "--schema", "no type at all"]),
        ("pipeline report", ["<store>", "--output", "rows.csv/page.html"]),
        ("pipeline report", ["<store>", "--output", "empty"]),
        ("pipeline compact", ["<store>", "--compression", "zst"]),
        ("pipeline replay", ["<store>", "orders", "copy", "none:keep"]),
        ("pipeline replay", ["<store>", "orders", "copy", "my_steps:none"]),
        ("pipeline replay", ["<store>", "orders", "copy", "my_steps"]),
        ("pipeline replay", ["<store>", "orders", "copy", "my_steps:keep", "--start", "soon"]),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    spark: Any, command: str, arguments: list[str], data: Path, here: Path
) -> None:
    """A file that is missing, a directory where a file should be, a type that is none."""
    (here / "empty").mkdir()
    assert_one_sentence(run(command, arguments, store=data), {2, 5})


@pytest.mark.parametrize(("format", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_without_its_package_a_table_format_says_what_to_install(
    spark: Any, format: str, package: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, with the exit code of a call that cannot work."""
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    result = run("export", ["<store>", "out", "--format", format], store=data)
    assert_one_sentence(result, {2})
    assert f"pip install 'stratalog[{format}]'" in result.stderr

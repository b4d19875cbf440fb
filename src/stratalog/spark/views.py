"""Temporary views of a store: SQL on its topics, tables and series by their names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from stratalog.errors import OptionError
from stratalog.handles.kinds import SERIES, TABLE
from stratalog.spark.dataframes import Path, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stratalog.view import View


def views(spark: SparkSession, path: Path, *, prefix: str = "") -> list[str]:
    """Make a temporary view of every topic, table and series; returns their names, sorted.

    A view has the topic's name after a `prefix`; write backquotes around one that is no plain
    identifier. Each is pinned to what there is now, as a DataFrame of `read`, `table` or `series`
    is; call this again to have newer records in them. Topics that are never written have none.
    """
    makers = _makers(spark, path)
    _check_apart(makers)
    for name, make in makers.items():
        quoted = f"{prefix}{name}".replace("`", "``")
        make().createOrReplaceTempView(f"`{quoted}`")
    return sorted(f"{prefix}{name}" for name in makers)


def _makers(spark: SparkSession, path: Path) -> dict[str, Callable[[], DataFrame]]:
    """Map the name of each view to a function that makes its DataFrame."""
    from stratalog.spark.source.plan import open_view
    from stratalog.spark.source.read_options import ReadOptions

    with open_view(ReadOptions.parse({"path": os.fspath(path), "topic": "*"})) as view:
        return {name: partial(make, spark, path, name) for name, make in _kinds(view)}


def _kinds(view: View) -> Iterator[tuple[str, Callable[..., DataFrame]]]:
    """Find names, each with the function that makes the DataFrame of its kind."""
    from stratalog.spark.series_dataframe import series
    from stratalog.spark.table_dataframe import table

    loads = {"topic": _read_topic, TABLE: table, SERIES: series}
    for name in view.catalog.names():
        topic = view.catalog.find(name)
        if topic.kind in loads and not topic.is_ephemeral:
            yield name, loads[topic.kind]


def _read_topic(spark: SparkSession, path: Path, name: str) -> DataFrame:
    # A list: a name may have characters that stand for patterns, or a comma.
    return read(spark, path, json.dumps([name]))


def _check_apart(names: Iterable[str]) -> None:
    """Refuse names that Spark, which does not tell capitals apart, would take for one."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise OptionError(
                f"{other!r} and {name!r} would be one view: Spark does not tell capitals apart in "
                "their names. Read them with stratalog.spark.read, and name the views yourself."
            )

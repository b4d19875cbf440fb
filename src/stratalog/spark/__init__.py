"""The data pipeline: a store's history as DataFrames, and DataFrames as topics.

Nothing outside of this package imports Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stratalog.spark.dataframes import ReadPlan, explain, read, read_stream, topics
from stratalog.spark.queue_dataframe import queue
from stratalog.spark.session import register, session
from stratalog.spark.views import views

if TYPE_CHECKING:
    from stratalog.spark.series_dataframe import series
    from stratalog.spark.table_dataframe import table

__all__ = [
    "ReadPlan",
    "explain",
    "queue",
    "read",
    "read_stream",
    "register",
    "series",
    "session",
    "table",
    "topics",
    "views",
]


def __getattr__(name: str) -> Any:
    """Import what needs Arrow when it is asked for: `stratalog --help` does not."""
    if name not in ("series", "table"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name}_dataframe"), name)

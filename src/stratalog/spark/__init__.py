"""The data pipeline: a store's history as DataFrames, and DataFrames as topics.

Nothing outside of this package imports Spark.
"""

from __future__ import annotations

from stratalog.spark.session import register, session

__all__ = ["register", "session"]

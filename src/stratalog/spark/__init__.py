"""The data pipeline: a store's history as DataFrames, and DataFrames as topics.

Nothing outside of this package imports Spark.
"""

from __future__ import annotations

from stratalog.spark.frames import ReadPlan, explain, read, read_stream, topics
from stratalog.spark.queues import queue
from stratalog.spark.session import register, session

__all__ = ["ReadPlan", "explain", "queue", "read", "read_stream", "register", "session", "topics"]

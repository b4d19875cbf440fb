"""The Spark session of `tests/spark`, for the tests here that read by it."""

from tests.spark.conftest import spark

__all__ = ["spark"]

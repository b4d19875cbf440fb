"""Lets Spark find the data source `stratalog` by itself: it looks for modules named `pyspark_*`."""

from __future__ import annotations

from stratalog.spark.source.data_source import StratalogSource


class DefaultSource(StratalogSource):
    """The data source, under the name that Spark looks for."""

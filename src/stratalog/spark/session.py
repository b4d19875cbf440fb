"""A Spark session as our jobs, tests and examples want it: quiet, on loopback, in UTC."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stratalog.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Readers prune by filters where Spark hands them over; see `source`.
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""What every session of ours is told."""

_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def session(
    master: str = "local[*]",
    *,
    name: str = "stratalog",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one on `master`; `config` is on top of our defaults."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(
            "PySpark is not installed here: pip install 'stratalog[spark]', and Java 17 or newer"
        ) from error
    settings = QUIET | dict(config or {})
    if master.startswith("local"):
        settings = _LOCAL | settings
        if "spark.pyspark.python" not in settings:  # which the variable would override
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()

"""A Spark session as our jobs, tests and examples want it: quiet, on loopback, in UTC."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from stratalog.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # To Python and back without TCP: a tenth less processor time for a scan.
    "spark.python.unix.domain.socket.enabled": "true",
    # What goes to Python is read and written while it is in the cache: a quarter faster at 1 KiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2 << 20),
    # Readers prune by filters where Spark hands them over; see `source`.
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""What every session of ours is told."""

IN_PYTHON = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For jobs that do all of their work in Python: a JVM that spends less on itself is there a second
earlier, and leaves the cores to them."""

# Spark reads Arrow data item by item, and Arrow checks every one of them for its bounds and for
# null. What comes from our readers was checked as a whole.
_TRUSTING = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")

_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def session(
    master: str = "local[*]",
    *,
    name: str = "stratalog",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one on `master`; `config` is on top of our defaults."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(
            "PySpark is not installed here: pip install 'stratalog[spark]', and Java 17 or newer"
        ) from error
    settings = QUIET | dict(config or {})
    for key in _JAVA_OPTIONS:
        settings[key] = f"{_TRUSTING} {settings.get(key, '')}".rstrip()
    if master.startswith("local"):
        settings = _LOCAL | settings
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (FileNotFoundError, PySparkRuntimeError) as error:
        if isinstance(error, PySparkRuntimeError) and "JAVA_GATEWAY" not in str(error):
            raise
        raise UsageError(
            "Spark did not start: it needs Java 17 or newer. Install it, and set JAVA_HOME or have "
            f"`java` on the PATH ({' '.join(str(error).split())[:200]})"
        ) from error


@contextlib.contextmanager
def use(
    spark: SparkSession | None, master: str | None, config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """The session that a job was given, the one that runs already, or one for as long as it lasts.

    A job that starts Spark by itself, with `config` on top of our defaults, also stops it.
    """
    if spark is not None:
        if master is not None:
            raise UsageError("give spark= or master=, not both: a session has its master already")
        yield spark
        return
    found = running()
    if found is not None and master in (None, found.sparkContext.master):
        yield found
        return
    if found is not None:
        raise UsageError(
            f"a Spark session runs on {found.sparkContext.master!r} already, not on {master!r}: "
            "stop it first, or give it as spark="
        )
    made = session("local[*]" if master is None else master, config=config)
    try:
        yield made
    finally:
        made.stop()


def running() -> SparkSession | None:
    """The session that was started before, if any."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    found: SparkSession | None = SparkSession.getActiveSession()
    return found


def register(spark: SparkSession) -> None:
    """Make `format("stratalog")` known to a session that cannot find it by itself.

    Where the package is installed for the Python that Spark runs, Spark finds it without. To the
    executors of a cluster it is sent along; what it depends on has to be there.
    """
    from stratalog.spark.ship import send_package
    from stratalog.spark.source import StratalogSource

    if not re.match(r"local(\[|$)", str(spark.sparkContext.master)):
        send_package(spark)
    spark.dataSource.register(StratalogSource)

"""Spark sessions with the settings of our jobs, tests and examples: quiet, on loopback, in UTC."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stratalog.errors import MissingPackageError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Data to and from Python without TCP: a tenth less processor time for a scan.
    "spark.python.unix.domain.socket.enabled": "true",
    # Data for Python is read and written while it is in the cache: a quarter faster at 1 KiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2 << 20),
}
"""Settings of every session of ours."""

IN_PYTHON = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For jobs that do all their work in Python: a smaller JVM starts a second earlier, and leaves the
cores to Python."""

# Spark reads Arrow data item by item, and Arrow checks the bounds and nulls of each. Our readers
# have checked their data as a whole.
_TRUSTING = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")

_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def session(
    master: str = "local[*]",
    *,
    name: str = "stratalog",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the running session, or a new one on `master`; `config` overrides our defaults."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise missing_package(error) from error
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


def missing_package(error: ImportError) -> Exception:
    """Name the package to install if one of Spark's is missing; otherwise return the error."""
    if (error.name or "").partition(".")[0] not in ("pyspark", "pandas", "py4j", "grpc"):
        return error
    return MissingPackageError(
        f"PySpark is not installed here ({error}): pip install 'stratalog[spark]', and Java 17 or "
        "newer"
    )


@contextlib.contextmanager
def use(
    spark: SparkSession | None, master: str | None, config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Use the session that a job was given, the running one, or one for as long as the job lasts.

    A job that starts Spark itself, with `config` over our defaults, also stops it.
    """
    if spark is not None:
        if master is not None:
            raise UsageError("give spark= or master=, not both: a session has its master already")
        _check_jvm(spark)
        yield spark
        return
    found = running()
    if found is not None:
        _check_jvm(found)
        if master not in (None, found.sparkContext.master):
            raise UsageError(
                f"a Spark session runs on {found.sparkContext.master!r} already, not on "
                f"{master!r}: stop it first, or give it as spark="
            )
        yield found
        return
    made = session("local[*]" if master is None else master, config=config)
    try:
        yield made
    finally:
        made.stop()


def running() -> SparkSession | None:
    """Return the running session, started by any thread, if there is one."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    found: SparkSession | None = SparkSession.getActiveSession()
    if found is not None:
        return found
    # Active sessions belong to threads: that of another thread is what a builder would return.
    other: Any = SparkSession._instantiatedSession
    return None if other is None or other._sc._jsc is None else other


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect, without a JVM of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _check_jvm(spark: SparkSession) -> None:
    if is_connect(spark):
        raise UsageError(
            "Jobs over a whole store run on a Spark session with a JVM in this process, and this "
            "one is a client of Spark Connect. Run the job with `stratalog pipeline`, or in "
            "another process with master=."
        )


def prepare(spark: SparkSession) -> None:
    """Prepare a session, and this thread, for `format("stratalog")`, if they are not prepared.

    Spark looks for Python data sources in the active session of the calling thread, with the first
    Python on the PATH: a thread that did not start the session has no active one, and a virtual
    environment that is not activated is not on the PATH.
    """
    if is_connect(spark):
        return
    _activate(spark)
    if is_local(spark) and _lacks_our_python(spark):
        register(spark)


def register(spark: SparkSession) -> None:
    """Register `format("stratalog")` with a session and the calling thread.

    Spark finds the package by itself where it is installed for the Python that Spark runs. Call
    this where it is not; before `df.write` in a thread that did not start the session; and where
    Spark was started from a virtual environment that is not activated. The package is sent to the
    executors of a cluster and to a Spark Connect server; its dependencies must be installed there.
    """
    from stratalog.spark.ship import send_artifact, send_package
    from stratalog.spark.source.data_source import StratalogSource

    if is_connect(spark):
        send_artifact(spark)
    else:
        _activate(spark)
        if not is_local(spark):
            send_package(spark)
        elif _lacks_our_python(spark):
            spark.sparkContext.pythonExec = sys.executable
    spark.dataSource.register(StratalogSource)
    _check_found(spark)


def _activate(spark: Any) -> None:
    """Activate a session for this thread, as `createDataFrame` does."""
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def is_local(spark: SparkSession) -> bool:
    """Return whether all of a session runs on this machine."""
    return re.match(r"local(\[|$)", str(spark.sparkContext.master)) is not None


def _lacks_our_python(spark: SparkSession) -> bool:
    """Return whether Spark would run another Python than this one without being configured to."""
    return "PYSPARK_PYTHON" not in os.environ and spark.sparkContext.pythonExec != sys.executable


def _check_found(spark: SparkSession) -> None:
    """Raise unless the Python that Spark runs can load the package."""
    from pyspark.errors import PySparkException

    try:
        _ = spark.read.format("stratalog").load().schema
    except PySparkException as error:
        found = re.findall(r"(?:ModuleNotFound|Import)Error: ([^\n]+)", str(error))
        if not found:
            raise
        raise UsageError(
            f"The Python that Spark runs cannot load stratalog ({found[-1]}). Install it there "
            "with pip install 'stratalog[spark]', or start Spark with the environment variable "
            f"PYSPARK_PYTHON={sys.executable}."
        ) from error

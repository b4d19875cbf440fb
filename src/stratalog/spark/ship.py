"""Sending the package to executors, and a clear error where it did not arrive.

Spark pickles what it sends to executors, and unpickling without the package fails with an unclear
traceback. So readers and writers travel inside of a function that needs only Python, and that
reports what is missing and what to do about it.

After every task a Spark worker runs the garbage collector over everything it has loaded, and takes
no other task meanwhile: a tenth of a second for PySpark and this package. Modules that are loaded
when our first object arrives are never garbage, so they are excluded from then on.
"""

from __future__ import annotations

import gc
import importlib
import importlib.resources
import inspect
import os
import pickle
import sys
import tempfile
import types
import zipfile
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ARCHIVE = "stratalog.zip"
_FINDER = "pyspark_stratalog"
"""The module that Spark looks for."""
_DAEMON = "pyspark.daemon"
"""The program whose workers are reused for many tasks."""
_FROZEN_RATIO = 8
"""Frozen objects per tracked object, below which all objects are frozen again."""


def _unpack(data: bytes) -> Any:
    """Unpickle the object. Runs where this module may not be importable."""
    import pickle
    import platform

    try:
        kind, state = pickle.loads(data)
    except ImportError as error:
        raise ImportError(
            f"stratalog cannot be loaded by the Python that Spark runs on {platform.node()} "
            f"({error}): install it there with pip install 'stratalog[spark]', or call "
            "stratalog.spark.register(spark), which sends it along"
        ) from error
    made = kind.__new__(kind)
    made.__dict__.update(state)
    made.arrived()
    return made


# Spark's pickle sends functions of the main module by value, all others by name.
_unpack_by_value = types.FunctionType(_unpack.__code__, {"__name__": "__main__"}, "unpack")


class Shipped:
    """An object that reports what is missing where it cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_by_value, (pickle.dumps((type(self), self.__getstate__())),)

    @staticmethod
    def arrived() -> None:
        """Run once an object was unpickled."""
        freeze_modules()


def freeze_modules() -> None:
    """Exclude everything that a Spark worker has loaded from garbage collection.

    The first task of a kind may load more, so this is repeated once enough objects are new.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is None or main.name != _DAEMON:
        return
    if len(gc.get_objects()) * _FROZEN_RATIO > gc.get_freeze_count():
        gc.freeze()


def send_package(spark: SparkSession) -> None:
    """Send this package to executors, whether or not they have one of their own."""
    context: Any = spark.sparkContext
    known = context.environment.get("PYTHONPATH") or ""
    if os.path.join(context._temp_dir, _ARCHIVE) in known.split(os.pathsep):
        return  # sent before: executors may be fetching the archive right now
    path = _pack(context._temp_dir)
    context.addPyFile(path)
    # The processes that plan streams only see this setting, not files that were sent.
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (path, known)))


def send_artifact(spark: SparkSession) -> None:
    """Send this package to a Spark Connect server and its executors."""
    from pyspark.errors import PySparkException

    try:
        with tempfile.TemporaryDirectory() as directory:
            spark.addArtifacts(_pack(directory), pyfile=True)
    except PySparkException as error:
        if "ARTIFACT_ALREADY_EXISTS" not in str(error):  # otherwise it was sent before
            raise


def _pack(directory: str) -> str:
    """Write the package to an archive that Python can import from; returns its path."""
    path = os.path.join(directory, _ARCHIVE)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add_directory(archive, importlib.resources.files("stratalog"), "stratalog")
        archive.writestr(f"{_FINDER}.py", inspect.getsource(importlib.import_module(_FINDER)))
    return path


def _add_directory(archive: zipfile.ZipFile, directory: Traversable, name: str) -> None:
    for one in directory.iterdir():
        if one.is_dir() and one.name != "__pycache__":
            _add_directory(archive, one, f"{name}/{one.name}")
        elif one.is_file() and one.name.endswith((".py", ".typed")):
            archive.writestr(f"{name}/{one.name}", one.read_bytes())

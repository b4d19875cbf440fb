"""Getting the package to executors, and saying so where it did not arrive.

What Spark sends to its executors is pickled, and what cannot be unpickled there fails with a
traceback that says little. So readers and writers travel inside of a function that needs nothing
but Python, and that says what is missing and what to do about it.

A worker of Spark's looks through everything it has loaded for garbage after every task, and takes
no other task meanwhile: a tenth of a second for all that PySpark and we load. What is there when
the first of ours arrives is there to stay, so it is left out from then on.
"""

from __future__ import annotations

import gc
import importlib
import importlib.resources
import inspect
import os
import pickle
import sys
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
"""What runs the workers that are used for one task after another."""
_SETTLED_TIMES = 8
"""How much more is settled than not, at least."""


def _unpack(data: bytes) -> Any:
    """Make the object again. Runs where nothing of this module may be there."""
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


# Spark's pickle sends functions of the main program as they are, all others by name.
_unpack_by_value = types.FunctionType(_unpack.__code__, {"__name__": "__main__"}, "unpack")


class Shipped:
    """An object that says what is missing where it cannot be made again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_by_value, (pickle.dumps((type(self), self.__getstate__())),)

    @staticmethod
    def arrived() -> None:
        """Is called where one was made again."""
        settle()


def settle() -> None:
    """In a worker of Spark's: what is loaded by now is no garbage, and not to be looked through.

    More may be loaded later, by the first task of a kind; so this is done again when it has become
    much.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is None or main.name != _DAEMON:
        return
    if len(gc.get_objects()) * _SETTLED_TIMES > gc.get_freeze_count():
        gc.freeze()


def send_package(spark: SparkSession) -> None:
    """Have executors use this very package, whether or not they have one of their own."""
    context: Any = spark.sparkContext
    path = os.path.join(context._temp_dir, _ARCHIVE)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add_directory(archive, importlib.resources.files("stratalog"), "stratalog")
        archive.writestr(f"{_FINDER}.py", inspect.getsource(importlib.import_module(_FINDER)))
    context.addPyFile(path)
    # The processes that plan streams do not look for files that were sent, only at this.
    known = context.environment.get("PYTHONPATH")
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (path, known)))


def _add_directory(archive: zipfile.ZipFile, directory: Traversable, name: str) -> None:
    for one in directory.iterdir():
        if one.is_dir() and one.name != "__pycache__":
            _add_directory(archive, one, f"{name}/{one.name}")
        elif one.is_file() and one.name.endswith((".py", ".typed")):
            archive.writestr(f"{name}/{one.name}", one.read_bytes())

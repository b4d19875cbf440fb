"""Spark for one command: started quietly, stopped when the command is done."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.spark.session import use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://...; all cores of this "
        "machine if not given.",
    ),
]

Progress = Callable[[int, int, str], None]


@contextlib.contextmanager
def spark_for(master: str | None, progress: Progress | None = None) -> Iterator[SparkSession]:
    """A session on a master; what Java says as it starts is shown only if it does not."""
    if progress is not None:
        progress(0, 0, "starting Spark")
    with contextlib.ExitStack() as stack:
        with hidden_errors() as hidden:
            try:
                spark = stack.enter_context(use(None, master))
            except Exception:
                hidden.show()
                raise
        try:
            yield spark
        except Exception as error:
            from stratalog.spark.jobs.work import WorkError
            from stratalog.spark.spark_errors import is_spark_error, spark_sentence

            if not is_spark_error(error):
                raise
            raise WorkError(f"Spark failed: {spark_sentence(error)}") from error


class Hidden:
    """The lines that went to standard error meanwhile."""

    def __init__(self, file: Any, target: int) -> None:
        self._file = file
        self._target = target

    def show(self) -> None:
        """Let it be seen after all."""
        self._file.seek(0)
        os.write(self._target, self._file.read())

    def report(self, line: str) -> None:
        """Print a line there ourselves, if it is a terminal."""
        if os.isatty(self._target):
            os.write(self._target, f"{line}\n".encode())


@contextlib.contextmanager
def hidden_errors() -> Iterator[Hidden]:
    """Keep standard error of this process, and of those it starts, to ourselves.

    The JVM goes on writing there for as long as it runs. What matters comes as an exception.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield Hidden(file, kept)
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)

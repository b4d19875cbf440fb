"""Sessions as users have them: in other threads, in an environment that is not activated, Connect.

`df.write` in a second thread, and everything in an environment that was not activated, ended with
DATA_SOURCE_NOT_FOUND; every call of ours on a Connect session with JVM_ATTRIBUTE_NOT_SUPPORTED.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.cluster import python_without_stratalog

import stratalog
import stratalog.spark
from stratalog.errors import UsageError
from stratalog.spark import jobs
from stratalog.spark.session import use


def _in_a_thread(action: Callable[[], Any]) -> Any:
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(action())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (result,) = outcome
    if isinstance(result, Exception):
        raise result
    return result


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with five records, and a queue with a message."""
    with stratalog.open(tmp_path / "data", shards=1) as store:
        store.topic("orders").append_many([b"%d" % number for number in range(5)])
        store.queue("jobs").put(b"one")
    return tmp_path / "data"


def _values(path: Path, topic: str) -> list[bytes | None]:
    with stratalog.open(path, read_only=True) as store:
        return store.topic(topic).read_values()


def test_a_registered_thread_writes(spark: Any, data: Path) -> None:
    """Sessions are active by thread, and Spark looks for the sink in the active one alone."""
    frame = spark.range(3).selectExpr("cast(id AS string) AS value")

    def write() -> None:
        stratalog.spark.register(spark)
        frame.write.format("stratalog").option("topic", "t").mode("append").save(str(data))

    _in_a_thread(write)
    assert sorted(_values(data, "t")) == [b"0", b"1", b"2"]  # type: ignore[type-var]


def test_what_is_read_with_our_words_makes_a_thread_ready(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    """A stream from `read_stream` into a sink, and the DataFrames of the package."""

    def copy() -> int:
        stream = stratalog.spark.read_stream(
            spark, data, "orders", columns=["value"], startingOffsets="earliest"
        )
        writer = stream.writeStream.format("stratalog").option("topic", "copy")
        writer = writer.option("checkpointLocation", str(tmp_path / "state"))
        assert writer.trigger(availableNow=True).start(str(data)).awaitTermination(120)
        return stratalog.spark.read(spark, data, "copy").count()

    assert _in_a_thread(copy) == 5


# A job in a thread that had no active session took the running one for its own, and stopped it.
def test_a_job_in_another_thread_leaves_the_session_running(spark: Any, data: Path) -> None:
    """It finds the session that runs."""
    assert _in_a_thread(lambda: jobs.verify(data)).ok
    assert spark.range(3).count() == 3

    def other() -> None:
        with use(None, "local[7]"):
            pass

    with pytest.raises(UsageError, match="runs on 'local\\[2\\]' already"):
        _in_a_thread(other)


_SCENES = """
import json, os, sys, threading
import stratalog.spark
from pyspark.sql import SparkSession
from stratalog.errors import StratalogError
from stratalog.spark import jobs

path, state, kind = sys.argv[1:4]
os.environ["SPARK_TESTING"] = "1"  # a port of its own for the server of Connect
builder = SparkSession.builder.config("spark.ui.enabled", "false")
builder = builder.config("spark.log.level", "OFF")
builder = builder.master("local[2]") if kind == "classic" else builder.remote("local[2]")
spark = builder.getOrCreate()
frame = spark.createDataFrame([(b"x",)], "value binary")

def write():
    frame.write.format("stratalog").option("topic", "t").mode("append").save(path)

def in_a_thread():
    failures = []
    def work():
        try:
            stratalog.spark.register(spark)
            write()
        except Exception as error:
            failures.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]

def stream():
    source = stratalog.spark.read_stream(spark, path, "orders", startingOffsets="earliest")
    writer = source.writeStream.format("stratalog").option("topic", "copy")
    writer = writer.option("checkpointLocation", state).trigger(availableNow=True)
    assert writer.start(path).awaitTermination(120)

scenes = {
    "read": lambda: stratalog.spark.read(spark, path, "orders").count(),
    "register": lambda: stratalog.spark.register(spark),
    "format": lambda: spark.read.format("stratalog").option("topic", "orders").load(path).count(),
    "topics": lambda: stratalog.spark.topics(spark, path).count(),
    "queue": lambda: stratalog.spark.queue(spark, path, "jobs").count(),
    "write": write,
    "write in a thread": in_a_thread,
    "stream": stream,
    "verify": lambda: jobs.verify(path, spark=spark).ok,
    "found": lambda: jobs.verify(path).ok,
    "export": lambda: jobs.export(path, state + "-out", spark=spark).records,
}
found = {}
for name in sys.argv[4:] or scenes:
    print(name, file=sys.stderr, flush=True)  # where it was, if it takes too long
    try:
        found[name] = scenes[name]()
    except StratalogError as error:
        found[name] = type(error).__name__ + ": " + str(error)
    except Exception as error:
        found[name] = "NOT TYPED " + type(error).__name__ + ": " + str(error)[:2000]
print(json.dumps(found))
"""


# A machine that is busy takes minutes for what else takes half of one.
pytestmark = pytest.mark.timeout(600)


def _scenes(data: Path, kind: str, *scenes: str, **environment: str | None) -> dict[str, Any]:
    """Play scenes in a process of its own; returns what came of each."""
    given = {k: v for k, v in (os.environ | environment).items() if v is not None}
    done = subprocess.run(
        [sys.executable, "-c", _SCENES, str(data), str(data.parent / "state"), kind, *scenes],
        env=given, cwd=data.parent, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _path_without_python(directory: Path) -> str:
    """A PATH with Java, and with a `python3` that has nothing of ours."""
    directory.mkdir()
    python = directory / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return os.pathsep.join([str(directory), os.path.dirname(str(shutil.which("java"))), "/bin"])


def test_an_environment_that_is_not_activated_works(data: Path, tmp_path: Path) -> None:
    """Spark runs the `python3` of the PATH; our words make it run ours."""
    found = _scenes(
        data, "classic", PATH=_path_without_python(tmp_path / "bin"), PYSPARK_PYTHON=None
    )
    assert found == {
        "read": 5, "register": None, "format": 5, "topics": 2, "queue": 1, "write": None,
        "write in a thread": None, "stream": None, "verify": True, "found": True, "export": 13,
    }  # fmt: skip
    assert _values(data, "t") == [b"x", b"x"]


def test_a_connect_session_reads_registers_and_writes(data: Path) -> None:
    """Jobs, which need a JVM, say so in one sentence."""
    found = _scenes(data, "connect", PYSPARK_PYTHON=sys.executable)
    for name in ("verify", "found", "export"):
        error = found.pop(name)
        assert error.startswith("UsageError: Jobs over a whole store run on a Spark session with")
    assert found == {
        "read": 5, "register": None, "format": 5, "topics": 2, "queue": 1, "write": None,
        "write in a thread": None, "stream": None,
    }  # fmt: skip
    assert _values(data, "t") == [b"x", b"x"]


def test_a_connect_server_without_the_package_is_sent_it(data: Path, tmp_path: Path) -> None:
    """By `register`: reads and writes work then."""
    python = python_without_stratalog(tmp_path / "executors")
    found = _scenes(data, "connect", "register", "read", "write", PYSPARK_PYTHON=python)
    assert found == {"register": None, "read": 5, "write": None}


def test_a_server_that_cannot_load_the_package_is_named(data: Path, tmp_path: Path) -> None:
    """With what to install, or to set, in place of DATA_SOURCE_NOT_FOUND and a stack."""
    path = _path_without_python(tmp_path / "bin")
    found = _scenes(data, "connect", "register", PATH=path, PYSPARK_PYTHON=None)
    assert found["register"].startswith("UsageError: The Python that Spark runs cannot load")
    assert "pip install 'stratalog[spark]'" in found["register"]
    assert f"PYSPARK_PYTHON={sys.executable}" in found["register"]

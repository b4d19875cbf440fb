"""Where the package is not installed: it is sent along, or what is missing is said."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
from pyspark.sql.types import BinaryType, StructType
from tests.conftest import OpenStore
from tests.spark.frames import pickled, reader

from stratalog.spark.jobs import work
from stratalog.spark.ship import freeze_modules, send_package
from stratalog.spark.source.sink import batch_writer

LIBRARIES = Path(pyspark.__file__).parent.parent


def elsewhere(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that knows these paths and not ours."""
    setup = f"import sys; sys.path[:] = [p for p in sys.path if p != {_OURS!r}]\n"
    setup += f"sys.path += {[str(path) for path in paths]!r}\n"
    return subprocess.run(
        [sys.executable, "-S", "-c", setup + code], capture_output=True, text=True, check=False
    )


_OURS = str(Path(__file__).parents[2] / "src")


def test_an_executor_without_the_package_says_so(open_store: OpenStore, tmp_path: Path) -> None:
    """In an error that says what to do; with the package in an archive it reads."""
    store = open_store()
    store.topic("t").append_many([b"1", b"2"])
    batch_reader = reader(store.path, "t")
    (partition,) = batch_reader.partitions()
    (tmp_path / "sent").write_bytes(pickled((batch_reader, partition)))
    code = f"""
import pickle
reader, partition = pickle.loads(open({str(tmp_path / "sent")!r}, "rb").read())
print(sum(batch.num_rows for batch in reader.read(partition)))
import stratalog
print(stratalog.__file__)
"""
    without = elsewhere(code, LIBRARIES)
    assert "ImportError: stratalog cannot be loaded by the Python that Spark runs" in without.stderr
    assert "No module named 'stratalog'" in without.stderr
    assert "stratalog.spark.register(spark), which sends it along" in without.stderr

    sent: list[str] = []
    context = SimpleNamespace(_temp_dir=str(tmp_path), addPyFile=sent.append, environment={})
    spark: Any = SimpleNamespace(sparkContext=context)
    send_package(spark)
    (archive,) = sent
    with_it = elsewhere(code + "import pyspark_stratalog", LIBRARIES, Path(archive))
    assert with_it.returncode == 0, with_it.stderr
    assert with_it.stdout.split() == ["2", f"{archive}/stratalog/__init__.py"]


def test_the_code_that_says_so_needs_nothing_else() -> None:
    """It is sent as it is, not as a name that would have to be looked up."""
    assert b"stratalog.spark.ship" not in pickled(reader("/x", "t"))


def test_writers_travel_the_same_way(tmp_path: Path) -> None:
    """And are the same at the other end."""
    schema = StructType().add("value", BinaryType())
    writer = batch_writer(schema, {"path": str(tmp_path / "data"), "topic": "t"}, overwrite=False)
    sent = pickled(writer)
    assert b"stratalog.spark.ship" not in sent
    assert vars(pickle.loads(sent)) == vars(writer)


def test_workers_do_not_look_through_what_is_loaded_after_every_task(spark: Any) -> None:
    """Modules that our tasks load are frozen; a process that is no worker is left unchanged."""

    def look(_: int) -> tuple[int, int]:
        import gc

        return gc.get_freeze_count(), len(gc.get_objects())

    for _ in range(2):  # the second finds what the first has loaded
        seen = work.run(spark, look, [1, 2], [1, 1])
    for settled, others in seen:
        assert settled > 10_000
        assert others * 4 < settled

    before = gc.get_freeze_count()
    freeze_modules()
    assert gc.get_freeze_count() == before

"""Sealed segments that shrink while they are mapped: an error of the read, and not of the process.

A page past the end of a mapped file raises SIGBUS when it is touched, which once killed every
process that had a store open when a backup tool or an editor cut one of its files short. Each case
runs in a process of its own, which has to live.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stratalog.fs import posix

pytestmark = pytest.mark.slow

PROGRAM = """
    import glob, os, sys
    import stratalog
    from stratalog import CorruptionError
    path, way, place = sys.argv[1:]

    with stratalog.open(path) as store:
        topic = store.create_topic("t", segment_bytes=1 << 21, compression="none")
        for number in range(40):
            topic.append_many([os.urandom(1000) for _ in range(100)], durability="disk")
        store.checkpoint()
    [name] = glob.glob(path + "/topics/*/*.seg")[:1]
    size = os.path.getsize(name)

    store = stratalog.open(path, read_only=way != "writer")
    topic = store.topic("t")
    first = int(os.path.basename(name).split(".")[0])

    def spark():
        from stratalog.spark.source.data_source import StratalogSource
        source = StratalogSource({"path": path, "topic": "t"})
        reader = source.reader(source.schema())
        for partition in reader.partitions():
            for batch in reader.read(partition):
                batch.to_pydict()

    def records():
        for _ in topic.read(): pass

    def arrow():
        for batch in topic.read_arrow(): batch.to_pydict()

    def lookups():
        for offset in range(first, first + 2000, 7):
            [_] = topic.read(offset, limit=1)

    def times():
        for offset in range(first, first + 2000, 7):
            topic.offset_at(stamps[offset - first])

    ways = dict(writer=records, view=records, arrow=arrow, lookups=lookups, times=times,
                spark=spark)
    read = ways[way]
    stamps = [record.timestamp for record in topic.read(first, limit=2000)]
    read()  # everything is mapped, verified, and remembered
    pages = {"nothing": 0, "a page": 4096, "a byte less": 8191, "a byte more": 8193,
             "half": size // 2 // 4096 * 4096, "a page less": (size - 1) // 4096 * 4096}
    os.truncate(name, pages[place])
    try:
        read()
    except CorruptionError as error:
        assert os.path.basename(name) in str(error) or "damaged part" in str(error), error
        print("an error")
    else:
        print("nothing was read")
    try:
        store.close()
    except stratalog.StratalogError:
        pass
    print("alive")
"""

PLACES = ("nothing", "a page", "a byte less", "a byte more", "half", "a page less")


@pytest.mark.skipif(not posix.CAN_POPULATE, reason="files are not mapped here")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", ["writer", "view", "arrow", "lookups", "times", "spark"])
def test_a_segment_that_shrinks_is_an_error_of_the_read(
    tmp_path: Path, way: str, place: str
) -> None:
    """The read that needs what is gone raises `CorruptionError`; the process goes on."""
    code = textwrap.dedent(PROGRAM)
    arguments = [sys.executable, "-c", code, str(tmp_path / "s"), way, place]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "alive"
    # A lookup by time goes on to the next segment; one by offset may not need the last page.
    assert said[0] == "an error" or way == "times" or (way, place) == ("lookups", "a page less")


def test_where_pages_cannot_be_asked_for_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older kernel reads sealed segments by `pread`, with the same result."""
    import stratalog

    with stratalog.open(tmp_path / "s") as store:
        topic = store.create_topic("t", segment_records=100)
        topic.append_many([b"%d" % number for number in range(1000)])
        store.checkpoint()
        mapped = topic.read_values(0)
    monkeypatch.setattr(posix, "CAN_POPULATE", False)
    with stratalog.open(tmp_path / "s") as store:
        topic = store.topic("t")
        assert topic.read_values(0) == mapped
        assert topic.read_arrow().read_all().num_rows == 1000
        [record] = topic.read(517, limit=1)
        assert record.value == b"517"  # type: ignore[union-attr]

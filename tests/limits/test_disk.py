"""A small real file system that is filled to the brim, and a bound on the size of files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.limits.process import run_limited


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Eight megabytes of tmpfs; needs root."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


_FILLED = """
import os, sys
import stratalog
from stratalog.options import StoreOptions
from stratalog.handles.store import Store

path, filler = sys.argv[1], sys.argv[2]
options = StoreOptions.build({"shards": 1, "disk_reserve_bytes": 0, "log_file_bytes": 1 << 18})
store = Store(path, options, background=False)
topic = store.create_topic("orders", segment_records=50)
sent = 0

def append():
    global sent
    assert topic.append(b"%d" % sent * 500) == sent
    sent += 1

for _ in range(100):
    append()
refused = 0
for turn in range(3):
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            pass
    calls = [append, append, store.checkpoint, store.snapshot, store.compact,
             lambda: store.backup(path + "-copy"), store.sync, append]
    for call in calls:
        try:
            call()
        except stratalog.DiskFullError:
            refused += 1
    assert len(topic.read_values()) == sent
    os.unlink(filler)
    for _ in range(20):
        append()
    store.checkpoint()
    store.snapshot()
store.close()
with stratalog.open(path) as store:
    values = store.topic("orders").read_values()
    assert values == [b"%d" % number * 500 for number in range(sent)]
assert stratalog.verify(path).ok
print(refused)
"""


def test_every_operation_on_a_full_disk_says_so_and_goes_on_once_there_is_space(
    small_disk: Path,
) -> None:
    """Nothing that was acknowledged is lost, and nothing that was refused is there."""
    assert int(run_limited(_FILLED, str(small_disk / "data"), str(small_disk / "filler"))) > 3


_BOUNDED = """
import resource, sys
import stratalog
from stratalog.options import StoreOptions
from stratalog.handles.store import Store

options = StoreOptions.build({"shards": 1, "log_file_bytes": 1 << 20, "log_chunk_bytes": 1 << 14})
store = Store(sys.argv[1], options, background=False)
topic = store.topic("orders")
sent = refused = 0
while sent < 400:
    try:
        assert topic.append(b"%d" % sent * 500) == sent
        sent += 1
    except stratalog.DiskFullError as error:
        assert "too large" in str(error), error
        refused += 1
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.close()
with stratalog.open(sys.argv[1]) as store:
    expected = [b"%d" % number * 500 for number in range(400)]
    assert store.topic("orders").read_values() == expected
print(refused)
"""


def test_a_bound_on_the_size_of_files_is_an_error_that_passes(tmp_path: Path) -> None:
    """`ulimit -f` is met by an append, which is refused, and taken once the bound is raised."""
    assert int(run_limited(_BOUNDED, str(tmp_path / "data"), FSIZE=1 << 17)) == 1

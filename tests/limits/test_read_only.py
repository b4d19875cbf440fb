"""A file system that turns read-only under a live store, as ext4 does after an error of its disk.

The kernel refuses to remount a file system read-only while a file is open for writing, which a
store always has. So this is an ext4 in a file, and `remount,abort` has it meet an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stratalog
from tests.limits.process import run_limited

Remount = Callable[[], None]


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[tuple[Path, Remount]]:
    """A directory on a file system of its own, and what unmounts and mounts it."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    mount = ["mount", "-o", "loop,errors=remount-ro", str(image), str(place)]
    done = subprocess.run(mount, capture_output=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")

    def again() -> None:
        subprocess.run(["umount", str(place)], check=True)
        # Code 1: there were errors, and they were mended.
        assert subprocess.run(["e2fsck", "-fp", str(image)], capture_output=True).returncode <= 1
        subprocess.run(mount, check=True)

    try:
        yield place, again
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


_LIVE = """
import subprocess, sys
import stratalog
from stratalog.options import StoreOptions
from stratalog.handles.store import Store

disk, path = sys.argv[1], sys.argv[1] + "/data"
options = StoreOptions.build({"shards": 1, "log_file_bytes": 1 << 16, "disk_reserve_bytes": 0})
store = Store(path, options, background=False)
topic = store.create_topic("orders", segment_records=50)
work = store.queue("work")
for number in range(120):
    assert topic.append(b"%d" % number * 50) == number
    work.put(b"%d" % number)
    if number == 60:
        store.checkpoint()
message = work.get()
reader = iter(topic.read())
assert next(reader).offset == 0

subprocess.run(["mount", "-o", "remount,abort", disk], check=True)
try:
    open(disk + "/probe", "w")
except OSError as error:
    assert error.errno == 30, error
else:
    sys.exit("the file system can still be written to")

def batch():
    with store.batch() as one:
        one.topic("orders").append(b"refused")

writes = {
    "append": lambda: topic.append(b"refused"),
    "append_many": lambda: topic.append_many([b"refused"] * 3),
    "put": lambda: work.put(b"refused"),
    "ack": lambda: work.ack(message),
    "batch": batch,
    "delete": lambda: topic.delete(offsets=[3]),
    "create_topic": lambda: store.create_topic("refused"),
    "drop_topic": lambda: store.drop_topic("orders"),
    "backup": lambda: store.backup(disk + "/copy"),
    "repair": lambda: stratalog.repair(path),
    "open": lambda: stratalog.open(path),
    "new": lambda: stratalog.open(disk + "/new"),
    "purge": lambda: store.compact(purge=True),
    "append again": lambda: topic.append(b"refused"),
}
for name, call in writes.items():
    try:
        call()
    except stratalog.StratalogError:
        continue
    sys.exit(f"{name} was not refused")
calls = [store.checkpoint, store.snapshot, store.compact, store.sync, lambda: work.get(timeout=0)]
for call in calls:
    try:
        call()  # there may be nothing to do
    except stratalog.StratalogError:
        pass

expected = [b"%d" % number * 50 for number in range(120)]
assert [one.offset for one in reader] == list(range(1, 120))
assert topic.read_values() == expected
assert topic.read_arrow().read_all()["value"].to_pylist() == expected
with stratalog.open(path, read_only=True) as view:
    assert view.topic("orders").read_values() == expected
assert stratalog.verify(path).ok
try:
    store.close()
except stratalog.StratalogError:
    pass
"""


def test_a_disk_that_turns_read_only_is_an_error_of_every_write(
    ext4: tuple[Path, Remount],
) -> None:
    """Writes are refused, reads go on, and all that was acknowledged is there when it is mended."""
    disk, mend = ext4
    run_limited(_LIVE, str(disk))
    mend()
    assert stratalog.verify(disk / "data").ok
    with stratalog.open(disk / "data") as store:
        values = store.topic("orders").read_values()
        assert values == [b"%d" % number * 50 for number in range(120)]
        assert store.topic("orders").append(b"more") >= 120
        work = store.queue("work").stats()
        assert work.waiting + work.pending == 120, "the ack was refused"
    assert stratalog.verify(disk / "data").ok

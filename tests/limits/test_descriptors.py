"""Descriptors: a store has few files open, however many topics it has.

1,100 topics at the usual limit of 1,024 once ended a service: the first checkpoint left the open
segment of every topic open, upkeep failed for ever, reads raised, the next rotation poisoned its
shard, and the whole process could open no file.
"""

from __future__ import annotations

from pathlib import Path

from tests.limits.process import run_limited

_MANY_TOPICS = """
import os, sys
import stratalog
from stratalog.options import StoreOptions
from stratalog.handles.store import Store

path, topics = sys.argv[1], int(sys.argv[2])
highest = 0

def look():
    global highest
    highest = max(highest, len(os.listdir("/proc/self/fd")))

def values(store):
    for number in range(topics):
        expected = [b"%d-%d" % (number, turn) for turn in range(3)]
        assert store.topic(f"t{number}").read_values() == expected, number
        look()

options = StoreOptions.build({"durability": "disk", "checkpoint_interval": 3600.0,
                              "log_file_bytes": 1 << 16})
store = Store(path, options, background=False)
for number in range(topics):
    store.create_topic(f"t{number}", segment_records=2)
for turn in range(3):
    for number in range(topics):
        store.topic(f"t{number}").append(b"%d-%d" % (number, turn))
    store.checkpoint()
    look()
values(store)
store.snapshot()
# Readers that stop half-way, one per topic, and tables that hold maps.
readers = [iter(store.topic(f"t{number}").read()) for number in range(topics)]
assert [next(reader).value for reader in readers][:2] == [b"0-0", b"1-0"]
look()
tables = [store.topic(f"t{number}").read_arrow().read_all() for number in range(topics)]
look()
assert sum(len(list(reader)) for reader in readers) == 2 * topics
assert all(table["value"].to_pylist()[0] == b"%d-0" % n for n, table in enumerate(tables))
del tables, readers
store.compact()
store.backup(path + "-copy")
look()
for record in store.topic("t0").watch(start=0, timeout=0.01):
    look()
store.close()
with stratalog.open(path) as store:
    values(store)
with stratalog.open(path + "-copy", read_only=True) as store:
    values(store)
report = stratalog.verify(path)
assert report.ok, report
look()
print(highest)
"""


def test_two_thousand_topics_work_with_256_descriptors(tmp_path: Path) -> None:
    """Appends, checkpoints, reads, readers half-way, tables, compaction, backup, verify."""
    highest = int(run_limited(_MANY_TOPICS, str(tmp_path / "data"), "2000", NOFILE=256))
    assert highest < 128


_ELSEWHERE = """
import os, sys
import stratalog
import stratalog.tools.verify  # an import takes a descriptor, too
from stratalog.options import StoreOptions
from stratalog.handles.store import Store

options = StoreOptions.build({"shards": 1, "log_file_bytes": 1 << 14, "durability": "fsync"})
store = Store(sys.argv[1], options, background=False)
topic = store.topic("orders")
others = []
sent = failed = 0
while sent < 200:
    if sent % 20 == 10:  # another part of the program takes every descriptor there is
        try:
            while True:
                others.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    try:
        assert topic.append(b"%d" % sent * 200) == sent
        sent += 1
    except stratalog.TooManyFilesError as error:
        assert isinstance(error, stratalog.PressureError)
        failed += 1
        while others:
            os.close(others.pop())
try:
    while True:
        others.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for call in (store.checkpoint, store.snapshot, store.compact, lambda: store.backup("copy"),
             lambda: stratalog.verify(sys.argv[1]), lambda: stratalog.open(sys.argv[1] + "2")):
    try:
        call()
    except stratalog.TooManyFilesError:
        failed += 1
while others:
    os.close(others.pop())
store.checkpoint()
assert [value[:3] for value in topic.read_values()][:2] == [b"000", b"111"]
store.close()
with stratalog.open(sys.argv[1]) as store:
    assert store.topic("orders").append(b"more") == 200
print(failed)
"""


def test_running_out_of_descriptors_is_an_error_that_passes(tmp_path: Path) -> None:
    """Every call raises `TooManyFilesError` or succeeds; nothing is poisoned, and all goes on."""
    assert int(run_limited(_ELSEWHERE, str(tmp_path / "data"), NOFILE=128)) > 3


def test_the_bound_is_an_option(tmp_path: Path) -> None:
    """`open_files_max` holds whatever the limit of the process is."""
    option = '"durability": "disk", "shards": 2, "open_files_max": 40,'
    code = _MANY_TOPICS.replace('"durability": "disk",', option)
    code, _, _ = code.partition("store.compact()")
    code += "store.close()\nprint(highest)\n"
    assert int(run_limited(code, str(tmp_path / "data"), "150")) < 60

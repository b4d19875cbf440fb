"""Address space: where memory ends, calls raise `OutOfMemoryError` or succeed, and no call half."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.limits.process import run_limited

_NO_ROOM = """
import gc, resource, sys
import pyarrow as pa
import stratalog
import stratalog.tools.verify
from stratalog.options import StoreOptions
from stratalog.handles.store import Store

path, compression = sys.argv[1], sys.argv[2]
options = StoreOptions.build({"shards": 1, "log_file_bytes": 1 << 22, "disk_reserve_bytes": 0})
store = Store(path, options, background=False)
topic = store.create_topic("orders", segment_records=50, compression=compression)
keyed = store.create_topic("keyed", segment_records=50, compact=True, compression=compression)
work = store.queue("work")
sent, puts = [], 0

def value(number, size=50_000):
    return b"%d," % number * (size // len(b"%d," % number))

def check(store):
    assert store.topic("orders").read_values() == sent
    state = {one.key: one.value for one in store.topic("keyed").read()}
    assert state == latest
    stats = store.queue("work").stats()
    assert stats.waiting + stats.delayed + stats.pending + stats.dead == puts, (stats, puts)

latest = {}
for number in range(160):
    sent.append(value(number))
    assert topic.append(sent[-1]) == number
    latest[b"%d" % (number % 20)] = sent[-1]
    keyed.append(sent[-1], key=b"%d" % (number % 20))
    if number % 4 == 0:
        work.put(sent[-1])
        puts += 1
    if number == 90:
        store.checkpoint()
check(store)
topic.read_arrow().read_next_batch()  # what is imported by a first call is

large, small = value(7, 3_000_000), value(8, 100_000)
table = pa.table({"value": pa.array([small] * 20, pa.binary())})

def append():
    assert topic.append(large) == len(sent)
    sent.append(large)

def append_many():
    assert topic.append_many([small] * 30) == (len(sent), len(sent) + 29)
    sent.extend([small] * 30)

def append_arrow():
    assert topic.append_arrow(table)[0] == len(sent)
    sent.extend([small] * 20)

def append_keyed():
    keyed.append(large, key=b"large")
    latest[b"large"] = large

def put():
    global puts
    work.put(large)
    puts += 1

def batch():
    with store.batch() as one:
        one.topic("orders").append(small)
        one.topic("keyed").append(small, key=b"0")
    sent.append(small)
    latest[b"0"] = small

def get():
    work.nack(work.get(timeout=0))

def view():
    with stratalog.open(path, read_only=True) as store:
        store.topic("orders").read_values(0, 3)

calls = [append, append_many, append_arrow, append_keyed, put, batch, get, view,
         topic.read_values, lambda: list(topic.read()), lambda: sum(1 for _ in topic.read()),
         lambda: topic.diff(limit=1000), lambda: list(topic.watch(0, timeout=0)),
         lambda: [len(one) for one in topic.read_arrow()],
         lambda: topic.delete(tag="none"), lambda: topic.offset_at(5.0),
         store.checkpoint, store.snapshot, store.compact, lambda: store.compact(purge=True),
         lambda: stratalog.verify(path)]
for call in calls:
    call()  # what is imported by a first call is there
check(store)
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
refused = done = 0
for room in (0, 1 << 18, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20):
    for call in calls:
        gc.collect()
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
        try:
            call()
            done += 1
        except stratalog.MemoryPressureError:
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    check(store)
store.close()
with stratalog.open(path) as store:
    check(store)
report = stratalog.verify(path)
assert report.ok, report.problems
print(refused, done)
"""


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_no_call_leaves_something_half_done_where_memory_ends(
    tmp_path: Path, compression: str
) -> None:
    """Appends, reads, tables, queues, batches and upkeep, with less and less room to work in."""
    refused, done = run_limited(_NO_ROOM, str(tmp_path / "data"), compression).split()
    assert int(refused) > 10
    assert int(done) > 50

"""A table at the limit of its memory, in a process that cannot have more."""

from __future__ import annotations

from pathlib import Path

from tests.limits.process import run_limited

_FULL = """
import resource, sys
import pyarrow
import stratalog

store = stratalog.open(sys.argv[1], durability="disk", memory_bytes=12 << 20, shards=1)
table = store.table("t")
table.put_many({"warm": b"up"})
assert table.get("warm") == b"up"
list(table.scan())
for call in (store.checkpoint, store.snapshot, store.compact):
    call()  # what is imported by a first call is there
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), hard))
budget = store.budget
limit, reserve = budget.limit("tables"), budget.reserve

# Old versions go first: every key keeps its newest value in memory.
first = 4_000
for turn in range(4):
    for start in range(0, first, 500):
        numbers = range(start, start + 500)
        table.put_many({f"k{n:06d}": b"%d:%d" % (turn, n) + bytes(200) for n in numbers})
    table.version
assert budget.used()["tables"] <= limit, budget.used()
histories = [len(table.history(f"k{n:06d}")) for n in range(0, first, 97)]
assert min(histories) < 4, histories
in_memory = sum(table.projection.state.newest(b"k%06d" % n).value is not None for n in range(first))
assert in_memory == first, in_memory
versions = sum(histories)

# Then values are left to the log, then the reserve is used up, then puts are refused.
count = first
try:
    while True:
        table.put_many({f"k{n:06d}": b"3:%d" % n + bytes(200) for n in range(count, count + 500)})
        count += 500
except stratalog.MemoryPressureError as error:
    assert "memory_bytes" in str(error)
assert count > 3 * first, count
table.version  # all that has entered is in the state, and accounted for
held = budget.used()["tables"]
assert limit < held <= limit + reserve, (held, limit, reserve)
for call in (lambda n: table.put(f"more {n}", b""), lambda n: table.add(f"counter {n}")):
    try:
        for n in range(5000):
            call(n)
        raise AssertionError("nothing was refused")
    except stratalog.MemoryPressureError:
        pass
try:
    table.put_many({f"{n}": bytes(15_000) for n in range(1_000)})
    raise AssertionError("a batch that never fits was taken")
except (stratalog.TooLargeError, stratalog.MemoryPressureError):
    pass

# Everything that was acknowledged is there, and read from the log.
for n in range(0, count, 501):
    assert table[f"k{n:06d}"] == b"3:%d" % n + bytes(200), n
assert table.projection.state.newest(b"k000000").value is None

# Deletions are taken, and make room.
table.version
full = budget.used()["tables"]
for n in range(0, count, 9):
    table.delete(f"k{n:06d}")
table.version
table.put("one more", b"x")
assert table["one more"] == b"x"
assert budget.used()["tables"] < full
left = len(table)
store.close()
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
with stratalog.open(sys.argv[1], read_only=True) as store:
    again = store.table("t")
    assert len(again) == left
    assert again["k000001"] == b"3:1" + bytes(200)
print(count, versions)
"""


def test_a_table_at_its_limit_sheds_then_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """Old versions, then values, then the reserve, then `MemoryPressureError`; never a kill."""
    count, _ = run_limited(_FULL, str(tmp_path / "data")).split()
    assert int(count) > 20_000

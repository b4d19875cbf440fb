"""The catalogue: every workload, its contestants, its sizes.

Sizes are records per round, chosen so that a round takes some 20 to 200 ms with each contestant:
long against the clock and the scheduler, short enough for many rounds and for data that stays
small. They are the same in quick and full runs, which differ in rounds and in what is scanned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks import (
    consuming,
    latency,
    limits,
    own,
    probes,
    queues,
    rivals,
    routes,
    sealed,
    series,
    spark,
    tables,
)
from benchmarks.model import RECORD_BYTES, Contestant, Probe, Setup, Workload

MIB = 1 << 20

BATCH = 1000
ARROW_BATCH = 10_000
THREADS = 16
IN_FLIGHT = 256
KEY = b"sixteen bytes 16"
# What Stratalog's class `disk` may gather before it writes: the rivals' equal chance.
GATHERED = 1000

OPEN_RECORDS = 1_000_000
# Records vary at a fixed number of batches, then batches at a fixed number of records.
OPEN_BY_RECORDS = [(100_000, 100), (400_000, 400)]
OPEN_BY_BATCHES = [(1_000_000, 250), (1_000_000, 50)]

# Closed stores: records over so many topics, then segments of one topic of 1 M records.
CLOSED_TOPICS = 100
CLOSED_BY_RECORDS = [100_000, 1_000_000, 10_000_000]
CLOSED_BY_SEGMENTS = [500_000, 50_000, 5_000]
# Killed ones: the log that is to be replayed, in batches of 1000 records.
KILLED_LOG_MIB = [16, 64, 256]
_FRAME_BYTES = BATCH * 104

SEALED_RECORDS = 500_000
LARGE_BYTES = 1 << 10
LARGE_SEALED_RECORDS = 60_000


@dataclass(frozen=True, slots=True)
class Scale:
    """How long a run takes."""

    rounds: int
    scan_records: int
    synced_scan_records: int
    memory_records: int
    sealed_segments: int
    point_records: int
    side_rounds: int
    """Rounds of probes that compare two things in alternation."""
    spark_records: int
    """Records of 100 B; a tenth as many of 1 KiB."""
    waiting: list[int]
    """Messages that wait in a queue."""
    table_keys: int = 1_000_000


QUICK = Scale(5, 200_000, 2_000, 2_000_000, 2, 1_000_000, 3, 2_000_000, [1_000, 100_000, 1_000_000])
FULL = Scale(
    21, 1_000_000, 20_000, 10_000_000, 6, 10_000_000, 7, 10_000_000,
    [1_000, 100_000, 1_000_000, 10_000_000],
)  # fmt: skip


def _own(name: str, setup: Setup) -> Contestant:
    return Contestant(name, "stratalog", setup)


def _rival(name: str, setup: Setup) -> Contestant:
    return Contestant(name, "rival", setup)


def _limit(name: str, setup: Setup) -> Contestant:
    return Contestant(name, "limit", setup)


def append_one() -> Workload:
    """One record at a time, without waiting for the disk.

    `disk` gathers for up to 2 ms before it writes. Rivals that commit every record hand each to
    the operating system at once, which is a little more; those marked "per 1000" gather too.
    """
    return Workload("append-one", "Append one record, not synced", "us", [
        _limit("file.write, buffered", partial(limits.buffered_write, count=100_000)),
        _limit("os.write", partial(limits.plain_write, count=50_000)),
        _own("stratalog disk", partial(own.append_one, durability="disk", count=100_000)),
        _own("stratalog memory", partial(own.append_one, durability="memory", count=100_000)),
        _rival("lmdb, per 1000", partial(rivals.lmdb_gathered, per_commit=GATHERED, count=50_000)),
        _rival("sqlite3 OFF, per 1000",
               partial(rivals.sqlite_gathered, per_commit=GATHERED, count=50_000)),
        _rival("lmdb", partial(rivals.lmdb_one, sync=False, count=20_000)),
        _rival("rocksdict", partial(rivals.rocksdict_one, sync=False, count=20_000)),
        _rival("sqlite3 OFF", partial(rivals.sqlite_one, synchronous="OFF", count=10_000)),
        _rival("sqlite3 NORMAL", partial(rivals.sqlite_one, synchronous="NORMAL", count=10_000)),
        _rival("litequeue", partial(queues.litequeue_one, count=3_000)),
        _rival("diskcache", partial(queues.diskcache_one, count=1_000)),
        _rival("persist-queue", partial(queues.persistqueue_one, count=1_000)),
    ], fresh_bytes=32 * MIB)  # fmt: skip


def append_many() -> Workload:
    """Batches, without waiting for the disk."""
    count, less = 200_000, 50_000
    return Workload("append-many", "Append batches of 1000, not synced", "ns", [
        _limit("join", partial(limits.join, batch=BATCH, count=count)),
        _limit("join + os.write", partial(limits.join_and_write, batch=BATCH, count=count)),
        _own("stratalog", partial(own.append_many, durability="disk", batch=BATCH, count=count)),
        _own("stratalog, 100 a batch",
             partial(own.append_many, durability="disk", batch=100, count=100_000)),
        _own("stratalog, Arrow 10 000",
             partial(own.append_arrow, durability="disk", batch=ARROW_BATCH, count=200_000)),
        _rival("lmdb putmulti", partial(rivals.lmdb_many, sync=False, batch=BATCH, count=less)),
        _rival("rocksdict WriteBatch",
               partial(rivals.rocksdict_many, sync=False, batch=BATCH, count=less)),
        _rival("sqlite3 OFF executemany",
               partial(rivals.sqlite_many, synchronous="OFF", batch=BATCH, count=less)),
    ], fresh_bytes=64 * MIB)  # fmt: skip


def append_sync() -> Workload:
    """One record at a time, acknowledged when it is on the disk."""
    threads = partial(own.append_threads, threads=THREADS, count=3_200)
    return Workload("append-sync", "Append one record, synced", "us", [
        _limit("pwrite + fdatasync", partial(limits.synced_write, is_growing=False, count=500)),
        _limit("pwrite + fdatasync, growing",
               partial(limits.synced_write, is_growing=True, count=100)),
        _own("stratalog", partial(own.append_one, durability="fsync", count=500)),
        _own("stratalog, with a key",
             partial(own.append_one, durability="fsync", count=500, key=KEY)),
        _own("stratalog, 16 threads", threads),
        _own("stratalog, 256 in flight",
             partial(own.append_nowait, in_flight=IN_FLIGHT, count=25_600)),
        _own("stratalog, 256 tasks of asyncio",
             partial(own.append_tasks, tasks=IN_FLIGHT, count=7_680)),
        _rival("lmdb", partial(rivals.lmdb_one, sync=True, count=100)),
        _rival("rocksdict", partial(rivals.rocksdict_one, sync=True, count=100)),
        _rival("sqlite3 FULL", partial(rivals.sqlite_one, synchronous="FULL", count=100)),
        _rival("persist-queue", partial(queues.persistqueue_synced, count=100)),
    ])  # fmt: skip


def queue_get() -> Workload:
    """A message taken, worked on and acknowledged, without waiting for the disk."""
    return Workload("queue-get", "Get and acknowledge a message, not synced", "us", [
        _own("stratalog get + ack", partial(consuming.get_one, count=20_000)),
        _own("stratalog get_many(100) + ack",
             partial(consuming.get_many, batch=100, count=100_000)),
        _rival("rocksdict get + delete", partial(consuming.rocksdict_queue, count=10_000)),
        _rival("litequeue pop + done", partial(consuming.litequeue_get, count=500)),
        _rival("persist-queue get + ack", partial(consuming.persistqueue_get, count=100)),
    ], fresh_bytes=32 * MIB)  # fmt: skip


def queue_put() -> Workload:
    """A message put, without waiting for the disk."""
    return Workload("queue-put", "Put a message, not synced", "us", [
        _own("stratalog put", partial(consuming.put_one, with_id=False, count=50_000)),
        _own("stratalog put, priority and id",
             partial(consuming.put_one, with_id=True, count=20_000)),
        _rival("litequeue put", partial(queues.litequeue_one, count=1_000)),
        _rival("persist-queue put", partial(queues.persistqueue_one, count=500)),
    ], fresh_bytes=32 * MIB)  # fmt: skip


def table_put() -> Workload:
    """One key at a time, without waiting for the disk."""
    return Workload("table-put", "Put a key, not synced", "us", [
        _own("stratalog put", partial(tables.put, count=50_000)),
        _own("stratalog put, if_version", partial(tables.put_if_version, count=20_000)),
        _rival("rocksdict put", partial(tables.rocksdict_put, count=20_000)),
        _rival("lmdb put", partial(tables.lmdb_put, count=10_000)),
        _rival("sqlite3 OFF", partial(tables.sqlite_put, count=5_000)),
        _rival("diskcache set", partial(tables.diskcache_put, count=1_000)),
    ], fresh_bytes=64 * MIB)  # fmt: skip


def table_put_many() -> Workload:
    """A thousand keys at a time, without waiting for the disk."""
    count = 50_000
    return Workload("table-put-many", "Put 1000 keys, not synced", "us", [
        _own("stratalog put_many", partial(tables.put_many, batch=BATCH, count=count)),
        _rival("rocksdict WriteBatch",
               partial(tables.rocksdict_put_many, batch=BATCH, count=count)),
        _rival("lmdb putmulti", partial(tables.lmdb_put_many, batch=BATCH, count=count)),
        _rival("sqlite3 OFF executemany",
               partial(tables.sqlite_put_many, batch=BATCH, count=count)),
        _rival("diskcache transact",
               partial(tables.diskcache_put_many, batch=BATCH, count=2_000)),
    ], fresh_bytes=64 * MIB)  # fmt: skip


def table_get() -> Workload:
    """One key at a time, in a random order, everything in memory."""
    return Workload("table-get", "Get a key", "us", [
        _own("stratalog get", partial(tables.get, count=100_000)),
        _rival("lmdb get, a transaction a call", partial(tables.lmdb_get, count=50_000)),
        _rival("rocksdict get", partial(tables.rocksdict_get, count=50_000)),
        _rival("sqlite3 SELECT", partial(tables.sqlite_get, count=20_000)),
        _rival("diskcache get", partial(tables.diskcache_get, count=2_000)),
    ])  # fmt: skip


def table_scan(scale: Scale) -> Workload:
    """Keys and values in the order of keys."""
    count = scale.scan_records
    return Workload("table-scan", "Scan keys in order", "M/s", [
        _own("stratalog scan", partial(tables.scan, count=count)),
        _rival("lmdb", partial(tables.lmdb_scan, count=count)),
        _rival("rocksdict", partial(tables.rocksdict_scan, count=count)),
        _rival("sqlite3", partial(tables.sqlite_scan, count=count)),
        _rival("diskcache", partial(tables.diskcache_scan, count=2_000)),
    ])  # fmt: skip


def batches() -> Workload:
    """A record for each of three topics, synced: what atomicity costs, or saves."""
    topics = partial(own.append_to_topics, topics=3, count=200)
    return Workload("batch", "Append to three topics, synced", "us", [
        _own("three appends", partial(topics, shards=1, is_atomic=False)),
        _own("one batch, in one shard", partial(topics, shards=1, is_atomic=True)),
        _own("one batch, over two shards", partial(topics, shards=2, is_atomic=True)),
    ])  # fmt: skip


def append_many_sync() -> Workload:
    """Batches, each acknowledged when it is on the disk."""
    count = 50_000
    return Workload("append-many-sync", "Append batches of 1000, synced", "ns", [
        _own("stratalog", partial(own.append_many, durability="fsync", batch=BATCH, count=count)),
        _rival("lmdb putmulti", partial(rivals.lmdb_many, sync=True, batch=BATCH, count=count)),
        _rival("rocksdict WriteBatch",
               partial(rivals.rocksdict_many, sync=True, batch=BATCH, count=count)),
        _rival("sqlite3 FULL executemany",
               partial(rivals.sqlite_many, synchronous="FULL", batch=BATCH, count=count)),
    ], fresh_bytes=32 * MIB)  # fmt: skip


def read(scale: Scale) -> Workload:
    """A scan of the log, from the page cache, every checksum verified."""
    count = scale.scan_records
    batched = partial(own.read, batch=BATCH, count=count)
    single = partial(own.read, batch=1, count=scale.synced_scan_records)
    return Workload("read", "Read everything", "M/s", [
        _limit("pread + XXH3", partial(limits.read_and_hash, count=count)),
        _limit("cut into bytes, in memory", partial(limits.cut_payloads, count=count)),
        _own("stratalog read_arrow", partial(batched, scan=own.scan_arrow)),
        _own("stratalog read_values", partial(batched, scan=own.scan_values)),
        _own("stratalog read", partial(batched, scan=own.scan_records)),
        _own("read_arrow of single appends", partial(single, scan=own.scan_arrow)),
        _own("read_values of single appends", partial(single, scan=own.scan_values)),
        _own("read of single appends", partial(single, scan=own.scan_records)),
        _own("the same with keys", partial(single, scan=own.scan_records, key=KEY)),
        _rival("lmdb", partial(rivals.lmdb_scan, count=200_000)),
        _rival("rocksdict", partial(rivals.rocksdict_scan, count=200_000)),
        _rival("sqlite3", partial(rivals.sqlite_scan, count=200_000)),
        _rival("diskcache", partial(queues.diskcache_scan, count=5_000)),
        _rival("litequeue pop", partial(queues.litequeue_scan, count=300)),
        _rival("persist-queue", partial(queues.persistqueue_scan, count=1_000)),
    ], fresh_bytes=scale.scan_records * 200)  # fmt: skip


def open_name(count: int, batch: int) -> str:
    """Name the open of so many records in such batches."""
    return f"{count // 1000} k records, {count // batch} batches"


def reopen() -> Workload:
    """Opening the log of a killed process; all but the first have been synced meanwhile."""
    sizes = [*OPEN_BY_RECORDS, (OPEN_RECORDS, BATCH), *OPEN_BY_BATCHES]
    return Workload("open", "Open the log of a killed process", "s", [
        _own("1 M records, not yet synced",
             partial(own.reopen, count=OPEN_RECORDS, batch=BATCH, is_settled=False)),
        *[_own(open_name(count, batch), partial(own.reopen, count=count, batch=batch))
          for count, batch in sizes],
    ])  # fmt: skip


def closed_name(count: int) -> str:
    """Name the open of a closed store of so many records."""
    return f"{count // 1000} k records, {CLOSED_TOPICS} topics"


def segments_name(segment_records: int) -> str:
    """Name the open of a closed store with such segments."""
    return f"1000 k records, {OPEN_RECORDS // segment_records} segments"


def killed_name(mebibytes: int) -> str:
    """Name the open of a killed store with so much log."""
    return f"killed, {mebibytes} MiB of log"


def open_store() -> Workload:
    """Opening a store that has segments: it should take no longer for more records."""
    return Workload("open-store", "Open a store", "s", [
        *[_own(closed_name(count),
               partial(sealed.open_closed, count=count, topics=CLOSED_TOPICS))
          for count in CLOSED_BY_RECORDS],
        *[_own(segments_name(each),
               partial(sealed.open_closed, count=OPEN_RECORDS, segment_records=each))
          for each in CLOSED_BY_SEGMENTS],
        *[_own(killed_name(size),
               partial(own.reopen, count=size * MIB // _FRAME_BYTES * BATCH, batch=BATCH))
          for size in KILLED_LOG_MIB],
    ])  # fmt: skip


def read_sealed(scale: Scale) -> Workload:
    """A scan of sealed segments, from the page cache, every checksum verified."""
    segments = scale.sealed_segments
    large = segments * LARGE_SEALED_RECORDS
    return Workload("segments-read", "Read sealed segments", "M/s", [
        _limit("pread + XXH3", partial(limits.read_and_hash, count=segments * SEALED_RECORDS)),
        _own("100 B values", partial(
            sealed.scan_sealed, count=segments * SEALED_RECORDS, segment_records=SEALED_RECORDS,
            length=RECORD_BYTES)),
        _own("1 KiB values", partial(
            sealed.scan_sealed, count=large, segment_records=LARGE_SEALED_RECORDS,
            length=LARGE_BYTES)),
    ])  # fmt: skip


def spark_read(name: str, length: int, count: int) -> Workload:
    """`sum(length(value))` on Spark with two cores, against native Parquet of the same records."""
    store = partial(spark.read_store, count=count, length=length)
    return Workload(name, f"Spark: sum(length(value)) of {length} B", "M/s", [
        _own("stratalog", partial(store, columns=["value"])),
        _own("stratalog, all columns", partial(store, columns=None)),
        _rival("parquet", partial(spark.read_parquet, count=count, length=length)),
    ])  # fmt: skip


def catalogue(scale: Scale) -> list[Workload | Probe]:
    """Everything there is to run, in order: what waits for the disk while least is on it."""
    return [
        append_sync(),
        append_many_sync(),
        batches(),
        append_one(),
        append_many(),
        queue_get(),
        queue_put(),
        Probe("queue-curve", "Queues by the number of messages that wait",
              partial(consuming.curve, waiting=scale.waiting, count=2_000)),
        Probe("queue-memory", "Memory of messages that wait",
              partial(consuming.memory, count=scale.waiting[-1] // 10)),
        table_put(),
        table_put_many(),
        table_get(),
        table_scan(scale),
        Probe("table-large", "A table with many keys",
              partial(tables.large, count=scale.table_keys)),
        read(scale),
        reopen(),
        open_store(),
        read_sealed(scale),
        spark_read("spark-read", RECORD_BYTES, scale.spark_records),
        spark_read("spark-read-large", LARGE_BYTES, scale.spark_records // 10),
        Probe("spark-pruning", "Spark: what one percent of the time reads", spark.pruning),
        Probe("point", "Point reads",
              partial(latency.points, scale.point_records, scale.side_rounds)),
        Probe("cold", "Appends beside scans of the cold store",
              partial(latency.cold, scale.side_rounds)),
        Probe("checkpoint", "Appends beside checkpoints",
              partial(latency.checkpoints, scale.side_rounds)),
        Probe("routes", "Routes, and appends to their sources",
              partial(routes.routes, scale.side_rounds)),
        Probe("series", "Series: points in, windows out",
              partial(series.series, scale.point_records, scale.side_rounds)),
        Probe("resident", "Memory of an open store",
              partial(latency.resident, scale.memory_records)),
        Probe("space", "Bytes on disk", probes.space),
        Probe("memory", "Memory while appending", partial(probes.memory, scale.memory_records)),
    ]  # fmt: skip

"""The catalogue of workloads that the sweep crashes after every file operation."""

from __future__ import annotations

import pyarrow as pa

from stratalog.model import Record
from stratalog.segments.checkpoint import seal
from tests.crash.model import LATE, Session, Workload
from tests.crash.queues import QueueSession


def single_appends(session: Session) -> None:
    """One fsync append after the other, in two topics."""
    session.open()
    for number in range(8):
        session.append("orders", b"order %d" % number, key=b"k%d" % (number % 3))
        session.append("refunds", b"refund %d" % number)


def batches_over_rotations(session: Session) -> None:
    """Batches large enough that files rotate in between, with values of every size."""
    session.open(shards=1)
    for number in range(12):
        session.append_many("orders", [bytes([number]) * (1 + 97 * n) for n in range(6)])


def mixed_classes(session: Session) -> None:
    """All classes in one topic: written late, synced late, or at once."""
    session.open()
    for number in range(6):
        session.append("orders", b"relaxed %d" % number, durability="disk")
        session.append("orders", b"lazy %d" % number, durability="memory")
        if number % 2:
            session.tick()
        if number == 3:
            session.append("orders", b"safe", durability="fsync")
    session.tick(2.0)
    session.append_many("orders", [b"x" * 300] * 5, durability="disk")
    session.sync()
    session.append("orders", b"last", durability="disk")
    session.tick()


def unsynced_groups(session: Session) -> None:
    """Many writes without a sync: a crash may keep a later one and lose an earlier one."""
    session.open(shards=1, durability="disk", log_file_bytes=1 << 16)
    for number in range(10):
        session.append_many("orders", [b"%d" % number * 400] * 3)
        session.append("orders", b"single %d" % number)
        session.tick()
    session.append("orders", b"safe", durability="fsync")
    for number in range(4):
        session.append("orders", b"after %d" % number * 100)
        session.tick()


def offsets_told_and_lost(session: Session) -> None:
    """Appends that are told their offsets and written late, over clean closes in between."""
    session.open(shards=1, durability="disk")
    for turn in range(2):
        for number in range(5):
            session.append("orders", b"told %d" % number)
            session.append("lazy", b"told %d" % number, durability="memory")
        session.tick()
        session.append_many("orders", [b"batch"] * 4)
        session.batch({"orders": [b"joint"], "lazy": [b"joint", b"joint"]})
        session.tick(2.0)
        session.append("orders", b"and one more")
        if turn == 0:
            session.snapshot()
            session.append("orders", b"after the snapshot")
            session.reopen()


def late_records(session: Session) -> None:
    """Records with earlier times than the one before them: alone, in batches, merged, rewritten."""
    session.open(shards=1)
    session.create("orders", segment_records=4)
    now = session.clock.time_ns()
    times = [now - 10**9 * n for n in range(6)]
    for number, time in enumerate(times):
        session.append("orders", b"%d" % time, tag=LATE, timestamp=time)
        session.append("orders", b"on time", key=b"k")
        if number == 2:
            session.checkpoint()
    session.append_many(
        "orders", [b"x", *(Record(b"%d" % time, tag=LATE, timestamp=time) for time in times)]
    )
    session.snapshot()
    session.delete("orders", key=b"k")
    session.compact()
    session.reopen()
    session.append("orders", b"%d" % times[1], tag=LATE, timestamp=times[1])


def topics_with_options(session: Session) -> None:
    """Topics created with options, then used."""
    session.open()
    session.create("plain")
    session.create("packed", compression="zstd", ttl=3600.0)
    session.create("fast", durability="disk")
    for number in range(4):
        session.append_many("packed", [b"the same again and again " * 20] * 4)
        session.append("fast", b"%d" % number)
        session.append("plain", None if number % 2 else b"", tag=f"tag-{number}")
    session.tick(2.0)


def altered_topics(session: Session) -> None:
    """Options that change while the topic is used, over checkpoints, snapshots and restarts."""
    session.open()
    session.create("orders")
    for turn, compression in enumerate(("zstd", "none", "lz4")):
        session.append("orders", b"before")
        session.alter("orders", 2 + turn, compression=compression, ttl=3600.0 * (turn + 1))
        session.append_many("orders", [b"the same again and again " * 20] * 3)
        session.append("orders", b"class disk", durability="disk")
        session.checkpoint()
        session.alter("orders", 12 + turn)
        if turn == 1:
            session.snapshot()
            session.reopen()


def close_and_reopen(session: Session) -> None:
    """Clean closes, and another number of shards each time."""
    session.open(shards=2)
    for shards in (1, 4, 2):
        session.append("orders", b"with %d shards" % shards)
        session.append("refunds", b"refund", durability="disk")
        session.append_many("orders", [b"batch"] * 3, durability="memory")
        session.reopen(shards=shards)
    session.append("orders", b"end")


def ephemeral_topic(session: Session) -> None:
    """Records that are never written, between others that are."""
    session.open(shards=1)
    session.create("ticks", durability="ephemeral")
    for number in range(3):
        session.append("ticks", b"tick %d" % number)
        session.append("orders", b"order %d" % number)
    session.tick()
    session.append_many("ticks", [b"tick"] * 4)
    session.append("orders", b"relaxed", durability="disk")
    session.tick()
    session.append("ticks", b"the only one that waits, and never written")
    session.sync()
    session.append_many("ticks", [b"tick"] * 2)
    session.reopen()
    session.append("ticks", b"again")


def pipelined_appends(session: Session) -> None:
    """Futures: several in flight, resolved by the first thread that asks."""
    session.open()
    for turn in range(3):
        futures = [session.nowait("orders", b"%d-%d" % (turn, n)) for n in range(5)]
        if turn == 1:
            session.tick()
        session.resolved("orders", futures[-1].result())


def arrow_appends(session: Session) -> None:
    """Tables appended by column, compressed, with times of their own."""
    session.open()
    topic = session.create("packed", compression="lz4")
    model = session.topics["packed"]
    for turn in range(4):
        values = [b"%d" % turn * 40] * 30
        table = pa.table({"value": pa.array(values, pa.binary())})
        model.batches.append((len(model.sent), len(model.sent) + len(values)))
        model.sent += [(value, None, None) for value in values]
        topic.append_arrow(table)
        model.durable = len(model.sent)


def records_of_all_kinds(session: Session) -> None:
    """Every optional column, alone and together, and a clock that jumps."""
    session.open()
    for turn in range(3):
        session.append("orders", b"v", key=b"", tag="t", headers={"h": b"v"}, node="eu-1", ttl=1e9)
        session.clock.jump(-3600.0 if turn % 2 else 7200.0)
        batch = [Record(value=b"a", tag="x", priority=7), Record(key=b"k"), Record(value=b"")]
        session.append_many("orders", batch)


def overfull_groups(session: Session) -> None:
    """More small records at once than one frame, or one file, can hold."""
    session.open(shards=1, durability="disk")
    for number in range(40):
        session.append("orders", bytes([number]) * 700, tag=f"{number}" if number % 3 else None)
    session.tick()
    for number in range(20):
        session.append("orders", bytes([number]) * 900)
    session.sync()


def large_values(session: Session) -> None:
    """Values larger than what is prepared at a time, and nearly as large as a file."""
    session.open(shards=1)
    for size in (10, 5000, 7800, 100, 4096, 7000):
        session.append("orders", bytes([size % 251]) * size)


def checkpoints(session: Session) -> None:
    """Small segments, sealed by records and by bytes, between appends of every class."""
    session.open(shards=2)
    session.create("small", segment_records=7)
    session.create("packed", segment_bytes=4096, compression="zstd")
    for number in range(4):
        session.append_many("small", [b"%d" % number] * (3 + number))
        session.append("small", b"relaxed", durability="disk", key=b"k", tag="t")
        session.append_many("packed", [bytes([number, n]) * 300 for n in range(5)])
        session.append("plain", b"single %d" % number)
        session.checkpoint()
    session.append("small", b"after the last checkpoint")


def snapshots(session: Session) -> None:
    """The log is released after snapshots, and recycled."""
    session.open(shards=1)
    session.create("small", segment_records=5)
    session.create("ticks", durability="ephemeral")
    for number in range(7):
        session.append_many("small", [bytes([number]) * 700] * 4)
        session.append("ticks", b"tick")
        session.append("orders", bytes([number]) * 900)
        session.snapshot()
        session.append("orders", b"relaxed", durability="disk")
    session.append_many("small", [b"last"] * 3)


def closes_with_segments(session: Session) -> None:
    """Clean closes that leave an empty log, with another number of shards each time."""
    session.open(shards=2)
    session.create("small", segment_records=40)
    for shards in (1, 3, 2):
        session.append_many("small", [bytes([shards]) * 2000] * 3)
        session.checkpoint()
        for _ in range(60):
            session.append_many("orders", [bytes([shards]) * 5000])
        session.reopen(shards=shards)
        session.append("small", b"again")


def aged_segments(session: Session) -> None:
    """Segments sealed because they are old, though nothing is new."""
    session.open(shards=1)
    session.create("slow", segment_seconds=60.0)
    for number in range(3):
        session.append("slow", b"%d" % number)
        session.checkpoint()
        session.clock.advance(100.0)
        session.checkpoint()
        session.snapshot()


def deletes(session: Session) -> None:
    """Records deleted in the log, in open and in sealed segments, and segments rewritten."""
    session.open(shards=1)
    session.create("small", segment_records=6)
    for number in range(3):
        batch = [Record(value=b"%d" % n * 50, tag=f"t{n % 3}") for n in range(8)]
        session.append_many("small", batch)
        session.delete("small", tag="t1", before=8 * number + 4)
        session.checkpoint()
        session.delete("small", offsets=[8 * number, 8 * number + 5])
        session.compact()
    session.delete("small", before=7)
    session.append("small", b"after", tag="t1")
    session.compact()
    session.delete("small", tag="t1")
    session.snapshot()


def purges(session: Session) -> None:
    """All there is deleted, in the log and in the open segment, and appends after it."""
    session.open(shards=1)
    session.create("small", segment_records=6)
    for number in range(3):
        session.append_many("small", [b"%d" % number * 20] * 4)
        session.checkpoint()
        if number == 1:
            session.append("small", b"in the log")
        session.delete("small", before=session.store.topic("small").next_offset)
        session.compact()
        session.append("small", b"after it")
        session.checkpoint()
        session.snapshot()
    session.reopen(shards=1)
    session.append("small", b"at the end")


def purged_bytes(session: Session) -> None:
    """Deleted records leave every file: the log of all shards, open and sealed segments."""
    session.open(shards=2)
    session.create("small", segment_records=6)
    session.create("keyed", segment_records=5, compact=True)
    session.create("doomed")
    for number in range(2):
        batch = [Record(b"%d" % n * 50, b"k%d" % (n % 4), tag=f"t{n % 3}") for n in range(9)]
        session.append_many("small", batch)
        session.append_many("keyed", batch[:7])
        session.append("doomed", b"x" * 30)
        session.delete("small", key=b"k1")
        session.checkpoint()
        session.append("small", b"in the log", tag="t2")
        session.delete("small", tag="t2", before=12 * number + 5)
        session.publish("w", number + 1, small=[b"staged %d" % n for n in range(3)])
        session.adopt(upkeep=False)
        if number:
            session.delete("small", before=4)
            session.drop("doomed")
        session.compact(purge=True)
        session.append("small", b"after it")
    session.reopen(shards=1)  # one shard's log is no longer written
    session.delete("small", offsets=[13, 15])
    session.append("keyed", None, key=b"k2")
    session.compact(purge=True)
    session.append("small", b"last")


def purged_cold(session: Session) -> None:
    """Segments in the cold store are rewritten, moved again or kept here, and the old ones go."""
    session.open(shards=1, cold="/cold", hot_segments=1)
    session.create("small", segment_records=3)
    session.create("doomed", segment_records=2)
    for number in range(3):
        batch = [Record(b"%d" % n * 60, b"k%d" % n) for n in range(5)]
        session.append_many("small", batch)
        session.append_many("doomed", [b"x"] * 3)
        session.compact()
        session.delete("small", key=b"k%d" % number)
        if number == 1:
            session.drop("doomed")
        session.compact(purge=True)
    session.delete("small", before=4)
    session.compact(purge=True)
    session.reopen(shards=1, cold="/cold", hot_segments=9)
    session.delete("small", offsets=[6, 8])
    session.compact(purge=True)
    session.append("small", b"last")


def purged_queue(session: Session) -> None:
    """Messages that are consumed leave every file, also those after one that is not."""
    session.open(shards=1)
    jobs = QueueSession(session, "jobs")
    for number in range(3):
        for n in range(4):
            jobs.put(bytes([number, n]) * 100, dedup_id=f"{number}-{n}")
        messages = jobs.get(4)
        jobs.ack(*messages[1 : 2 + number])
        session.compact(purge=True)
        jobs.all_durable()
    jobs.put(b"again", dedup_id="1-1")
    jobs.reopen()
    session.compact(purge=True)


def evictions(session: Session) -> None:
    """Retention takes the oldest segments, again and again."""
    session.open(shards=1)
    session.create("small", segment_records=4, retention_records=9)
    session.create("other", segment_records=3)
    for number in range(5):
        session.append_many("small", [bytes([number]) * 200] * 5)
        session.append("other", b"%d" % number)
        session.compact()
    session.append("small", b"last")


def compactions(session: Session) -> None:
    """Only the last record of a key is kept, and deletions of keys go in the end."""
    session.open(shards=1)
    session.create("keyed", segment_records=5, compact=True, tombstone_seconds=50.0)
    for number in range(4):
        for n in range(6):
            value = None if (n + number) % 5 == 0 else b"%d-%d" % (number, n)
            session.append("keyed", value, key=b"k%d" % (n % 4), durability="disk")
        session.append("keyed", b"no key")
        session.clock.advance(40.0)
        session.compact()


def emptied_segments(session: Session) -> None:
    """Segments without records join the one before them: empty itself, or with a few records."""
    session.open(shards=1, cold="/cold", hot_segments=1)
    session.create("keyed", segment_records=4, compact=True)
    session.create("plain", segment_records=2)
    session.append("keyed", b"stays", key=b"rare")
    for number in range(4):
        for n in range(6):
            session.append("keyed", b"%d-%d" % (number, n), key=b"k%d" % (n % 2), durability="disk")
        session.append_many("plain", [b"%d" % number] * 4)
        if number:  # what is cold comes back with a purge alone
            session.delete("plain", offsets=range(4 * number - 2, 4 * number + 2))
        session.compact(purge=number == 2)
    session.reopen()
    session.delete("plain", offsets=range(4, 16))
    session.compact(purge=True)
    session.append("plain", b"last")


def cold_segments(session: Session) -> None:
    """Segments move to the cold store, are evicted there, and go with their topic."""
    session.open(shards=1, cold="/cold", hot_segments=1)
    session.create("small", segment_records=3, retention_records=14)
    session.create("doomed", segment_records=2)
    for number in range(4):
        session.append_many("small", [bytes([number]) * 100] * 6)
        session.append_many("doomed", [b"x"] * 3)
        session.compact()
    session.delete("small", offsets=[18])
    session.drop("doomed")
    session.append("small", b"last")
    session.compact()
    session.append("doomed", b"again")
    session.reopen()
    session.compact()


def drops(session: Session) -> None:
    """Topics that are dropped and made again, with records in every place."""
    session.open(shards=2)
    for number in range(3):
        session.create("small", segment_records=3)
        session.append_many("small", [b"%d" % number] * 5)
        session.checkpoint()
        session.append("small", b"in the log")
        session.append("other", b"%d" % number)
        session.drop("small")
        if number == 1:
            session.snapshot()
            session.reopen(shards=1)
    session.append("small", b"for good")
    session.compact()


def backups(session: Session) -> None:
    """Copies of a store with sealed and open segments, snapshots and a log that is recycled."""
    session.open(shards=2)
    session.create("small", segment_records=5)
    session.create("ticks", durability="ephemeral")
    for number in range(2):
        session.append_many("small", [bytes([number]) * 700] * 7)
        session.append("ticks", b"tick")
        session.append("orders", b"relaxed %d" % number, durability="disk")
        session.backup(f"/copy-{number}")
        session.append("orders", b"after")
        session.append_many("small", [bytes([number]) * 900] * 6)
        session.snapshot()
    session.append("small", b"last")


def cold_backups(session: Session) -> None:
    """Copies that refer to objects in the cold store; then the store drops what they refer to."""
    session.open(shards=1, cold="/cold", hot_segments=1)
    for number, name in enumerate(("first", "second")):
        session.create(name, segment_records=3)
        for turn in range(3):
            session.append_many(name, [b"%d-%d" % (number, turn)] * 3)
            session.compact()
        session.backup(f"/copy-{number}")
        session.append_many(name, [b"after"] * 4)
        session.compact()
        session.drop(name)
        session.append("orders", b"%d" % number)
        session.compact()
    session.reopen()


def joint_batches(session: Session) -> None:
    """Batches over several topics and shards, between appends of every class to the same ones."""
    session.open(shards=3)
    session.create("packed", compression="zstd")
    for number in range(5):
        # In every shard something that is not synced, or not even written, when the batch comes.
        session.append("refunds", b"relaxed %d" % number, durability="disk")
        session.append("packed", b"relaxed %d" % number, durability="disk")
        session.append("orders", b"lazy %d" % number, durability="memory")
        session.batch(
            {
                "orders": [b"order %d" % number] * 2,
                "refunds": [Record(b"refund", b"k", tag="t")],
                "packed": [b"the same again and again " * 20] * (1 + number),
            }
        )
        session.append("refunds", b"after it", durability="disk")
        if number % 2:
            session.tick()
        session.append("orders", b"safe %d" % number)
    session.batch({"orders": [b"one topic"] * 3}, durability="disk")
    session.tick(2.0)


def joint_batches_in_one_shard(session: Session) -> None:
    """Batches that share groups with single appends, not all of them synced, over rotations."""
    session.open(shards=1, durability="disk")
    for number in range(8):
        session.append("orders", b"before %d" % number)
        session.batch({"orders": [bytes([number]) * 400], "refunds": [bytes([number]) * 700]})
        session.append("orders", b"after %d" % number)
        if number % 3 == 1:
            session.tick()
        if number == 5:
            session.batch({"refunds": [b"safe"], "orders": [b"safe"]}, durability="fsync")
    session.sync()


def joint_batches_and_upkeep(session: Session) -> None:
    """Batches whose records go to segments, whose log is given up, and whose topics are dropped."""
    session.open(shards=2)
    session.create("small", segment_records=5)
    for number in range(4):
        session.batch({name: [bytes([number]) * 600] * 3 for name in ("small", "orders", "gone")})
        if number == 1:
            session.checkpoint()
        session.append("orders", b"single")
        if number == 2:
            session.drop("gone")
            session.snapshot()
            session.reopen(shards=3)
    session.backup("/copy")
    session.batch({"small": [b"x"], "orders": [b"y"], "others": [b"z"]})
    session.reopen(shards=1)
    session.batch({"small": [b"last"], "orders": [b"last"]})


def adoptions(session: Session) -> None:
    """Batches of others, in one topic and in several, small and large, between appends."""
    session.open(shards=3)
    session.create("large", segment_bytes=1 << 16)
    for number in range(3):
        session.append("orders", b"own %d" % number, durability="disk")
        session.append("large", b"own %d" % number)
        session.publish("query", number, orders=[b"%d" % number] * 3, fresh=[b"x"])
        session.adopt(upkeep=bool(number % 2))
        session.append("fresh", b"after", durability="disk")
        session.publish("other", number, large=[bytes([number]) * 5000] * 3, orders=[b"o"] * 2)
        session.adopt(upkeep=False)
        session.append("large", b"after", durability="disk")
        session.append("orders", b"after")
        if number == 1:
            session.snapshot()
            session.reopen(shards=2)
    session.tick()
    session.checkpoint()


def adoptions_again(session: Session) -> None:
    """A batch is published again: before it is adopted, after, and after a restart."""
    session.open(shards=2)
    for number in range(3):
        session.publish("query", number, orders=[b"%d" % number] * 2, refunds=[b"r"])
        session.publish("query", number, orders=[b"twice"])
        session.adopt(upkeep=False)
        session.publish("query", number, orders=[b"twice"])
        session.adopt()
        session.append("refunds", b"own")
        if number == 1:
            session.snapshot()
        session.reopen()
        session.publish("query", number, orders=[b"twice"])
        session.adopt()


def adoptions_deleted(session: Session) -> None:
    """Adopted records are deleted before a checkpoint has reached them, in part and as a whole."""
    session.open(shards=1)
    session.create("large", segment_bytes=4096)
    for number in range(4):
        session.append("small", b"before %d" % number)
        session.publish("query", number, small=[b"a"], large=[b"%d" % number * 100] * 10)
        session.adopt(upkeep=False)
        session.append("small", b"after %d" % number)
        for name, left in (("small", 1), ("large", 0 if number % 2 else 3)):
            session.delete(name, before=session.store.topic(name).next_offset - left)
        if number == 1:
            session.reopen()
        session.checkpoint()
        if number == 2:
            session.compact()
    session.append("large", b"last")


def replacements(session: Session) -> None:
    """Sealed segments and a backlog of the log are replaced by what a job made of them."""
    session.open(shards=1)
    session.create("small", segment_records=4)
    session.append_many("small", [b"%d" % n * 30 for n in range(18)])
    session.checkpoint()
    session.replace("small", 4, 12)
    session.append_many("small", [b"more"] * 6)
    session.replace("small", 18, 22, backlog=True)
    session.append("small", b"last")
    session.replace("small", 0, 12)
    session.snapshot()
    session.reopen()
    session.append("small", b"again")


def queue_of_work(session: Session) -> None:
    """Put, get, acknowledge and give back, with priorities, delays and ids."""
    session.open(shards=2)
    jobs = QueueSession(session, "jobs", max_deliveries=3)
    for number in range(6):
        jobs.put(b"job %d" % number, priority=number % 3, dedup_id=f"id-{number}")
        jobs.put(b"plain %d" % number)
    jobs.put(b"again", dedup_id="id-2")
    jobs.put(b"later", delay=60.0)
    first, second, third = jobs.get(3)
    jobs.ack(first, third)
    jobs.nack(second, delay=5.0)
    session.snapshot()
    jobs.ack(*jobs.get(4))
    session.clock.advance(61.0)
    jobs.get(2)
    jobs.put(b"again", dedup_id="id-5")
    session.clock.advance(31.0)
    jobs.ack(*jobs.get(3))
    jobs.reopen()
    jobs.ack(*jobs.get(2))
    jobs.put(b"last", priority=9, dedup_id="last")


def queue_of_class_disk(session: Session) -> None:
    """Acknowledgements that no thread waits for, between commits and snapshots, in other shards."""
    session.open(shards=1)
    jobs = QueueSession(session, "jobs", durability="disk")
    for number in range(4):
        for n in range(5):
            jobs.put(b"%d-%d" % (number, n), priority=n % 2, dedup_id=f"{number}-{n}")
        jobs.ack(*jobs.get(3))
        session.tick()
        messages = jobs.get(2)
        if number == 1:
            session.snapshot()
            jobs.all_durable()
        jobs.ack(messages[0])
        if number == 2:
            jobs.reopen(shards=3)
        session.tick(2.0)
    session.sync()
    jobs.all_durable()
    jobs.ack(*jobs.get(2))


def dead_letters(session: Session) -> None:
    """Messages that fail again and again, by hand and because their leases run out."""
    session.open(shards=2)
    jobs = QueueSession(session, "jobs", max_deliveries=2, lease=10.0)
    for number in range(5):
        jobs.put(b"%d" % number, priority=number % 2)
    for message in jobs.get(2):
        jobs.nack(message, reason="no")
    for message in jobs.get(2):
        jobs.nack(message, reason="still no")
    jobs.get(1)
    session.snapshot()
    session.clock.advance(11.0)
    (message,) = jobs.get(1)
    session.clock.advance(11.0)
    jobs.expect_death(message.offset)
    jobs.get(1)
    jobs.model.dead.add(message.offset)
    jobs.requeue()
    jobs.ack(*jobs.get(10))


def taken_for_good(session: Session) -> None:
    """At most once: what was got is gone, also after a crash."""
    session.open(shards=1)
    jobs = QueueSession(session, "jobs", delivery="at_most_once")
    for number in range(8):
        jobs.put(b"%d" % number)
        jobs.get(1 + number % 2)
        if number == 4:
            session.snapshot()
    jobs.reopen()
    jobs.get(3)


def consumed_segments(session: Session) -> None:
    """Segments of a queue go as soon as all of them is consumed, and never before."""
    session.open(shards=1)
    jobs = QueueSession(session, "jobs")
    held = []
    for number in range(4):
        for n in range(4):
            jobs.put(bytes([number, n]) * 200)
        messages = jobs.get(4)
        jobs.ack(*messages[:3])
        held += messages[3:]
        topic = session.store.topic("jobs")
        seal(topic._log, session.clock.time_ns())
        session.compact()
        jobs.all_durable()
        if number == 2:
            jobs.ack(*held)
    session.compact()


def ids_of_messages_that_went(session: Session) -> None:
    """Messages with ids are consumed or purged, their segments go, and they are put again."""
    session.open(shards=1)
    jobs = QueueSession(session, "jobs")
    for number in range(6):
        for n in range(3):
            jobs.put(bytes([number, n]) * 50, dedup_id=f"{number}-{n}")
        if number % 3 == 2:
            session.checkpoint()
        if number % 2:
            jobs.purge()
        else:
            jobs.ack(*jobs.get(3))
        if number % 3 == 1:
            session.checkpoint()
        if number == 2:
            seal(session.store.topic("jobs")._log, session.clock.time_ns())
        if number > 2:
            session.clock.advance(31.0)
            assert session.store._upkeep is not None
            session.store._upkeep.round()
        jobs.put(b"again", dedup_id=f"{number}-1")
        if number == 4:
            jobs.reopen()
    jobs.put(b"again", dedup_id="0-2")


def consume_transform_produce(session: Session) -> None:
    """Messages consumed in one with what comes of them, over shards, snapshots and reopens."""
    session.open(shards=3)
    jobs = QueueSession(session, "jobs")
    for number in range(8):
        jobs.put(b"job %d" % number, priority=number % 2)
    for number in range(4):
        first, second = jobs.get(2)
        jobs.transform(first, {"results": [b"result %d" % number] * 2, "audit": [b"x"]})
        if number == 1:
            session.snapshot()
            jobs.all_durable()
        session.append("results", b"between", durability="disk")
        jobs.transform(second, {"audit": [b"y"]}, onward=b"again %d" % number)
        if number == 2:
            jobs.reopen(shards=2)
    for message in jobs.get(2):
        jobs.nack(message, delay=5.0)


def transform_without_waiting(session: Session) -> None:
    """Without waiting for the disk: what a crash keeps is still all or nothing."""
    session.open(shards=1, durability="disk")
    jobs = QueueSession(session, "jobs")
    for number in range(6):
        jobs.put(b"job %d" % number)
    for number in range(6):
        (message,) = jobs.get(1)
        jobs.transform(message, {"results": [b"result %d" % number]})
        if number % 2:
            session.tick()
        if number == 3:
            session.snapshot()
            jobs.all_durable()
    session.tick(2.0)


def refused_for_want_of_space(session: Session) -> None:
    """A full disk refuses what was acknowledged: its offsets stay used, whatever comes then."""
    session.open(durability="disk")
    for number in range(5):
        session.append("orders", b"safe %d" % number, durability="fsync")
        session.append("orders", b"single %d" % number)
        session.append_many("orders", [b"many %d" % number] * 3)
        session.append("lazy", b"lazy %d" % number, durability="memory")
        session.refuse()
        if number == 1:
            session.snapshot()
        elif number == 2:
            session.reopen()
        elif number == 3:
            session.batch({"orders": [b"a"], "lazy": [b"b"], "new": [b"c"]}, durability="fsync")
        session.append("orders", b"next %d" % number)
        session.refuse()
        session.refuse()
        session.append_many("lazy", [b"next %d" % number] * 2)
        session.tick()
    session.sync()


def forwarded_records(session: Session) -> None:
    """A chain and a filtered route over two shards, beside appends and upkeep of every kind."""
    session.open(shards=2)
    session.create("relaxed", durability="disk")
    session.route("orders", "copy")
    session.route("copy", "copy of the copy")
    session.route("orders", "relaxed", "x")
    for number in range(5):
        session.append("orders", b"%d" % number, key=b"k", tag="x" if number % 2 else None)
        session.append_many("orders", [Record(b"m", tag="x"), Record(b"n" * 300, tag="y")])
        session.append("orders", b"relaxed", durability="disk")
        session.forward()
        if number == 1:
            session.checkpoint()
        elif number == 2:
            session.snapshot()
            session.append("orders", b"after it")
        elif number == 3:
            session.reopen(shards=1)
    session.tick(2.0)


def routes_come_and_go(session: Session) -> None:
    """Routes are made, paused, resumed and dropped; topics of routes are dropped."""
    session.open(shards=2)
    first = session.route("orders", "copy")
    session.append_many("orders", [b"1", b"2"])
    session.forward()
    first.pause()
    session.append("orders", b"3")
    session.forward()
    second = session.route("orders", "doomed")
    session.forward()
    session.snapshot()
    first.resume()
    session.append("orders", b"4")
    session.forward()
    session.drop("doomed")
    session.append("orders", b"5")
    session.forward()
    session.snapshot()
    second.drop()
    session.append("orders", b"6")
    session.forward()
    session.reopen(shards=1)
    session.append("orders", b"7")
    session.forward()


def scheduled_messages(session: Session) -> None:
    """Messages of schedules in queues of two classes, beside upkeep of every kind."""
    session.open(shards=2)
    session.store.queue("relaxed", durability="disk")
    session.schedule("minutely", "jobs", 60.0)
    session.schedule("slower", "jobs", 150.0)
    session.schedule("relaxed", "relaxed", 60.0)
    for number in range(6):
        session.fire(60.0)
        if number == 1:
            session.checkpoint()
        elif number == 2:
            session.snapshot()
            session.fire(200.0)
        elif number == 3:
            session.reopen(shards=1)
    session.tick(2.0)


def schedules_come_and_go(session: Session) -> None:
    """Schedules are made, changed, paused, resumed and dropped."""
    session.open(shards=2)
    first = session.schedule("first", "jobs", 60.0)
    session.fire(61.0)
    first.pause()
    session.schedule("second", "others", 30.0)
    session.fire(61.0)
    session.snapshot()
    first.resume()
    session.fire(61.0)
    session.schedule("first", "jobs", 45.0)
    session.fire(45.0)
    session.reopen(shards=1)
    third = session.schedule("third", "jobs", 10.0)
    session.snapshot()
    third.drop()
    session.fire(100.0)


CATALOGUE: list[Workload] = [
    single_appends,
    batches_over_rotations,
    mixed_classes,
    unsynced_groups,
    offsets_told_and_lost,
    refused_for_want_of_space,
    topics_with_options,
    altered_topics,
    close_and_reopen,
    ephemeral_topic,
    pipelined_appends,
    arrow_appends,
    records_of_all_kinds,
    late_records,
    overfull_groups,
    large_values,
    checkpoints,
    snapshots,
    closes_with_segments,
    aged_segments,
    deletes,
    purges,
    purged_bytes,
    purged_cold,
    purged_queue,
    evictions,
    compactions,
    emptied_segments,
    cold_segments,
    drops,
    backups,
    cold_backups,
    joint_batches,
    joint_batches_in_one_shard,
    joint_batches_and_upkeep,
    consume_transform_produce,
    transform_without_waiting,
    adoptions,
    adoptions_again,
    adoptions_deleted,
    replacements,
    queue_of_work,
    queue_of_class_disk,
    dead_letters,
    taken_for_good,
    consumed_segments,
    ids_of_messages_that_went,
    forwarded_records,
    routes_come_and_go,
    scheduled_messages,
    schedules_come_and_go,
]

"""A process in which sixteen threads use everything a store has, until it is killed.

Run as `python -m tests.outsider.workload STORE COLD JOURNAL RUN SEED`. Every call is noted in the
journal before it is made and after it returned, each note one `write`: what the journal says was
acknowledged is what `tests.outsider.journal` holds the store to. A record's value follows from its
id, so that a wrong or invented record is recognised by itself.

Notes, one a line (`try` means that the call is about to be made):

    try TOPIC ID...              append
    ack TOPIC CLASS FIRST ID...  appended, from offset FIRST on
    purge TOPIC TAG              about to delete by tag
    gone TOPIC TAG END           deleted by tag, everything below END
    put-try ID...                put
    put OFFSET ID...             put, from offset OFFSET on
    got OFFSET COUNT ID          a message was delivered
    done-try OFFSET              about to acknowledge it
    done OFFSET                  acknowledged
    kept OFFSET                  the acknowledgement raised: it changed nothing
    poll OFFSET                  a record was delivered to the group
    poll-done OFFSET...          acknowledged by the group
    copy-try PATH                about to make a backup
    copy PATH                    made
    error TYPE                   a call raised an error of ours, and the thread goes on
    broken TEXT                  something happened that never may
"""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from typing import Any

import stratalog
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import Fault, FaultFs

KEYS = 40
TAGS = 12


def payload(id: str) -> bytes:
    """The value of the record or message with that id."""
    return id.encode() + b"|" + random.Random(id).randbytes(random.Random(id).randrange(200))


def id_of(value: bytes | None) -> str | None:
    """The id that a value belongs to; None if no writer made it."""
    if value is None:
        return None
    id = value.partition(b"|")[0].decode("ascii", "replace")
    return id if payload(id) == value else None


def tag_of(id: str) -> str:
    """The user that a record of topic `users` is about."""
    return f"user-{zlib.crc32(id.encode()) % TAGS}"


def key_of(id: str) -> str:
    """The key that a record of topic `state` changes; each belongs to one thread."""
    return f"{id.split('.')[1]}/{zlib.crc32(id.encode()) % KEYS}"


class Journal:
    """The notes of one process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: object) -> None:
        """Write one note; a killed process leaves it whole or not at all."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Worker:
    """Threads that share one store; each has dice and ids of its own."""

    def __init__(self, store: Store, faults: FaultFs, journal: Journal, run: int, seed: int):
        self.store = store
        self.faults = faults
        self.journal = journal
        self.run = run
        self.seed = seed
        self._counts: dict[str, int] = {}

    def id(self, thread: str) -> str:
        """A new id; each thread counts for itself."""
        self._counts[thread] = self._counts.get(thread, 0) + 1
        return f"{self.run}.{thread}.{self._counts[thread]}"

    def start(self) -> None:
        """Start all threads."""
        steps: list[Callable[[str, random.Random], None]] = [
            self.append, self.append, self.append, self.compact_by_key, self.compact_by_key,
            self.evict, self.delete, self.batch, self.batch, self.put, self.put, self.consume,
            self.consume, self.transform, self.follow, self.upkeep,
        ]  # fmt: skip
        for number, step in enumerate(steps):
            name = f"{step.__name__}-{number}"
            args = (step, name, random.Random(f"{self.seed}/{number}"))
            threading.Thread(target=self._loop, args=args, daemon=True).start()
        threading.Thread(target=self._fill_the_disk, daemon=True).start()

    def _loop(
        self, step: Callable[[str, random.Random], None], name: str, dice: random.Random
    ) -> None:
        while True:
            try:
                step(name, dice)
            except (stratalog.PoisonedError, stratalog.SyncFailedError) as error:
                # Reopening is the cure, and what the next process does.
                self.journal.note("error", type(error).__name__)
                os._exit(3)
            except stratalog.StratalogError as error:
                self.journal.note("error", type(error).__name__)
                time.sleep(0.005)
            except BaseException:
                self.journal.note("broken", repr(traceback.format_exc()))
                os._exit(4)
            time.sleep(dice.random() * 0.003)

    def _fill_the_disk(self) -> None:
        """Let the disk be full for some milliseconds, now and then."""
        dice = random.Random(f"{self.seed}/disk")
        while True:
            time.sleep(dice.uniform(0.1, 0.5))
            for operation in dice.sample(("pwrite", "create", "preallocate", "rename"), 2):
                self.faults.add(Fault(operation=operation, error=errno.ENOSPC, always=True))
            time.sleep(dice.uniform(0.005, 0.05))
            self.faults.clear()

    # --- topics ---------------------------------------------------------------------------

    def append(self, name: str, dice: random.Random) -> None:
        """Append to topics that other threads append to as well, in all the ways there are."""
        topic = self.store.topic(f"log-{dice.randrange(3)}")
        durability = dice.choice(("fsync", "fsync", "disk"))
        ids = [self.id(name) for _ in range(dice.choice((1, 1, 1, 3, 30)))]
        self.journal.note("try", topic.name, *ids)
        if len(ids) > 1:
            first, _ = topic.append_many(map(payload, ids), durability=durability)
        elif dice.random() < 0.3:
            first = topic.append_nowait(payload(ids[0]), durability=durability).result()
        else:
            first = topic.append(payload(ids[0]), key=ids[0].encode(), durability=durability)
        self.journal.note("ack", topic.name, durability, first, *ids)

    def compact_by_key(self, name: str, dice: random.Random) -> None:
        """Change keys of one's own in a compacted topic."""
        topic = self.store.topic("state")
        id = self.id(name)
        self.journal.note("try", "state", id)
        offset = topic.append(payload(id), key=key_of(id).encode())
        self.journal.note("ack", "state", "fsync", offset, id)

    def evict(self, name: str, dice: random.Random) -> None:
        """Fill a topic that keeps some hundred records only."""
        ids = [self.id(name) for _ in range(dice.choice((1, 20)))]
        self.journal.note("try", "recent", *ids)
        first, _ = self.store.topic("recent").append_many(map(payload, ids))
        self.journal.note("ack", "recent", "fsync", first, *ids)

    def delete(self, name: str, dice: random.Random) -> None:
        """Append records of users, and delete one of them all now and then."""
        topic = self.store.topic("users")
        if dice.random() < 0.1:
            tag = f"user-{dice.randrange(TAGS)}"
            end = topic.next_offset
            self.journal.note("purge", "users", tag)
            topic.delete(tag=tag)
            self.journal.note("gone", "users", tag, end)
            return
        id = self.id(name)
        self.journal.note("try", "users", id)
        offset = topic.append(payload(id), tag=tag_of(id))
        self.journal.note("ack", "users", "fsync", offset, id)

    def batch(self, name: str, dice: random.Random) -> None:
        """Append to topics of several shards and put into a queue, all or nothing."""
        id = self.id(name)
        names = ("pair-0", "pair-1", "pair-2")
        for topic in names:
            self.journal.note("try", topic, id)
        self.journal.note("put-try", id)
        with self.store.batch() as batch:
            appended = [batch.topic(topic).append(payload(id)) for topic in names]
            put = batch.queue("jobs").put(payload(id))
            if dice.random() < 0.1:
                raise stratalog.UsageError("thought better of it")
        for topic, one in zip(names, appended, strict=True):
            self.journal.note("ack", topic, "fsync", one.offset, id)
        self.journal.note("put", put.offset, id)

    # --- queues and groups ----------------------------------------------------------------

    def put(self, name: str, dice: random.Random) -> None:
        """Put messages of all kinds, no faster than they are consumed."""
        queue = self.store.queue("jobs")
        if len(queue) > 1000:
            return
        ids = [self.id(name) for _ in range(dice.choice((1, 1, 5)))]
        self.journal.note("put-try", *ids)
        if len(ids) > 1:
            first = queue.put_many([payload(id) for id in ids])[0].offset
        else:
            more: dict[str, Any] = {"dedup_id": ids[0]}
            more |= dice.choice(({}, {"priority": dice.randrange(256)}, {"delay": 0.05}))
            first = queue.put(payload(ids[0]), **more).offset
        self.journal.note("put", first, *ids)

    def consume(self, name: str, dice: random.Random) -> None:
        """Get, acknowledge or give back."""
        queue = self.store.queue("jobs")
        for message in queue.get_many(dice.choice((1, 1, 10)), timeout=0.5, consumer=name):
            if not self._delivered(message):
                continue
            if dice.random() < 0.05:
                queue.nack(message, reason="by chance")
                continue
            self._acknowledge(message, message.ack)

    def transform(self, name: str, dice: random.Random) -> None:
        """Consume a message and produce its result in one batch: exactly once."""
        queue = self.store.queue("jobs")
        for message in queue.get_many(3, timeout=0.5, consumer=name):
            if not self._delivered(message):
                continue
            result = f"{id_of(message.value)}.result"

            def commit(message: stratalog.Message = message, result: str = result) -> None:
                with self.store.batch() as batch:
                    batch.queue("jobs").ack(message)
                    batch.topic("results").append(payload(result))

            self.journal.note("try", "results", result)
            self._acknowledge(message, commit)

    def _delivered(self, message: stratalog.Message) -> bool:
        id = id_of(message.value)
        if id is None:
            self.journal.note("broken", f"message {message.offset} holds what was never put")
            return False
        self.journal.note("got", message.offset, message.delivery_count, id)
        return True

    def _acknowledge(self, message: stratalog.Message, ack: Callable[[], None]) -> None:
        self.journal.note("done-try", message.offset)
        try:
            ack()
        except (stratalog.DiskFullError, stratalog.LeaseLostError):
            self.journal.note("kept", message.offset)
            raise
        self.journal.note("done", message.offset)

    def follow(self, name: str, dice: random.Random) -> None:
        """Consume a topic by a group."""
        group = self.store.topic("pair-0").group("billing")
        found = group.poll(name, limit=20, lease=0.5, timeout=0.2)
        for delivery in found:
            self.journal.note("poll", delivery.offset)
        if found and dice.random() < 0.9:
            group.ack([delivery.offset for delivery in found])
            self.journal.note("poll-done", *(delivery.offset for delivery in found))

    # --- operations -----------------------------------------------------------------------

    def upkeep(self, name: str, dice: random.Random) -> None:
        """Do what upkeep does by itself, but all the time; and make a backup now and then."""
        time.sleep(dice.random() * 0.1)
        kind = dice.random()
        if kind < 0.4:
            self.store.checkpoint()
        elif kind < 0.65:
            self.store.compact()
        elif kind < 0.7:
            self.store.compact(purge=True)
        elif kind < 0.95:
            self.store.snapshot()
        else:
            path = f"{self.store.path}-copy-{self.run}-{dice.randrange(1 << 40)}"
            self.journal.note("copy-try", path)
            self.store.backup(path)
            self.journal.note("copy", path)


def open_store(path: str, cold: str, fs: FaultFs | None = None) -> Store:
    """The store of the workload: small files, so that everything happens often."""
    given = {
        "cold": cold, "hot_segments": 1, "shards": 3, "log_file_bytes": 1 << 17,
        "checkpoint_interval": 0.2, "snapshot_interval": 0.5, "snapshot_bytes": 1 << 17,
    }  # fmt: skip
    return Store(path, StoreOptions.build(given, {}), fs=fs or FaultFs(PosixFileSystem()))


def prepare(store: Store) -> None:
    """Make the topics that have options."""
    small: dict[str, Any] = {"segment_bytes": 1 << 14, "segment_records": 300}
    options: dict[str, dict[str, Any]] = {
        "state": {"compact": True, "tombstone_seconds": 0.5},
        "recent": {"retention_records": 400},
        "users": {"compression": "zstd"},
        **{f"log-{number}": {} for number in range(3)},
    }
    for name, more in options.items():
        if name not in store.topics():
            store.create_topic(name, **small, **more)
    for name in ("pair-0", "pair-1", "pair-2", "results"):
        store.topic(name)
    store.queue("jobs", lease=0.5, max_deliveries=0)


def main(path: str, cold: str, journal: str, run: str, seed: str) -> None:
    """Open the store, start the threads, and wait to be killed."""
    faults = FaultFs(PosixFileSystem())
    notes = Journal(journal)
    try:
        store = open_store(path, cold, faults)
        prepare(store)
    except BaseException:
        notes.note("broken", repr(traceback.format_exc()))
        raise
    notes.note("open")
    Worker(store, faults, notes, int(run), int(seed)).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

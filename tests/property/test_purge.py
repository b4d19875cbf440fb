"""A hostile grep: after a purge, no byte of a record that is gone is in any file, by any means.

Every record carries a marker of its own in its key, its value, a header, the header's name and its
tag, and goes through everything a store has. Whatever of them can no longer be read must not be
found in the files, raw or decoded, and whatever could be read before must still be read.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog import Gap, Message, Record
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.segments.staging import BlockStage, StageWriter, append_part, manifest_of, publish
from stratalog.testing import ManualClock
from stratalog.tools.quarantine import Quarantine
from tests.conftest import OpenStore
from tests.grep import search

SEEDS = range(int(os.environ.get("STRATALOG_EXAMPLES", "24")) // 4)
PATTERN = rb"marker[0-9]{6}z"

TOPICS: dict[str, dict[str, Any]] = {
    "plain": {"segment_records": 40},
    "packed": {"segment_records": 25, "compression": "zstd"},
    "squeezed": {"compression": "lz4"},
    "keyed": {"segment_records": 20, "compact": True, "tombstone_seconds": 50.0},
    "brief": {"segment_records": 30, "ttl": 40.0, "compression": "gzip"},
    "bounded": {"segment_records": 10, "retention_records": 25},
    "fast": {"durability": "disk", "segment_records": 15},
}
OPTIONS = {
    "shards": 3, "log_file_bytes": 1 << 16, "log_chunk_bytes": 1 << 12, "rewrite_ratio": 0.9,
    "background": False, "hot_segments": 1,
}  # fmt: skip


class History:
    """A random history of one store, and the markers it used."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.clock = clock
        self.markers = 0
        self.batches = 0
        self.held: list[Message] = []

    def marker(self) -> str:
        """One that was never used."""
        self.markers += 1
        return f"marker{self.markers:06d}z"

    def record(self, topic: str, **fields: Any) -> Record:
        """A record that has its marker everywhere; in a compacted topic keys come again."""
        mark = self.marker()
        key = f"key {self.random.randrange(9)}" if topic == "keyed" else mark
        value: bytes | None = f"{mark} of {topic}. ".encode() * self.random.randrange(1, 9)
        if topic == "keyed" and self.random.random() < 0.15:
            value = None
        # A version that expires replaces those before it all the same: no model of that here.
        expires = 0 if topic == "keyed" else self.random.choice((0, 0, self.in_half_a_minute()))
        return Record(
            value, key.encode(), {f"h-{mark}": mark.encode()}, tag=f"{topic}-{mark}",
            expires_at=expires, **fields,
        )  # fmt: skip

    def in_half_a_minute(self) -> int:
        """A time at which a record expires."""
        return self.clock.time_ns() + 30 * 10**9

    def append(self) -> None:
        """Some records to one topic."""
        name = self.random.choice(sorted(TOPICS))
        records = [self.record(name) for _ in range(self.random.randrange(1, 12))]
        self.topic(name).append_many(records)

    def batch(self) -> None:
        """One record each to all topics, over all shards."""
        with self.store.batch() as batch:
            for name in sorted(TOPICS):
                record = self.record(name)
                self.topic(name)
                batch.topic(name).append(record.value, key=record.key, tag=record.tag)

    def stage(self) -> None:
        """Records of another process; a large file stays the file it is, a small one is copied."""
        self.batches += 1
        count = self.random.choice((3, 400))
        rows = [self.record("plain") for _ in range(count)]
        writer = StageWriter(PosixFileSystem(), self.store.path, compression="zstd")
        writer.write(
            pa.table({
                "value": pa.array([one.value for one in rows], pa.binary()),
                "key": pa.array([one.key for one in rows], pa.binary()),
            })
        )  # fmt: skip
        staged = writer.finish()
        assert staged is not None
        manifest = manifest_of("job", self.batches, [append_part("plain", [staged])])
        publish(PosixFileSystem(), self.store.path, manifest)
        self.store.adopt()

    def work(self) -> None:
        """Messages that are put, got, acknowledged, given back, and die."""
        queue = self.store.queue("work", max_deliveries=2, lease=1000.0)
        for _ in range(self.random.randrange(10)):
            mark = self.marker()
            queue.put(
                mark.encode() * 3, dedup_id=mark, headers={f"h-{mark}": mark.encode()},
                priority=self.random.choice((0, 5)), delay=self.random.choice((None, 900.0)),
            )  # fmt: skip
        for message in queue.get_many(self.random.randrange(1, 8), timeout=0):
            choice = self.random.random()
            if choice < 0.5:
                queue.ack(message)
            elif choice < 0.8:
                queue.nack(message)
            else:
                self.held.append(message)

    def delete(self) -> None:
        """By one of the forms, or two together."""
        name = self.random.choice(sorted(TOPICS))
        topic = self.topic(name)
        living = [item for item in topic.read() if isinstance(item, Record)]
        if not living:
            return
        chosen = self.random.choice(living)
        forms: list[dict[str, Any]] = [
            {"key": chosen.key},
            {"tag": chosen.tag},
            {"tag_glob": f"{name}-marker*{self.random.randrange(10)}z"},
            {"offsets": sorted({one.offset for one in self.random.choices(living, k=5)})},
            {"before": living[len(living) // 4].offset},
            {"before": self.clock.time_ns() / 1e9 - 60.0},
            {"key": chosen.key, "before": chosen.offset + 1},
        ]
        conditions = self.random.choice(forms)
        if None not in conditions.values():
            topic.delete(**conditions)

    def drop(self) -> None:
        """A whole topic, and the dead letters."""
        if self.random.random() < 0.5:
            self.store.drop_topic(self.topic(self.random.choice(("plain", "packed"))).name)
        else:
            self.store.queue("work").dead.purge()

    def keep(self) -> None:
        """Leave what a repair, a job that died and a crash leave."""
        fs, root = PosixFileSystem(), self.store.path
        Quarantine(fs, root).keep_file(self.any_file(), f"log-{self.random.random()}.bin")
        topic = self.topic("plain").log
        stage = BlockStage(fs, root, topic.id, 0)
        stage.finish(1)
        segment = Path(self.any_file())
        stale = Path(root, "topics", f"{topic.id:016x}", f"{(1 << 50):020d}.tmp")
        stale.parent.mkdir(exist_ok=True, parents=True)
        stale.write_bytes(segment.read_bytes())
        orphan = Path(root, "incoming", next(iter(os.listdir(Path(root, "incoming")))))
        with orphan.open("ab") as file:
            file.write(segment.read_bytes())

    def any_file(self) -> str:
        """A log file, which has everything in it."""
        return str(max(Path(self.store.path, "log").rglob("*.log"), key=lambda p: p.stat().st_size))

    def upkeep(self) -> None:
        """Run the background work, as time passes."""
        self.random.choice(
            (self.store.checkpoint, self.store.snapshot, lambda: self.store.compact())
        )()
        self.clock.advance(self.random.choice((1.0, 15.0)))

    def topic(self, name: str) -> stratalog.Topic:
        """One of the topics, made if it is not there."""
        if name not in self.store.topics():
            return self.store.create_topic(name, **TOPICS[name])
        return self.store.topic(name)

    def run(self, steps: int) -> None:
        """Do all of it, in any order."""
        acts = [self.append] * 8 + [self.work] * 4 + [self.delete] * 4 + [self.upkeep] * 3
        acts += [self.batch, self.batch, self.stage, self.drop, self.keep]
        for _ in range(3):
            self.batch()
        for _ in range(steps):
            self.random.choice(acts)()


def readable(store: Store) -> dict[str, dict[int, Record]]:
    """All records that can be read, by topic and offset."""
    return {
        name: {item.offset: item for item in store.topic(name).read() if isinstance(item, Record)}
        for name in store.topics()
    }


def gaps(store: Store) -> dict[str, set[int]]:
    """Offsets that readers are told of as gone by themselves."""
    return {
        name: {
            offset
            for item in store.topic(name).read()
            if isinstance(item, Gap)
            for offset in range(item.first, item.last + 1)
        }
        for name in store.topics()
    }


def last_by_key(records: dict[int, Record]) -> dict[bytes | None, Record]:
    """Compute what is left of a compacted topic; an expired deletion leaves nothing."""
    newest = {record.key: record for record in records.values()}
    return {key: one for key, one in newest.items() if one.value is not None}


def check_files(living: dict[str, dict[int, Record]], *places: Path) -> None:
    """Markers in the files are those of records that can be read."""
    allowed = {
        mark
        for records in living.values()
        for record in records.values()
        for mark in search_record(record)
    }
    found = search(PATTERN, *places)
    left = {mark: files for mark, files in found.items() if mark not in allowed}
    assert not left, f"{len(left)} markers of {len(found)} are left: {sorted(left.items())[:8]}"


def search_record(record: Record) -> list[bytes]:
    """The markers of one record."""
    import re

    text = b" ".join((record.value or b"", record.key or b"", (record.tag or "").encode()))
    headers = b" ".join(name.encode() + value for name, value in record.headers.items())
    return re.findall(PATTERN, text + b" " + headers)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_of_what_is_gone_is_found(open_store: OpenStore, tmp_path: Path, seed: int) -> None:
    """Before the purge there is plenty of it, so the search can find it."""
    clock = ManualClock()
    cold = tmp_path / "cold"
    store = open_store(clock=clock, cold=str(cold), **OPTIONS)
    history = History(store, clock, seed)
    data = Path(store.path)
    for _ in range(2):
        history.run(60)
        before, told = readable(store), gaps(store)
        held = {message.offset for message in history.held}
        assert len(search(PATTERN, data, cold)) > sum(map(len, before.values()))
        report = store.compact(purge=True)
        assert report.purge is not None
        assert report.purge.segments_rewritten
        after = readable(store)
        check_files(after, data, cold)
        for name, records in before.items():
            if name == "work":
                assert held <= after[name].keys()
            elif store.topic(name).options.compact:
                assert last_by_key(after[name]) == last_by_key(records)
            elif name != "bounded":
                assert after[name] == records
        for name, offsets in gaps(store).items():
            assert told[name] <= offsets
            assert not offsets & after[name].keys()
        left = store.queue("work").stats()
        store.close()
        check_files(after, data, cold)
        assert stratalog.verify(data, cold=str(cold)).ok
        store = history.store = open_store(clock=clock, cold=str(cold), **OPTIONS)
        assert readable(store) == after
        reopened = store.queue("work").stats()
        assert (reopened.waiting, reopened.delayed, reopened.pending, reopened.dead) == (
            left.waiting, left.delayed, left.pending, left.dead,
        )  # fmt: skip
        history.held.clear()

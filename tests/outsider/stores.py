"""Stores with everything in them, and what must be found there.

A `Scene` has one store in four states: as it is, as it was a while ago, and a stranger beside it
that has files of the same names. Everything acknowledged is written down in `Expected`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from stratalog import Record, Store
from stratalog.fs import PosixFileSystem
from stratalog.handles.publish import publish
from stratalog.options import StoreOptions
from stratalog.segments.staging import StageWriter, append_part, manifest_of

FS = PosixFileSystem()

OPTIONS = {
    "shards": 2,
    "log_file_bytes": 16 << 10,
    "log_chunk_bytes": 4 << 10,
    "disk_reserve_bytes": 0,
    "hot_segments": 2,
}


@dataclass(slots=True)
class Topic:
    """The acknowledged records of one topic."""

    id: int
    name: str
    values: list[bytes | None] = field(default_factory=list)
    """By offset."""
    needed: set[int] = field(default_factory=set)
    """Offsets that have to be read, or accounted for."""
    deleted: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Scene:
    """A store, its past, and a stranger."""

    name: str
    root: Path
    """The store as it is."""
    past: Path
    """A copy of the store a while ago."""
    other: Path
    """Another store with files of the same names."""
    topics: dict[int, Topic]
    """The contents that the store must have, by id."""


class _Builder:
    """One store while it is made."""

    def __init__(self, root: Path, cold: Path, rng: Random, word: bytes) -> None:
        self.root = root
        self.cold = cold
        self.rng = rng
        self.word = word
        self.topics: dict[str, Topic] = {}
        self.store = self.open()

    def open(self) -> Store:
        options = StoreOptions.build({**OPTIONS, "cold": str(self.cold)}, {})
        return Store(self.root, options, background=False)

    def create(self, name: str, **options: Any) -> None:
        self.store.create_topic(name, **options)
        self.topics[name] = Topic(self.store.topic(name).log.id, name)

    def append(self, name: str, count: int, **fields: object) -> None:
        """A batch of records, of sizes that differ."""
        topic = self.topics[name]
        records = []
        for _ in range(count):
            number = len(topic.values)
            value = b"%s %s %d " % (self.word, name.encode(), number)
            value *= self.rng.choice((1, 1, 2, 6))
            records.append(Record(value=value, **fields))  # type: ignore[arg-type]
            topic.values.append(value)
            topic.needed.add(number)
        last = self.store.topic(name).append_many(records)[1]
        assert last == len(topic.values) - 1

    def upsert(self, name: str, keys: int) -> None:
        """One record of each key; a few are deletions."""
        topic = self.topics[name]
        for key in range(keys):
            number = len(topic.values)
            is_gone = self.rng.random() < 0.1
            value = None if is_gone else b"%s %d of key %d" % (self.word, number, key)
            self.store.topic(name).append(value, key=b"key %d" % key)
            topic.values.append(value)
            topic.needed -= {n for n in topic.needed if n % keys == key}
            if not is_gone:
                topic.needed.add(number)

    def delete(self, name: str, offsets: list[int]) -> None:
        self.store.topic(name).delete(offsets=offsets)
        topic = self.topics[name]
        topic.deleted |= set(offsets)
        topic.needed -= set(offsets)

    def put(self, name: str, count: int) -> None:
        """Messages with priorities and ids, some of them consumed."""
        queue = self.store.queue(name)
        topic = self.topics.setdefault(name, Topic(queue.topic.log.id, name))
        for _ in range(count):
            number = len(topic.values)
            value = b"%s message %d" % (self.word, number)
            queue.put(value, priority=self.rng.choice((0, 128)), dedup_id=f"{number}")
            topic.values.append(value)
            topic.needed.add(number)
        messages = queue.get_many(count // 2, timeout=0)
        queue.ack(*messages[::2])

    def stage(self, name: str, count: int, batch: int) -> None:
        """Records that were published by a job, and may be adopted."""
        values = [b"%s staged %d.%d" % (self.word, batch, n) for n in range(count)]
        writer = StageWriter(FS, str(self.root))
        writer.write(pa.table({"value": pa.array(values, pa.binary())}))
        staged = writer.finish()
        assert staged is not None
        publish(self.root, manifest_of("job", batch, [append_part(name, [staged])]))

    def adopt(self, name: str, count: int, batch: int) -> None:
        """Records of a job that are adopted, and in no segment of the topic yet."""
        topic = self.topics[name]
        self.stage(name, count, batch)
        upkeep = self.store._upkeep
        assert upkeep is not None
        assert upkeep._adopter.adopt() == 1
        for n in range(count):
            topic.needed.add(len(topic.values))
            topic.values.append(b"%s staged %d.%d" % (self.word, batch, n))

    def work(self, rounds: range) -> None:
        """Some of everything."""
        for number in rounds:
            self.append("plain", 14)
            self.append("packed", 9)
            self.append("tiered", 12)
            self.append("holes", 15, tag="t")
            self.upsert("keyed", 6)
            self.put("jobs", 4)
            group = self.store.topic("plain").group("readers")
            group.ack(group.poll("one", limit=8)[::2])
            with self.store.batch() as batch:
                for name in ("plain", "holes"):
                    value = b"%s %s joint %d" % (self.word, name.encode(), number)
                    batch.topic(name).append(value)
                    topic = self.topics[name]
                    topic.needed.add(len(topic.values))
                    topic.values.append(value)
            if number % 2:
                end = len(self.topics["holes"].values)
                self.delete("holes", self.rng.sample(range(max(0, end - 30), end), 9))
            self.store.checkpoint()
            if number % 2:
                self.store.compact()
            if number == 1:
                self.store.create_topic("gone").append(b"dropped")
                self.store.drop_topic("gone")

    def begin(self) -> None:
        """Create the topics."""
        self.create("plain", segment_records=20)
        self.create("packed", compression="zstd", segment_records=18)
        self.create("tiered", segment_records=15)
        self.create("holes", segment_records=16)
        self.create("keyed", compact=True, segment_records=12)
        self.create("staged", segment_records=1000)


Finish = Callable[[_Builder], None]


def _closed(builder: _Builder) -> None:
    builder.store.close()
    builder.stage("staged", 4, 9)


def _small(builder: _Builder) -> None:
    """Closed after a snapshot, with nothing in the log alone."""
    builder.store.snapshot()
    builder.store.snapshot()
    builder.store.close()


def build(base: Path, name: str, seed: int) -> Scene:
    """A scene: `closed`, `compact` (closed, and everything in segments) or `killed`."""
    rng = Random(seed)
    made: list[_Builder] = []
    for word in (b"ours", b"theirs"):
        builder = _Builder(base / word.decode(), base / f"cold-{word.decode()}", rng, word)
        builder.begin()
        builder.work(range(4))
        if word == b"ours":
            builder.store.sync()
            shutil.copytree(builder.root, base / "past")
        builder.work(range(4, 7))
        builder.adopt("staged", 5, 1)
        builder.append("plain", 3)
        builder.append("packed", 2)
        if name == "compact":
            _small(builder)
        elif name == "closed":
            _closed(builder)
        else:
            builder.store.sync()
        made.append(builder)
    ours = made[0]
    scene = Scene(
        name, base / "scene", base / "past", base / "theirs",
        {topic.id: topic for topic in ours.topics.values()},
    )  # fmt: skip
    shutil.copytree(ours.root, scene.root)
    if name == "killed":
        for builder in made:
            builder.store.close()
    (scene.root / "lock").unlink(missing_ok=True)
    return scene

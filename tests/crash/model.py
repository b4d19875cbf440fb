"""What a store was told, and what it must therefore hold after a crash."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from stratalog.format.merge import Part, merge
from stratalog.model import Durability, Gap, Record
from stratalog.options import StoreOptions
from stratalog.segments.read import read_batches
from stratalog.segments.segment import Slice
from stratalog.segments.stage import (
    BlockStage,
    StageWriter,
    append_part,
    backlog_part,
    manifest_of,
    publish,
    replace_part,
)
from stratalog.store import Store
from stratalog.testing import FakeDisk, ManualClock, MonitorFs
from stratalog.topic import Topic

ROOT = "/data"

Joint = dict[str, tuple[int, int]]
"""Start and end, by topic, of what was appended in one batch."""

Fields = tuple[bytes | None, bytes | None, str | None]
"""Value, key and tag: enough to tell records apart."""


@dataclasses.dataclass
class TopicModel:
    """One topic: everything that was ever sent, in the order of its offsets."""

    sent: list[Fields] = dataclasses.field(default_factory=list)
    durable: int = 0
    """Offsets below this were acknowledged as on the disk."""
    batches: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Start and end of what is all there or not at all."""
    is_ephemeral: bool = False
    is_created: bool = False
    deleted: set[int] = dataclasses.field(default_factory=set)
    """Offsets whose deletion was acknowledged: they never come back."""
    deleting: set[int] = dataclasses.field(default_factory=set)
    """Offsets whose deletion was asked for."""
    deleted_below: int = 0
    deleting_below: int = 0
    evictable_below: int = 0
    """Retention may have taken what is below."""
    is_compacted: bool = False
    is_dropping: bool = False
    queue: Any = None
    """What is known of its messages, if it is a queue."""
    is_consumed: bool = False
    """Whether what was consumed may be gone."""


class Session:
    """A store on a fake disk, with a model that is told everything before the store is."""

    def __init__(self, disk: FakeDisk, clock: ManualClock, **options: Any) -> None:
        self.disk = disk
        self.clock = clock
        self.options = options
        self.topics: dict[str, TopicModel] = {}
        self.monitor: MonitorFs
        self.store: Store
        self._pending: list[tuple[str, int]] = []
        self.joints: list[Joint] = []
        """What is in all of its topics or in none."""
        self.copies: dict[str, dict[str, list[Fields]]] = {}
        """What each backup must hold, if it is a store at all."""
        self.finished: set[str] = set()
        """Backups that returned."""
        self.adoptions: list[dict[str, int]] = []
        """Per batch that was published, where its records end in each topic."""

    def open(self, **options: Any) -> None:
        """Open the store with small files, so that little data makes many of them."""
        self.options |= options
        self.monitor = MonitorFs(self.disk)
        self.store = open_store(self.monitor, self.clock, **self.options)

    def reopen(self, **options: Any) -> None:
        """Close cleanly, which makes everything durable, and open again."""
        self.store.close()
        self._all_durable()
        self.open(**options)

    def create(self, name: str, **options: Any) -> Topic:
        """Create a topic."""
        model = self.topics.setdefault(name, TopicModel())
        model.is_ephemeral = options.get("durability") == "ephemeral"
        model.is_compacted = options.get("compact", False)
        topic = self.store.create_topic(name, **options)
        model.is_created = True
        return topic

    def append(self, name: str, value: bytes | None, **options: Any) -> int:
        """Append one record."""
        topic, model = self._topic(name)
        model.sent.append((value, options.get("key"), options.get("tag")))
        offset = topic.append(value, **options)
        assert offset == len(model.sent) - 1
        if (options.get("durability") or topic.durability) == Durability.FSYNC:
            model.durable = offset + 1
        return offset

    def append_many(self, name: str, values: Sequence[bytes | Record], **options: Any) -> None:
        """Append one atomic batch."""
        topic, model = self._topic(name)
        start = len(model.sent)
        for value in values:
            record = value if isinstance(value, Record) else Record(value=value)
            model.sent.append((record.value, record.key, record.tag))
        model.batches.append((start, len(model.sent)))
        assert topic.append_many(values, **options) == (start, len(model.sent) - 1)
        if (options.get("durability") or topic.durability) == Durability.FSYNC:
            model.durable = len(model.sent)

    def batch(self, appends: Mapping[str, Sequence[bytes | Record]], **options: Any) -> None:
        """Append to several topics at once; all of them have it or none."""
        topics = {name: self._topic(name) for name in appends}
        joint: Joint = {}
        for name, values in appends.items():
            model = topics[name][1]
            start = len(model.sent)
            for value in values:
                record = value if isinstance(value, Record) else Record(value=value)
                model.sent.append((record.value, record.key, record.tag))
            joint[name] = (start, len(model.sent))
        self.joints.append(joint)
        handles = {}
        with self.store.batch(**options) as batch:
            for name, values in appends.items():
                handles[name] = batch.topic(name).append_many(values)
        assert {name: (one.first, one.last + 1) for name, one in handles.items()} == joint
        durability = options.get("durability")
        shards = {id(topic.log.shard) for topic, _ in topics.values()}
        classes = {durability or topic.durability for topic, _ in topics.values()}
        if Durability.FSYNC in classes or len(shards) > 1:
            for name, (_, end) in joint.items():
                topics[name][1].durable = end

    def nowait(self, name: str, value: bytes) -> Any:
        """Append one record without waiting."""
        topic, model = self._topic(name)
        model.sent.append((value, None, None))
        return topic.append_nowait(value)

    def resolved(self, name: str, offset: int) -> None:
        """A future was resolved: everything up to it is durable."""
        model = self.topics[name]
        model.durable = max(model.durable, offset + 1)

    def kill(self) -> None:
        """Leave the store as a killed process does."""
        if hasattr(self, "store"):
            kill(self.store)

    def sync(self) -> None:
        """Make everything durable."""
        self.store.sync()
        self._all_durable()

    def tick(self, seconds: float = 0.01) -> None:
        """Do what the background thread would do after so many seconds."""
        self.clock.advance(seconds)
        assert self.store._log is not None
        self.store._log.tick()

    def delete(self, name: str, **conditions: Any) -> None:
        """Delete by offsets, tag or offset below."""
        topic, model = self._topic(name)
        chosen = set(range(len(model.sent)))
        if "offsets" in conditions:
            chosen &= set(conditions["offsets"])
        if "tag" in conditions:
            chosen = {o for o in chosen if model.sent[o][2] == conditions["tag"]}
        before = conditions.get("before")
        if before is not None:
            chosen = {offset for offset in chosen if offset < before}
        if set(conditions) == {"before"}:
            model.deleting_below = max(model.deleting_below, conditions["before"])
        model.deleting |= chosen
        topic.delete(**conditions)
        model.deleted |= chosen
        model.deleted_below = model.deleting_below

    def compact(self) -> None:
        """Evict, rewrite, compact and move everything that can be."""
        for name, model in self.topics.items():
            keep = self.store.topic(name).options.retention_records
            if keep is not None:
                model.evictable_below = max(model.evictable_below, len(model.sent) - keep)
        self.store.compact()
        self._all_durable()

    def drop(self, name: str) -> None:
        """Drop a topic, and forget what it had."""
        self.topics[name].is_dropping = True
        self.store.drop_topic(name)
        self.joints = [{n: s for n, s in one.items() if n != name} for one in self.joints]
        self.topics[name] = TopicModel()

    def checkpoint(self) -> None:
        """Put everything into segments, which makes it durable."""
        self.store.checkpoint()
        self._all_durable()

    def snapshot(self) -> None:
        """Checkpoint, and give up the log behind it."""
        self.store.snapshot()
        self._all_durable()

    def backup(self, target: str) -> None:
        """Copy the store, which makes everything durable."""
        self.copies[target] = {
            name: [] if model.is_ephemeral else list(model.sent)
            for name, model in self.topics.items()
        }
        self.store.backup(target)
        self.finished.add(target)
        self._all_durable()

    def publish(self, writer: str, batch: int, **topics: list[bytes]) -> None:
        """Stage and publish records, as another process does."""
        parts = []
        for name, values in topics.items():
            staged = StageWriter(self.disk, ROOT)
            staged.write(pa.table({"value": pa.array(values, pa.binary())}))
            segment = staged.finish()
            assert segment is not None
            parts.append(append_part(name, [segment]))
        if not publish(self.disk, ROOT, manifest_of(writer, batch, parts)):
            return
        if self.store.is_adopted(writer, batch):
            return
        ends = {}
        for name, values in topics.items():
            model = self.topics.setdefault(name, TopicModel())
            start = len(model.sent)
            model.sent += [(value, None, None) for value in values]
            ends[name] = len(model.sent)
            model.batches.append((start, ends[name]))
        self.adoptions.append(ends)

    def adopt(self, *, upkeep: bool = True) -> None:
        """Adopt what was published; without `upkeep` no checkpoint follows."""
        assert self.store._upkeep is not None
        if upkeep:
            self.store.adopt()
        else:
            self.store._upkeep._adopter.adopt()
        for ends in self.adoptions:
            for name, end in ends.items():
                model = self.topics[name]
                model.is_created = True
                model.durable = max(model.durable, end)

    def replace(self, name: str, first: int, end: int, *, backlog: bool = False) -> None:
        """Have sealed segments, or records of the log, replaced by one segment that is the same."""
        log = self.store.topic(name)._log
        writer = BlockStage(self.disk, ROOT, log.id, first)
        parts = [Part(*part) for part in read_batches(log, first, end) if isinstance(part, Slice)]
        writer.append(merge(parts, 0))
        staged = [writer.finish(end)]
        summaries = [segment.summary for segment in log.history.chain.segments]
        part = (
            backlog_part(log.id, log.epoch, staged)
            if backlog
            else replace_part(log.id, log.epoch, staged, summaries)
        )
        publish(self.disk, ROOT, manifest_of(f"job-{name}-{first}-{end}", None, [part]))
        self.adopt()
        assert self.store.stats().rejected == {}

    def _topic(self, name: str) -> tuple[Topic, TopicModel]:
        model = self.topics.setdefault(name, TopicModel())
        topic = self.store.topic(name)
        model.is_created = True
        return topic, model

    def _all_durable(self) -> None:
        for model in self.topics.values():
            model.durable = len(model.sent)


def open_store(fs: Any, clock: ManualClock, **options: Any) -> Store:
    """A store with small files and no background thread."""
    small = {"shards": 2, "log_file_bytes": 8192, "log_chunk_bytes": 4096, "disk_reserve_bytes": 0}
    return Store(
        ROOT, StoreOptions.build(small | options, {}), fs=fs, clock=clock, background=False
    )


def kill(store: Store) -> None:
    """Leave a store as a killed process does: nothing is written, nothing is closed."""
    store.is_closed = store._has_let_go = True


def check_joints(store: Store, session: Session) -> None:
    """What was appended to several topics at once is in all of them or in none."""
    names = set(store.topics())
    for joint in session.joints:
        kept = {
            name: name in names and store.topic(name).next_offset >= end
            for name, (_, end) in joint.items()
            if not session.topics[name].is_dropping
        }
        assert len(set(kept.values())) <= 1, f"half a batch: {kept} of {joint}"
        for name, (start, end) in joint.items():
            if name in names and name in kept:
                count = store.topic(name).next_offset
                assert not start < count < end, "half a batch in one topic"


def check_recovered(store: Store, topics: dict[str, TopicModel]) -> None:
    """Hold a recovered store against what it was told."""
    assert store.damage is None, store.damage
    names = store.topics()
    for name, model in topics.items():
        if name not in names:
            assert not model.is_created or model.is_dropping, f"topic {name!r} is gone"
            continue
        topic = store.topic(name)
        if model.is_ephemeral:
            assert topic.next_offset >= len(model.sent) - 1, "an ephemeral offset would be reused"
            assert all(isinstance(item, Gap) for item in topic.read())
            continue
        check_topic(topic, model)
        if model.queue is not None:
            model.queue.check(store, topic, model)


def check_adoptions(store: Store, adoptions: list[dict[str, int]]) -> None:
    """A batch is in all of its topics, or in none."""
    names = store.topics()
    for ends in adoptions:
        found = {
            name: name in names and store.topic(name).next_offset >= end
            for name, end in ends.items()
        }
        assert len(set(found.values())) == 1, f"a part of a batch was adopted: {found}"


def check_topic(topic: Topic, model: TopicModel) -> None:
    """Every offset is a record that was sent, a gap that may be, or deleted on purpose."""
    found: dict[int, Record] = {}
    gaps: set[int] = set()
    end = 0
    for item in topic.read():
        if isinstance(item, Gap):
            assert item.first >= end, "gaps and records out of order"
            gaps.update(range(item.first, item.last + 1))
            end = item.last + 1
        else:
            assert item.offset >= end, "records out of order"
            found[item.offset] = item
            end = item.offset + 1
    count = topic.next_offset
    assert count >= model.durable, (
        f"topic {topic.name!r}: {count} records, {model.durable} were acknowledged as durable"
    )
    for offset, record in found.items():
        fields = (record.value, record.key, record.tag)
        assert fields == model.sent[offset], f"offset {offset} was never sent so"
        assert offset not in model.deleted, f"offset {offset} was deleted and is back"
        assert offset >= model.deleted_below, f"offset {offset} was deleted and is back"
    may_be_gap = model.queue.consuming if model.is_consumed else range(model.evictable_below)
    assert gaps <= set(may_be_gap), f"a gap that may not be: {gaps}"
    may_be_gone = model.deleting | gaps | (_replaced(model, count) if model.is_compacted else set())
    for offset in range(max(model.deleting_below, model.deleted_below), count):
        assert offset in found or offset in may_be_gone, f"offset {offset} is gone"
    for start, last in model.batches:
        assert not start < count < last, "half a batch"
    stamps = [record.timestamp for record in found.values()]
    assert stamps == sorted(stamps), "time went back"


def _replaced(model: TopicModel, count: int) -> set[int]:
    """Offsets that compaction may remove: a later record has the key, or the key was deleted."""
    newest = {key: offset for offset, (_, key, _) in enumerate(model.sent[:count])}
    return {
        offset
        for offset, (value, key, _) in enumerate(model.sent[:count])
        if key is not None and (newest[key] != offset or value is None)
    }


Workload = Callable[[Session], None]

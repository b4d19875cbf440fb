"""The calls that a store acknowledged, and what it must therefore hold after a crash."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from stratalog.errors import DiskFullError, StorageError
from stratalog.format.merge import Part, merge
from stratalog.handles.route import Route
from stratalog.handles.schedule import Schedule
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.model import Durability, Gap, Record
from stratalog.options import StoreOptions
from stratalog.segments.read import read_batches
from stratalog.segments.segment import Slice
from stratalog.segments.staging import (
    BlockStage,
    StageWriter,
    append_part,
    backlog_part,
    manifest_of,
    publish,
    replace_part,
)
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock, MonitorFs

ROOT = "/data"

Joint = dict[str, tuple[int, int]]
"""Start and end, by topic, of what was appended in one batch."""

Fields = tuple[bytes | None, bytes | None, str | None]
"""Value, key and tag: enough to tell records apart."""

LATE = "late"
"""Tag of records whose value is the time that they were given."""


@dataclasses.dataclass
class TopicModel:
    """One topic: everything that was ever sent, in the order of its offsets."""

    sent: list[Fields] = dataclasses.field(default_factory=list)
    told: int = 0
    """Offsets below this were told to callers: none of them names another record, ever."""
    skipped: set[int] = dataclasses.field(default_factory=set)
    """Offsets that a crash before took: no record was ever sent with one."""
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
    segment_records: set[int] = dataclasses.field(default_factory=set)
    """Values that this option may have after a crash, if it was altered."""
    is_dropping: bool = False
    queue: Any = None
    """The state of its messages, if it is a queue."""
    is_consumed: bool = False
    """Whether what was consumed may be gone."""


class Session:
    """A store on a fake disk, with a model that is told everything before the store is."""

    def __init__(self, disk: FakeDisk, clock: ManualClock, **options: Any) -> None:
        self.disk = disk
        self.clock = clock
        self.options = options
        self.topics: dict[str, TopicModel] = {}
        self.faults: FaultFs
        self.monitor: MonitorFs
        self.store: Store
        self._pending: list[tuple[str, int]] = []
        self.joints: list[Joint] = []
        """Batches that are in all of their topics or in none."""
        self.copies: dict[str, dict[str, list[Fields]]] = {}
        """The contents of each backup, if it is a store at all."""
        self.finished: set[str] = set()
        """Backups that returned."""
        self.adoptions: list[dict[str, int]] = []
        """Per batch that was published, where its records end in each topic."""
        self.routes: dict[tuple[str, str], str | None] = {}
        """The tag that routes from one topic to another forward; None for all records."""
        self.has_schedules = False

    def open(self, **options: Any) -> None:
        """Open the store with small files, so that little data makes many of them."""
        self.options |= options
        self.faults = FaultFs(self.disk)
        self.monitor = MonitorFs(self.faults)
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

    def alter(self, name: str, segment_records: int, **options: Any) -> None:
        """Change options of a topic, one of which says what became of it."""
        topic, model = self._topic(name)
        model.segment_records |= {topic.options.segment_records, segment_records}
        topic.alter(segment_records=segment_records, **options)
        model.segment_records = {segment_records}

    def append(self, name: str, value: bytes | None, **options: Any) -> int:
        """Append one record."""
        topic, model = self._topic(name)
        model.sent.append((value, options.get("key"), options.get("tag")))
        offset = topic.append(value, **options)
        assert offset == len(model.sent) - 1
        model.told = offset + 1
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
        model.told = len(model.sent)
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
        for name, (_, end) in joint.items():
            self.topics[name].told = end
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

    def refuse(self) -> None:
        """Let the disk be full when the background thread writes, and have space again then.

        What no thread waited for is lost, and reported; its offsets stay used.
        """
        self.faults.add(
            Fault(operation="pwrite", error=errno.ENOSPC, path_contains=".log", always=True)
        )
        Session.tick(self, 2.0)
        self.faults.clear()
        assert self.store._log is not None
        for shard in self.store._log.shards:
            with contextlib.suppress(DiskFullError), shard.lock:
                shard.check()
        for name, model in self.topics.items():
            log = self.store.topic(name).log
            start, end = log.committed, log.next_offset
            assert model.durable <= start, "what was durable is gone"
            assert end >= model.told, "an offset would be given twice"
            model.sent[start:] = [(None, None, None)] * (end - start)
            model.skipped |= set(range(start, end))
            model.batches = [batch for batch in model.batches if batch[1] <= start]
            self.joints = [one for one in self.joints if one.get(name, (0, 0))[1] <= start]

    def delete(self, name: str, **conditions: Any) -> None:
        """Delete by offsets, key, tag or offset below."""
        topic, model = self._topic(name)
        chosen = set(range(len(model.sent)))
        if "offsets" in conditions:
            chosen &= set(conditions["offsets"])
        if "key" in conditions:
            chosen = {o for o in chosen if model.sent[o][1] == conditions["key"]}
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

    def compact(self, *, purge: bool = False) -> None:
        """Evict, rewrite, compact and move everything that can be."""
        for name, model in self.topics.items():
            keep = self.store.topic(name).options.retention_records
            if keep is not None:
                model.evictable_below = max(model.evictable_below, len(model.sent) - keep)
        self.store.compact(purge=purge)
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
        """Checkpoint, and release the log before it."""
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

    def route(self, source: str, destination: str, tag: str | None = None) -> Route:
        """Make a route; nothing else is appended to its destination."""
        self._topic(source)
        self._topic(destination)
        self.routes[source, destination] = tag
        return self.store.route(source, destination, tag_glob=tag)

    def forward(self) -> None:
        """Sync, and have all routes forward what there is, in the order they were made."""
        self.sync()
        for (source, destination), tag in self.routes.items():
            routes = [(one.source, one.destination, one) for one in self.store.routes()]
            route = next((r for *ends, r in routes if ends == [source, destination]), None)
            if route is None or route.is_paused or route.error:
                continue
            model = self.topics[destination]
            begin = route.stats().cursor
            model.sent += [one for one in self.topics[source].sent[begin:] if tag in (None, one[2])]
        assert self.store._upkeep is not None
        forwarder = self.store._upkeep.forwarder
        forwarder.run()
        for problem, _ in forwarder._failures.values():
            raise StorageError(problem)  # the thread would try again; a workload ends here
        for _, destination in self.routes:
            model = self.topics[destination]
            model.told = len(model.sent)
            if self.store.topic(destination).durability == Durability.FSYNC:
                model.durable = len(model.sent)

    def schedule(self, name: str, queue: str, every: float) -> Schedule:
        """Have messages with the schedule's name put into a queue, and nothing else."""
        self.has_schedules = True
        model = self.topics.setdefault(queue, TopicModel())
        schedule = self.store.schedule(name, queue=queue, every=every, value=name.encode())
        model.is_created = True
        return schedule

    def fire(self, seconds: float) -> None:
        """Let time pass, and have all schedules put what is due."""
        self.clock.advance(seconds)
        now = self.clock.time_ns()
        running = [one for one in self.store.schedules() if not one.is_paused and not one.error]
        due = [one for one in running if (one.stats().next_due or 0) <= now]
        before = {one.name: one.stats().fired for one in due}
        for one in due:
            self.topics[one.queue].sent.append((one.name.encode(), None, None))
        assert self.store._upkeep is not None
        scheduler = self.store._upkeep.scheduler
        scheduler.run()
        if scheduler._failures:
            self._forget_refused(due, before)
        for problem, _ in scheduler._failures.values():
            raise StorageError(problem)  # the thread would try again; a workload ends here
        for one in due:
            model = self.topics[one.queue]
            model.told = len(model.sent)
            if self.store.topic(one.queue).durability == Durability.FSYNC:
                model.durable = len(model.sent)

    def _forget_refused(self, due: list[Schedule], before: dict[str, int]) -> None:
        """Take back the messages that were refused before another one of their queue was put.

        What failed last may be in the log: a sync that fails leaves its frame there.
        """
        for queue in {one.queue for one in due}:
            ours = [one for one in due if one.queue == queue]
            done = [one.stats().fired > before[one.name] for one in ours]
            last = len(done) - done[::-1].index(True) if any(done) else 0
            kept = [one for one, is_put in zip(ours[:last], done, strict=False) if is_put]
            sent = self.topics[queue].sent
            sent[len(sent) - len(ours) :] = [
                (one.name.encode(), None, None) for one in (*kept, *ours[last:])
            ]

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
    """Records appended to several topics at once are in all of them or in none."""
    names = set(store.topics())
    for joint in session.joints:
        kept = {
            name: name in names and kept_end(store.topic(name)) >= end
            for name, (_, end) in joint.items()
            if not session.topics[name].is_dropping
        }
        assert len(set(kept.values())) <= 1, f"half a batch: {kept} of {joint}"
        for name, (start, end) in joint.items():
            if name in names and name in kept:
                count = kept_end(store.topic(name))
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
        assert topic.next_offset >= model.told, "an offset would be given twice"
        if model.queue is not None:
            model.queue.check(store, topic, model)


def check_routes(store: Store, session: Session) -> None:
    """Each destination has what its cursor says: every record that matches, once and in order."""
    for route in store.routes():
        if route.error:
            continue
        cursor = route.stats().cursor
        tag = session.routes[route.source, route.destination]
        source = list(store.topic(route.source).read(0, cursor))
        wanted = [(r.value, r.key, r.tag) for r in source
                  if isinstance(r, Record) and tag in (None, r.tag)]  # fmt: skip
        records = [r for r in store.topic(route.destination).read() if isinstance(r, Record)]
        found = [(r.value, r.key, r.tag) for r in records]
        assert found == wanted, f"{route}: cursor {cursor}, {len(found)} of {len(wanted)} records"
        assert route.stats().forwarded == len(found)


def check_schedules(store: Store) -> None:
    """Each queue has the message of every due time that its schedule knows of, once."""
    for schedule in store.schedules():
        stats = schedule.stats()
        records = [r for r in store.topic(stats.queue).read() if isinstance(r, Record)]
        found = [
            datetime.fromisoformat(r.headers["schedule.due"].decode())
            for r in records
            if r.headers["schedule.name"] == stats.name.encode()
        ]
        assert len(found) == stats.fired, f"{schedule}: {len(found)} of {stats.fired} messages"
        assert found == sorted(set(found)), f"{schedule}: a due time came twice"
        assert found[-1:] == ([schedule.last_due] if found else [])
        assert stats.next_due is None or stats.next_due > (stats.last_due or 0)


def check_adoptions(store: Store, adoptions: list[dict[str, int]]) -> None:
    """A batch is in all of its topics, or in none."""
    names = store.topics()
    for ends in adoptions:
        found = {
            name: name in names and kept_end(store.topic(name)) >= end for name, end in ends.items()
        }
        assert len(set(found.values())) == 1, f"a part of a batch was adopted: {found}"


def kept_end(topic: Topic) -> int:
    """Where records end: before the gap, if any, that the last crash or a full disk left."""
    gaps = [item for item in topic.read() if isinstance(item, Gap) and item.reason == "crash"]
    last = topic.log.committed  # a shard that takes no more cannot say what it owes
    return gaps[-1].first if gaps and gaps[-1].last + 1 == last else last


def settle_model(topic: Topic, model: TopicModel) -> None:
    """Have a model forget what a crash took, and go on where the topic does."""
    kept = kept_end(topic)
    del model.sent[kept:]
    model.skipped |= set(range(kept, topic.next_offset))
    model.sent += [(None, None, None)] * (topic.next_offset - kept)


def check_topic(topic: Topic, model: TopicModel) -> None:
    """Every offset is a record that was sent, a gap that may be, or deleted on purpose."""
    if model.segment_records:
        assert topic.options.segment_records in model.segment_records, "altered, and it is not"
    found: dict[int, Record] = {}
    gaps: set[int] = set()
    end = 0
    count = kept_end(topic)
    for item in topic.read():
        if isinstance(item, Gap) and item.reason == "crash":
            lost = set(range(item.first, item.last + 1))
            assert item.last + 1 == topic.next_offset or lost <= model.skipped, "a gap inside"
            end = item.last + 1
        elif isinstance(item, Gap):
            assert item.first >= end, "gaps and records out of order"
            gaps.update(range(item.first, item.last + 1))
            end = item.last + 1
        else:
            assert item.offset >= end, "records out of order"
            found[item.offset] = item
            end = item.offset + 1
    assert set(range(count, model.durable)) <= model.skipped, (
        f"topic {topic.name!r}: {count} records, {model.durable} were acknowledged as durable"
    )
    for offset, record in found.items():
        fields = (record.value, record.key, record.tag)
        assert fields == model.sent[offset], f"offset {offset} was never sent so"
        if record.tag == LATE:
            assert record.event_time == int(record.value or b""), "its own time is lost"
        assert offset not in model.deleted, f"offset {offset} was deleted and is back"
        assert offset >= model.deleted_below, f"offset {offset} was deleted and is back"
    may_be_gap = model.queue.consuming if model.is_consumed else range(model.evictable_below)
    assert gaps <= set(may_be_gap), f"a gap that may not be: {gaps}"
    may_be_gone = (
        model.deleting
        | set(may_be_gap)
        | model.skipped
        | (_replaced(model, count) if model.is_compacted else set())
    )
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

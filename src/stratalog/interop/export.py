"""Export: a store's topics and queues as a foreign directory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from stratalog.errors import OptionError, UnknownTopicError
from stratalog.fs import FileSystem
from stratalog.handles.dead_letters import SUFFIX
from stratalog.handles.kinds import TABLE
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.interop.flo.write import write as write_flo
from stratalog.interop.fluxmq.write import write as write_fluxmq
from stratalog.interop.ledgerq import format as ledgerq
from stratalog.interop.ledgerq.letters import digest_of, with_their_headers
from stratalog.interop.ledgerq.write import write as write_ledgerq
from stratalog.interop.model import SCHEMA, DedupId, ForeignGroup, ForeignTopic, Pending
from stratalog.interop.topics.write import write as write_topics
from stratalog.log.topic import TopicLog
from stratalog.model import Operation
from stratalog.state.group_state import GroupState


class ExportReport(msgspec.Struct, frozen=True):
    """The result of an export."""

    layout: str
    path: str
    records: int
    topics: list[str]
    groups: list[str]


def export(
    fs: FileSystem, layout: str, store: Store, names: list[str] | None, path: str
) -> ExportReport:
    """Write topics and queues of a store into a new or empty directory."""
    _check_empty(fs, path)
    chosen = _choose(layout, store, names)
    if layout == "ledgerq":
        return _export_queue(fs, store, chosen[0], path)
    fs.makedirs(path)
    contents = [foreign_topic(store, store.topic(name)) for name in chosen]
    if layout == "flo":
        for topic in contents:
            _end_expired(store, topic)
        return ExportReport(layout, path, write_flo(fs, path, contents), chosen, [])
    if layout == "topics":
        records = write_topics(fs, path, [_without_consumed(topic) for topic in contents])
        return ExportReport(layout, path, records, chosen, [])
    groups = [group for name in chosen for group in _groups(store.topic(name))]
    records = write_fluxmq(fs, path, contents, groups)
    titles = [f"{group.topic}/{group.name}" for group in groups]
    return ExportReport(layout, path, records, chosen, titles)


def _check_empty(fs: FileSystem, path: str) -> None:
    if fs.listdir(path):
        raise OptionError(f"{path} is not empty: export into a new directory")


def _export_queue(fs: FileSystem, store: Store, name: str, path: str) -> ExportReport:
    """Write a queue in LedgerQ's layout, and its dead letters to a directory beside it."""
    queue = foreign_topic(store, store.topic(name))
    letters = store.find_topic(name + SUFFIX)
    # LedgerQ refuses a directory of dead letters inside of their queue's.
    beside = os.path.abspath(path) + ledgerq.DEAD_SUFFIX
    if letters is not None and letters.next_offset:
        _check_empty(fs, beside)
        fs.makedirs(beside)
        write_ledgerq(fs, beside, with_their_headers(foreign_topic(store, letters), queue))
    fs.makedirs(path)
    queue.dedup = _dedup_ids(store.topic(name))
    records = write_ledgerq(fs, path, queue)
    return ExportReport("ledgerq", path, records, [name], [])


def _dedup_ids(topic: Topic) -> list[DedupId]:
    """Return the valid deduplication ids, as LedgerQ's digests."""
    queue = topic.log.groups.queue
    if queue is None or not len(queue.dedup):
        return []
    entries = queue.dedup.entries()
    expiries = dict(zip(entries["offset"].tolist(), entries["expires"].tolist(), strict=True))
    found = []
    for batch in topic.read_arrow(min(expiries), columns=["offset", "timestamp", "key"]):
        stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("offset", "key")]
        for offset, key, stamp in zip(*columns, stamps, strict=True):
            if offset in expiries and key is not None:
                found.append(DedupId(digest_of(key), offset, stamp, expiries[offset]))
    return found


def _choose(layout: str, store: Store, names: list[str] | None) -> list[str]:
    if names is None and layout == "ledgerq":
        names = store.queues()
        if len(names) != 1:
            raise OptionError(
                f"A directory of LedgerQ is one queue, and this store has {len(names)}. Name one."
            )
    known = store.topics()
    for name in names or ():
        if name not in known:
            raise UnknownTopicError(
                f"There is no topic {name!r} to export. The store has {', '.join(known) or 'none'}."
            )
    if layout == "ledgerq" and len(names or ()) != 1:
        raise OptionError("A directory of LedgerQ is one queue: export queues one by one.")
    if names is not None:
        return list(dict.fromkeys(names))
    return [name for name in known if not name.endswith(SUFFIX)]


def foreign_topic(store: Store, topic: Topic) -> ForeignTopic:
    """Convert a topic or queue of ours to one to be written."""
    log = topic.log
    found = ForeignTopic(
        topic.name, log.kind, topic.earliest, topic.next_offset, lambda: _batches(topic),
        options={"durability": str(topic.durability)},
    )  # fmt: skip
    if log.kind == "queue":
        store.queue(topic.name)
        state = log.groups.find("", is_queue=True)
        assert state is not None
        _add_state(found, log, state)
    return found


def _waiting(log: TopicLog, state: GroupState) -> BitMap64:
    """Return the offsets that wait to be delivered, whether or not a consumer is active."""
    engine = log.groups.live.get(state.id)
    if engine is None:
        found = list(state.waiting.values())
    else:
        with engine.lock:
            found = list(engine.waiting().values())
    waiting = BitMap64()
    for bits in found:
        waiting |= bits
    waiting.update(state.delays.offsets().tolist())
    waiting.add_range(min(state.ingested, log.committed), log.committed)
    return waiting


def _batches(topic: Topic) -> Iterator[pa.RecordBatch]:
    for batch in topic.read_arrow(topic.earliest, columns=[*SCHEMA.names, "event_time"]):
        # The time that a late record was given; in a foreign log times may go back.
        times = pc.coalesce(batch.column("event_time"), batch.column("timestamp"))
        at = batch.schema.get_field_index("timestamp")
        yield batch.set_column(at, batch.schema.field(at), times).select(SCHEMA.names)


def _end_expired(store: Store, topic: ForeignTopic) -> None:
    """Append deletions to the records of a table, for expired keys without a logged expiry.

    Otherwise an older value of such a key would become its newest.
    """
    if topic.kind != TABLE:
        return
    whole, table = topic.batches, store.table(topic.name)

    def batches() -> Iterator[pa.RecordBatch]:
        newest: dict[bytes | None, int] = {}
        for batch in whole():
            columns = (batch.column(name).to_pylist() for name in ("key", "operation"))
            newest.update(zip(*columns, strict=True))
            yield batch
        keys = [key for key, operation in newest.items() if not operation and key not in table]
        count = len(keys)
        given = {
            "offset": pa.array(range(topic.end, topic.end + count), pa.int64()),
            "timestamp": pa.array([store.clock.time_ns()] * count, pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "operation": pa.array([int(Operation.DELETE)] * count, pa.uint8()),
        }
        yield pa.RecordBatch.from_arrays(
            [
                given[field.name].cast(field.type)
                if field.name in given
                else pa.nulls(count, field.type)
                for field in SCHEMA
            ],
            schema=SCHEMA,
        )

    topic.batches = batches


def _add_state(found: ForeignTopic, log: TopicLog, state: GroupState) -> None:
    """Add the position of the consumers of a queue."""
    left = _waiting(log, state) | BitMap64(state.pending)
    found.cursor = left.min() if left else log.committed
    done = BitMap64()
    done.add_range(found.cursor, log.committed)
    found.done = list(done - left)
    found.pending = _pending(state)
    found.options |= state.options


def _pending(state: GroupState) -> list[Pending]:
    return [
        Pending(
            offset, lease.consumer, lease.delivery_count, lease.delivered_at,
            lease.deadline if lease.consumer else 0,
        )
        for offset, lease in sorted(state.pending.items())
    ]  # fmt: skip


def _groups(topic: Topic) -> Iterator[ForeignGroup]:
    for state in topic.log.groups.named():
        pending = _pending(state)
        if state.mode == "stream":
            cursor = state.cursor
        else:
            # The cursor is after everything that was delivered; records that wait below it, because
            # they were given back, count as pending.
            log = topic.log
            waiting = _waiting(log, state)
            delivered = BitMap64()
            delivered.add_range(log.earliest, log.committed)
            delivered -= waiting
            cursor = delivered.max() + 1 if delivered else log.earliest
            known = {one.offset for one in pending}
            pending += [
                Pending(offset, "", 0)
                for offset in waiting
                if offset < cursor and offset not in known
            ]
            pending.sort(key=lambda one: one.offset)
        yield ForeignGroup(
            topic.name, state.name, state.mode, cursor, pending, state.deliveries, state.created_at
        )


def _without_consumed(topic: ForeignTopic) -> ForeignTopic:
    """Remove the consumed messages of a queue: topics deletes those."""
    if topic.kind != "queue":
        return topic
    cursor = topic.cursor or 0
    done = pa.array(topic.done, pa.int64())
    whole = topic.batches

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in whole():
            offsets = batch.column("offset")
            is_left = pa.compute.and_(
                pa.compute.greater_equal(offsets, cursor),
                pa.compute.invert(pa.compute.is_in(offsets, value_set=done)),
            )
            yield batch.filter(is_left)

    topic.batches = batches
    return topic


__all__ = ["ExportReport", "export", "foreign_topic"]

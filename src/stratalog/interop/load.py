"""Import: load a foreign directory into a store.

Offsets are preserved: a topic begins with the first offset there is, and holes become gaps, or
nothing where the original deleted records. Queues and groups continue where they were.

Crash: topics are imported one after the other, each from its first record on, and the positions of
its queue and groups are written last, in one frame. Running the import again adds what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from stratalog.errors import CorruptionError, OptionError, TopicExistsError
from stratalog.format.control import encode_delete, encode_floor
from stratalog.format.frame import FrameType
from stratalog.format.groups import Description, encode_group
from stratalog.handles.dead_letters import KIND
from stratalog.handles.queue import QUEUE_TOPIC
from stratalog.handles.store import Store
from stratalog.handles.table_store import table_options
from stratalog.handles.topic import Topic
from stratalog.interop.digest import COLUMNS, Digest
from stratalog.interop.flo.points import as_series
from stratalog.interop.ledgerq.letters import with_our_headers
from stratalog.interop.model import HOLE_MAX, Foreign, ForeignGroup, ForeignTopic, Pending, Problem
from stratalog.log.append import append_entries
from stratalog.log.arrow import ArrowAppend
from stratalog.log.log import Control
from stratalog.log.topic import TopicLog
from stratalog.model import Lease, Priority
from stratalog.options import QueueOptions, TopicOptions
from stratalog.state.router import control
from stratalog.state.table_projection import TableProjection

Progress = Callable[[int, int, str], None]

# Entries of a group in one frame: 41 bytes each.
_ENTRIES_MAX = 10_000
# Records that expire within a day may be gone before they are read back.
_EXPIRY_NANOSECONDS = 86_400 * 10**9


class ImportReport(msgspec.Struct, frozen=True):
    """The result of an import, or of a dry run."""

    layout: str
    path: str
    records: int
    topics: dict[str, int]
    """Records by the name of their topic, queue or table in the store."""
    groups: list[str]
    """Consumer groups, as `topic/group`."""
    dead: int
    """Dead letters."""
    problems: list[Problem]
    """Places that are damaged, torn or not understood, and what is lost there."""
    is_dry_run: bool
    duration: float


def load(
    foreign: Foreign, store: Store | None, *, progress: Progress | None = None
) -> ImportReport:
    """Load a directory into a store; without a store, read and count it."""
    begun = time.monotonic()
    if store is not None:
        check_names(foreign, store)
    total = sum(topic.end - topic.first for topic in foreign.contents.values())
    done = 0
    counts: dict[str, int] = {}
    for name, topic in foreign.contents.items():
        counts[name] = 0
        topic = as_series(topic)
        batches = _counted(topic) if store is None else _import(store, foreign, topic)
        with closing(batches):
            for rows in batches:
                counts[name] += rows
                if progress is not None:
                    progress(done + counts[name], total, name)
        done += topic.end - topic.first
    groups = [f"{group.topic}/{group.name}" for group in foreign.groups]
    if store is not None:
        for group in foreign.groups:
            _import_group(store, group)
        store.sync()
    dead = sum(_letters_left(topic) for topic in foreign.contents.values() if topic.kind == KIND)
    return ImportReport(
        foreign.layout, foreign.path, sum(counts.values()), counts, groups, dead,
        list(foreign.problems), store is None, time.monotonic() - begun,
    )  # fmt: skip


def _letters_left(topic: ForeignTopic) -> int:
    """Count the dead letters that were not handled yet."""
    cursor = topic.first if topic.cursor is None else topic.cursor
    return max(0, topic.end - max(cursor, topic.first))


def _counted(topic: ForeignTopic) -> Generator[int, None, None]:
    for batch in topic.batches():
        yield batch.num_rows


# --- records ------------------------------------------------------------------------------------


def check_names(foreign: Foreign, store: Store) -> None:
    """Raise if a name is taken by something that no import has begun."""
    for topic in map(as_series, foreign.contents.values()):
        found = store.find_topic(topic.name)
        if found is None:
            continue
        is_place = found.next_offset == 0 or topic.first <= found.next_offset
        is_begun = is_place and found.log.kind == _kind(topic)
        if found.log.groups and not found.next_offset and topic.first < topic.end:
            is_begun = False  # its consumers have a position of their own
        if not is_begun or not _is_same(found, topic):
            raise TopicExistsError(
                f"{topic.name!r} exists already and holds other records. Import under another "
                "name, with name=..., or drop it first."
            )


def _is_same(found: Topic, topic: ForeignTopic) -> bool:
    """Return whether the existing records are the first ones of the original, and no others."""
    names = ["offset", "value"]
    newest = found.next_offset
    end = topic.end  # a damaged original may have records after its end
    for batch in topic.batches():
        offsets = batch.column("offset").to_numpy()
        if len(offsets) and int(offsets[-1]) >= newest:
            batch = batch.slice(0, int(np.searchsorted(offsets, newest)))
        if not batch.num_rows:
            return True
        first, last = offsets[0], int(batch.column("offset")[-1].as_py())
        end = max(end, last + 1)
        there = found.read_arrow(int(first), last + 1, columns=names).read_all()
        known = set(there.column("offset").to_pylist())
        values = dict(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
        pairs = zip(*(there.column(name).to_pylist() for name in names), strict=True)
        if any(values.get(offset) != value for offset, value in pairs) or not known <= set(values):
            return False
    return newest <= end


def _kind(topic: ForeignTopic) -> str:
    return topic.kind if topic.kind in ("queue", "series", "table", KIND) else "topic"


def _import(store: Store, foreign: Foreign, topic: ForeignTopic) -> Generator[int, None, None]:
    """Append the records of one topic; yields how many at a time."""
    there = _make(store, topic)
    projection = there.log.projection
    if isinstance(projection, TableProjection):
        # No record may come in between, not even the logged expiry of a key.
        with projection.writing:
            yield from _import_records(store, foreign, topic, there)
    else:
        yield from _import_records(store, foreign, topic, there)


def _import_records(
    store: Store, foreign: Foreign, topic: ForeignTopic, there: Topic
) -> Iterator[int]:
    _begin(store, there, topic.first)
    late = 0
    begin = there.next_offset
    digest = Digest(store.clock.time_ns() + _EXPIRY_NANOSECONDS)
    for batch in topic.batches():
        rows = 0
        for run in _runs(batch, there.next_offset):
            first = int(run.column("offset")[0].as_py())
            _fill(store, there, topic, first)
            run = _ours(run, topic)
            late += _append(there, run, topic)
            digest.update(run)
            rows += run.num_rows
        yield rows
    _fill(store, there, topic, topic.end)
    _verify(there, begin, digest)
    if late:
        foreign.problems.append(
            Problem(
                "", -1,
                f"{late} records of {topic.name!r} are older than one before them: their time "
                "here is that of the one before, and their own is the event time.", "",
            )
        )  # fmt: skip
    _import_state(store, there.log, topic, foreign)


def _make(store: Store, topic: ForeignTopic) -> Topic:
    kind = _kind(topic)
    if kind == "series":
        store.series(topic.name)
        return store.topic(topic.name)
    if kind == "table":
        return store.make_topic(topic.name, table_options(store), kind)
    known = {"durability", "ttl"}
    options = {name: value for name, value in topic.options.items() if name in known}
    if kind == "queue":
        options |= QUEUE_TOPIC
    return store.make_topic(topic.name, TopicOptions.build(options), kind)


def _begin(store: Store, there: Topic, first: int) -> None:
    """Make a topic begin at an offset, however high it is."""
    log = there.log
    controls = []
    if log.next_offset < first:
        # Skipping one offset, the one before the first, is enough: those below the floor do not
        # count.
        body = encode_delete(BitMap64([first - 1]))
        controls = [control(log, kind, 0, body) for kind in (FrameType.DELETE, FrameType.LOST)]
    if there.earliest < first:
        controls.append(control(log, FrameType.FLOOR, first, encode_floor(0, "")))
    if controls:
        store.write_controls(controls)


def _runs(batch: pa.RecordBatch, start: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into runs of consecutive offsets, from an offset on."""
    offsets = batch.column("offset").to_numpy()
    first = int(np.searchsorted(offsets, start))
    cuts = np.flatnonzero(np.diff(offsets[first:]) != 1) + 1 + first
    for low, high in zip([first, *cuts], [*cuts, len(offsets)], strict=True):
        if low < high:
            yield batch.slice(int(low), int(high - low))


def _fill(store: Store, there: Topic, topic: ForeignTopic, offset: int) -> None:
    """Skip to an offset; the skipped offsets are loss if the reader reports them."""
    position = there.next_offset
    lost = [gap for gap in topic.gaps if gap.last >= position and gap.first < offset]
    for gap in sorted(lost, key=lambda gap: gap.first):
        if gap.first > position:
            _skip(store, there.log, gap.first, is_loss=False)
        position = min(gap.last + 1, offset)
        _skip(store, there.log, position, is_loss=True)
    if position < offset:
        _skip(store, there.log, offset, is_loss=False)


def _skip(store: Store, log: TopicLog, offset: int, *, is_loss: bool) -> None:
    """Skip offsets: as a gap, or silently as deleted ones."""
    if offset - log.next_offset > HOLE_MAX:
        raise CorruptionError(
            f"{log.name!r} goes on at {offset} after {log.next_offset - 1}. No directory has so "
            f"large a hole: its numbers are damaged. At most {HOLE_MAX} can be missing."
        )
    offsets = BitMap64()
    offsets.add_range(log.next_offset, offset)
    if not offsets:
        return
    body = encode_delete(offsets)
    controls: list[Control] = []
    if not is_loss:
        controls.append(control(log, FrameType.DELETE, 0, body))
    controls.append(control(log, FrameType.LOST, 0, body))
    store.write_controls(controls)


def _ours(run: pa.RecordBatch, topic: ForeignTopic) -> pa.RecordBatch:
    """Convert records to those of the store."""
    if topic.kind == KIND:
        return with_our_headers(run)
    return _with_ids(run, topic) if topic.kind == "queue" else run


def _verify(there: Topic, begin: int, digest: Digest) -> None:
    """Read back what was appended, and compare counts and checksums with the original."""
    found = Digest(digest.lives_until)
    for batch in there.read_arrow(begin, columns=COLUMNS):
        found.update(batch)
    theirs, ours = digest.checksums(), found.checksums()
    if digest.records != found.records or theirs != ours:
        wrong = sorted(name for name in theirs.keys() | ours if theirs.get(name) != ours.get(name))
        raise CorruptionError(
            f"{there.name!r} was imported with {digest.records} records, and {found.records} are "
            f"read back; different are: {', '.join(wrong)}. Drop it and import again; if that "
            "does not help, run stratalog verify."
        )


def _append(there: Topic, run: pa.RecordBatch, topic: ForeignTopic) -> int:
    """Append records with consecutive offsets; returns how many have an older time."""
    stamps = run.column("timestamp").cast(pa.int64()).to_numpy()
    floor = max(there.log.last_timestamp, int(stamps[0]) if len(stamps) else 0)
    # At least 1: the time 0 means none, and would become the time of the import.
    highest = np.maximum.accumulate(np.maximum(stamps, max(floor, 1)))
    if (stamps == 0).any():
        at = run.schema.get_field_index("timestamp")
        column = pa.array(np.where(stamps == 0, highest, stamps)).cast(run.schema.field(at).type)
        run = run.set_column(at, run.schema.field(at), column)
    first = int(run.column("offset")[0].as_py())
    # Synced: after a crash, the offsets of a lost tail would be skipped.
    log = there.log
    append = ArrowAppend(log, run.drop_columns(["offset"]), time.time_ns)
    got, last = append_entries(
        log,
        append.entries(log.last_timestamp),
        there.rank("fsync"),
        append.entries if append.is_timed else None,
    )
    if (got, last) != (first, first + run.num_rows - 1):
        raise CorruptionError(
            f"{topic.name!r} was appended to while it was imported: record {first} became {got}. "
            "Drop it, and import again with no other writer."
        )
    return int(((highest > stamps) & (stamps > 0)).sum())


def _with_ids(run: pa.RecordBatch, topic: ForeignTopic) -> pa.RecordBatch:
    """Add deduplication ids to messages, as keys."""
    if not topic.dedup:
        return run
    now = time.time_ns()
    ids = {one.offset: one.id for one in topic.dedup if one.expires_at > now}
    keys = [ids.get(offset) for offset in run.column("offset").to_pylist()]
    at = run.schema.get_field_index("key")
    return run.set_column(at, run.schema.field("key"), pa.array(keys, pa.binary()))


# --- state --------------------------------------------------------------------------------------


def _import_state(store: Store, log: TopicLog, topic: ForeignTopic, foreign: Foreign) -> None:
    """Write the position of a queue's consumers, or which dead letters were handled."""
    cursor = topic.first if topic.cursor is None else topic.cursor
    if topic.kind == KIND and cursor > topic.first:
        handled = BitMap64()
        handled.add_range(topic.first, cursor)
        store.write_controls([control(log, FrameType.DELETE, 0, encode_delete(handled))])
    if topic.kind != "queue" or log.groups:
        return
    options = _queue_options(topic, foreign)
    if topic.dedup:
        longest = max(one.expires_at - one.put_at for one in topic.dedup)
        options["dedup_window"] = min(max(longest / 1e9, 1.0), 1e9)
        options["dedup_entries"] = max(100_000, len(topic.dedup))
    kept = QueueOptions.build(options).to_dict()
    description = Description("", "queue", store.clock.time_ns(), kept)
    consumed = BitMap64(topic.done)
    consumed.add_range(topic.first, max(cursor, topic.first))
    _write_group(store, log, 0, description, topic.first, consumed, topic.pending)


def _queue_options(topic: ForeignTopic, foreign: Foreign) -> dict[str, object]:
    """Options of a queue that the original has; those that cannot be are reported."""
    options = {}
    for name, value in topic.options.items():
        if name not in _QUEUE_OPTIONS:
            continue
        try:
            QueueOptions.build({name: value})
            options[name] = value
        except OptionError as error:
            what = f"An option of {topic.name!r} cannot be: {error}"
            foreign.problems.append(Problem("", -1, what, f"{name}: the queue has the default"))
    return options


_QUEUE_OPTIONS = frozenset(QueueOptions.__dataclass_fields__)


def _import_group(store: Store, group: ForeignGroup) -> None:
    log = store.topic(group.topic).log
    if log.groups.find(group.name) is not None:
        return
    description = Description(group.name, group.mode, group.created_at, {})
    number = len(log.groups.states())
    if group.mode == "stream":
        body = encode_group(
            number, group.deliveries, group.cursor, {}, (),
            description=description, seek=group.cursor,
        )  # fmt: skip
        store.write_controls([control(log, FrameType.GROUP, 1, body)])
        return
    consumed = BitMap64()
    consumed.add_range(log.earliest, max(group.cursor, log.earliest))
    _write_group(
        store, log, number, description, log.earliest, consumed, group.pending, group.deliveries
    )


def _write_group(
    store: Store,
    log: TopicLog,
    number: int,
    description: Description,
    first: int,
    consumed: BitMap64,
    pending: list[Pending],
    deliveries: int = 0,
) -> None:
    """Write the state of a new group, as frames that recovery applies with the same result."""
    now = store.clock.time_ns()
    held = {
        one.offset: Lease(
            one.deadline or now, one.delivery_count, one.consumer, one.delivered_at, serial,
            int(Priority.NORMAL),
        )
        for serial, one in enumerate(pending, 1)
    }  # fmt: skip
    consumed = consumed - BitMap64(held)
    items = list(held.items())
    parts = [dict(items[at : at + _ENTRIES_MAX]) for at in range(0, len(items), _ENTRIES_MAX)]
    controls = []
    for place, leases in enumerate(parts or [{}]):
        body = encode_group(
            number, max(deliveries, len(held)), 0, leases, consumed if place == 0 else (),
            description=description if place == 0 else None, seek=first if place == 0 else None,
        )  # fmt: skip
        controls.append(control(log, FrameType.GROUP, place + 1, body))
    store.write_controls(controls)

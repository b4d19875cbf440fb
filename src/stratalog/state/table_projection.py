"""The projection of a table: its state, rows that entered the log since, and its file on disk.

Rows are in `entered` once they enter the log. `advance` moves committed rows into the state, so
that nothing is readable that could still fail; conditions are checked against both. Where `entered`
lacks a row, after Ctrl-C or for adopted records, the records themselves are read. Rows whose group
failed are discarded: see `void`.

Owns: `topics/<id>/<applied>.state`, the newest two. A snapshot names the newest; the log and the
segments have everything after it.

Invariants:
- The state has the records below `applied`, and no other.
- `entered` has the rows from `applied` to `entered_end`, and no failed ones once `advance` or a
writer has looked.
- Only compaction removes records before they are read. A state that such records would have changed
is computed again from the first record on.

Concurrency: a thread that puts records of the table into the log holds `writing` from before its
conditions are checked until its rows are in `entered`. `lock` guards the state. Locks are taken in
this order: `writing`, then the shard's, or `lock`.
Crash: a state file has its name once all its bytes are durable; `.tmp` files are removed by the
next writer.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.batch import Batch
from stratalog.format.names import parse_numbered, segment_name
from stratalog.format.table import (
    BYTES_KEY,
    CHUNK_BYTES,
    DELETED,
    HEADER_BYTES,
    Rows,
    StateHeader,
    decode_chunk,
    decode_chunk_header,
    decode_state_header,
    encode_chunk,
    encode_state_header,
)
from stratalog.fs import File
from stratalog.model import Operation
from stratalog.segments.read import read_batches
from stratalog.state.entered_rows import EnteredRows
from stratalog.state.projection import catch_up
from stratalog.state.table_state import TableState, Version

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog
    from stratalog.memory_budget import MemoryBudget

logger = logging.getLogger("stratalog")

SHARE = "tables"
"""The share of the memory budget that tables have."""

BYTES_TAG = b"bytes"
"""Tag of a record whose key was put as bytes instead of text."""

_SUFFIX = ".state"
_FILES_KEPT = 2

# A state file is written again after so many records, or this share of its keys: reading these
# records takes as long as reading a quarter of the file.
_CHANGES_MIN = 1024
_CHANGES_SHARE = 4

# Keys of one chunk: encoding them holds the interpreter for 4 ms. Writers run in between.
_CHUNK_KEYS = 2048
_REST_SECONDS = 0.001

# How often records are read again from the first on because segments were rewritten meanwhile.
_ATTEMPTS_MAX = 8

_QUICK_BYTES_MAX = 2048

_NOTHING = 1 << 63


class Pointer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state file that a snapshot names."""

    applied: int
    rows: int


_decoder = msgspec.msgpack.Decoder(Pointer)
_encoder = msgspec.msgpack.Encoder()


class _MissingError(Exception):
    """Compaction removed records that the state has not seen."""


class TableProjection:
    """A table's state, and the ways by which records reach it."""

    def __init__(self, topic: TopicLog) -> None:
        self.topic = topic
        self.applied = 0
        self.lock = threading.Lock()
        self.writing = threading.Lock()
        self.state = self._new_state()
        self.entered = EnteredRows()
        """Rows that have entered the log and are not in the state yet."""
        self.entered_end = -1
        """Up to where rows that have entered are known; changed with `writing` held."""
        self.is_live = False
        """Whether the state can be queried: it is loaded, and the store is open."""
        self.is_quick = False
        """Whether simple puts may take the fast path: it is live, written to, and has memory."""
        self.quick_bytes_max = 0
        """Longest key or value, in characters, for the fast path, which counts rows, not bytes."""
        self._is_gone = False
        self._void_from = _NOTHING
        """Rows at this offset and above failed; `_NOTHING` for none."""
        self._pointer: Pointer | None = None
        self._is_loaded = True
        """Whether the file that `_pointer` names is loaded."""
        self._budget: MemoryBudget | None = None
        self._accounted = 0
        self.is_tight = False
        """Whether tables have used up their memory, so that writers request room first."""
        self._is_purging = False
        self.is_torn = False
        """Whether a change of the state has begun, and not ended."""

    def _new_state(self) -> TableState:
        options = self.topic.options
        return TableState(options.versions, round(options.tombstone_seconds * 10**9))

    # --- the contract of projections -------------------------------------------------------

    def apply(self, batch: Batch, first: int, end: int) -> None:
        """Apply the records of a batch; `lock` is held."""
        keys = batch.keys(first, end)
        flags: list[int] | None = None
        if batch.operation is not None or batch.value.validity >= 0 or batch.tag is not None:
            flags = row_flags(batch, first, end)
        expires = None if batch.expires_at is None else batch.expires_at[first:end].tolist()
        columns = (
            batch.offsets(first, end).tolist(), keys, batch.values(first, end),
            batch.timestamps(first, end).tolist(), expires, flags,
        )  # fmt: skip
        if None in keys:  # staged by a job: records that a table cannot hold
            chosen = [index for index, key in enumerate(keys) if key is not None]
            columns = tuple(one and [one[index] for index in chosen] for one in columns)  # type: ignore[assignment]
            if not chosen:
                return
        self._take(*columns)

    def capture(self) -> tuple[int, bytes]:
        """Write the state to its file if enough has changed; returns the encoded pointer to it."""
        pointer = self._pointer
        if self.is_live:
            self.advance()
            if self._is_due():
                pointer = self._write()
        return (0, b"") if pointer is None else (pointer.applied, _encoder.encode(pointer))

    def restore(self, applied: int, data: bytes) -> None:
        """Start from a state file, which is read when the table is first used."""
        try:
            pointer = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"a table's place in a snapshot: {error}") from error
        if pointer.applied != applied:
            raise CorruptionError(f"a table's state at {pointer.applied}, {applied} expected")
        with self.lock:
            self._forget()
            self.applied, self._pointer, self._is_loaded = applied, pointer, False

    def reset(self) -> None:
        """Discard everything; the next use reads all records."""
        with self.lock:
            self._forget()

    def rebuild(self) -> None:
        """Discard everything and apply all records again."""
        self.reset()
        self.advance()

    def void(self) -> None:
        """Note that rows above `committed` failed."""
        self._void_from = min(self._void_from, self.topic.committed)

    def drop(self) -> None:
        """Release the memory: the topic was dropped, or the store closed."""
        self.is_live = self.is_quick = False
        self._is_gone = True
        budget, self._budget = self._budget, None
        if budget is not None:
            budget.release(SHARE, self)
            budget.add(SHARE, -self._accounted)
        self.topic.gathered = None
        self.state = self._new_state()
        self.entered = EnteredRows()

    def attach(self, budget: MemoryBudget) -> None:
        """Account for the memory from now on; called when a writer first uses the table."""
        with self.lock:
            if self._budget is None and not self._is_gone:
                self._budget = budget
                self.topic.gathered = self.entered.gathered
                self.quick_bytes_max = min(_QUICK_BYTES_MAX, self.topic.plain_bytes_max // 8)
                budget.hold(SHARE, self)
                self._account()

    def _forget(self) -> None:
        self.state = self._new_state()
        self.applied = 0
        self._pointer = None
        self._is_loaded = True
        self.is_torn = False
        self.is_live = self.is_quick = False

    # --- forward ---------------------------------------------------------------------------

    def advance(self) -> None:
        """Bring the state up to everything that is committed."""
        while True:
            if self._void_from != _NOTHING:
                with self.writing:
                    self.forget_void()
            with self.lock:
                end = self.topic.committed
                # After `committed`, which does not rise past rows that failed before `void`.
                if self._void_from == _NOTHING:
                    self._advance(end)
                    break

    def _advance(self, end: int) -> None:
        if self.is_torn:
            self._restart()
        self._load()
        if self.applied < end:
            self._take_entered(end)
            if self.applied < end:
                self._read(end)
        self.is_live = not self._is_gone
        self._account()

    def _take_entered(self, end: int) -> None:
        """Move committed rows into the state, up to the first that is missing."""
        entered = self.entered
        while self.applied < end and (rows := entered.rows(self.applied, end)) is not None:
            self._take(*rows)
            self.applied = rows.versions.stop
        entered.release(self.applied)

    def _take(self, *columns: Any) -> None:
        """Apply rows; the state is not used again if this is interrupted."""
        self.is_torn = True
        self.state.take_columns(*columns)
        self.is_torn = False

    def current(self) -> TableState:
        """Return the state, computed again if Ctrl-C came while it was changed; `lock` is held."""
        if self.is_torn:
            self._advance(self.topic.committed)
        return self.state

    def _restart(self) -> None:
        """Go back to the file, or to the first record: Ctrl-C came while the state was changed."""
        self.state = self._new_state()
        self._is_loaded = self._pointer is None
        self.applied = 0 if self._pointer is None else self._pointer.applied
        self.is_torn = False

    def _read(self, end: int) -> None:
        """Apply records from the log and from segments."""
        try:
            if self.applied:
                catch_up(self.topic, self, end, self._miss)
                return
        except _MissingError:
            logger.info("table %r is made again: it was compacted meanwhile", self.topic.name)
        for _ in range(_ATTEMPTS_MAX):
            self._forget()
            before = self._segments(end)
            catch_up(self.topic, self, end, self._skip)
            # A put may be read, and compaction remove the deletion of its key before that is read.
            if self._segments(end) == before:
                break

    def _miss(self, end: int) -> None:
        raise _MissingError

    def _skip(self, end: int) -> None:
        self.state.horizon = max(self.state.horizon, end)

    def _segments(self, end: int) -> list[int]:
        chain = self.topic.history.chain
        return [id(one) for one in chain.segments if not one.is_open and one.end <= end]

    def forget_void(self) -> None:
        """Discard rows whose group failed; `writing` is held."""
        with self.lock:
            start, self._void_from = self._void_from, _NOTHING
            if start == _NOTHING:
                return
            self.entered.clear()  # the records of those that are committed are read
            self.entered_end = -1

    # --- for writers: `writing` is held -----------------------------------------------------

    def prepare(self) -> None:
        """Ensure that every record that has entered is known, so that conditions can be checked."""
        if self.is_prepared:
            return
        topic = self.topic
        if self._void_from != _NOTHING:
            self.forget_void()
        if topic.next_offset != topic.committed:  # Ctrl-C in a writer, or a failed commit
            topic.shard.sync(reports_loss=False)
        with self.lock:
            self._advance(topic.committed)
            if (pending := topic.pending) is not None:  # it may have been forgotten with others
                self.entered.gathered.append(pending)
        self.entered_end = topic.next_offset

    @property
    def is_prepared(self) -> bool:
        """Whether every record that has entered is known; exact if the shard's lock is held."""
        return (
            self.is_live and self._void_from == _NOTHING
            and self.entered_end == self.topic.next_offset
        )  # fmt: skip

    def take_adopted(self) -> None:
        """Take in records that were adopted, if the state is in use.

        The next put notes its own row alone, and conditions are judged by all before it.
        """
        if self.is_live:
            self.is_live = self.is_quick = False  # until they are: reading them may fail
            self.prepare()

    def newest(self, key: bytes) -> Version | None:
        """Find the newest version of a key that has entered the log."""
        with self.lock:
            state = self.current()
            found = self.entered.newest(key, self.applied, self.entered_end)
            return state.newest(key) if found is None else found

    def plain_version(self, key: bytes) -> int:
        """Find the newest version of a key, as `TableState.plain_version`, in a third of the time.

        -2 also if it is not known what has entered.
        """
        if not self.is_prepared:
            return -2
        with self.lock:
            state = self.current()
            version = self.entered.plain_version(key, self.applied, self.entered_end)
            return state.plain_version(key) if version == -1 else version

    def note(
        self, first: int, keys: Sequence[bytes], values: Sequence[bytes | None], timestamp: int,
        expires_at: Sequence[int] | None, flags: Sequence[int] | None,
    ) -> None:  # fmt: skip
        """Note rows that have just entered the log as one frame."""
        with self.lock:
            self.entered.add(first, keys, values, timestamp, expires_at, flags)
        if self.entered_end == first:
            self.entered_end = first + len(keys)

    # --- memory ----------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the state takes."""
        return self.state.held_bytes

    def shed(self) -> bool:
        """Release some memory; returns whether there was any."""
        with self.lock:
            state = self.current()
            self.is_torn = True
            has_shed = state.shed()
            self.is_torn = False
            self._account()
        return has_shed

    def _account(self) -> None:
        budget = self._budget
        if budget is not None:
            held = self.state.held_bytes
            budget.add(SHARE, held - self._accounted)
            self._accounted = held
            self.is_tight = budget.used()[SHARE] > budget.limit(SHARE) * 15 // 16
            self.is_quick = self.is_live and not self.is_tight

    # --- the file --------------------------------------------------------------------------

    def purge(self) -> None:
        """Make the next capture write the state again, and remove every other file of it."""
        if self._pointer is not None:
            self.advance()  # loads a table that was not used yet
            self._is_purging = True

    def _is_due(self) -> bool:
        written = self._pointer
        changes = self.applied - (0 if written is None else written.applied)
        if self._is_purging:
            return changes > 0 or written is not None
        return changes >= max(_CHANGES_MIN, len(self.state.slots) // _CHANGES_SHARE)

    def _write(self) -> Pointer:
        """Write the state to a file, a chunk at a time.

        Rows that arrive meanwhile may be in it: they are skipped when they are applied again.
        """
        topic = self.topic
        pool = topic.history.pool
        fs, directory = pool.fs, topic.history.directory
        with self.lock:
            applied = self.applied
            keys = list(self.current().slots)
        fs.makedirs(directory)
        temp = os.path.join(directory, segment_name(applied, ".tmp"))
        fs.unlink(temp)
        file = fs.open(temp, "create")
        try:
            position = HEADER_BYTES
            total = 0
            for start in range(0, len(keys), _CHUNK_KEYS):
                with self.lock:
                    rows = self.current().rows(keys[start : start + _CHUNK_KEYS])
                total += len(rows.keys)
                if rows.keys:
                    position = _append(file, encode_chunk(rows, total), position)
                time.sleep(_REST_SECONDS)
            _append(file, encode_chunk(Rows((), (), (), b"", [], []), total), position)
            with self.lock:
                horizon = self.state.horizon  # last: it may rise while chunks are written
            header = StateHeader(topic.id, applied, horizon, pool.identity)
            _append(file, encode_state_header(header), 0)
            file.fdatasync()
        finally:
            file.close()
        if self._pointer is not None and self._pointer.applied == applied:
            # A purge replaces a file that a durable snapshot names. Rows that came meanwhile are in
            # it, so their records must be durable, too.
            topic.shard.sync(reports_loss=False)
        fs.rename(temp, os.path.join(directory, segment_name(applied, _SUFFIX)))
        fs.sync_dir(directory)
        self._pointer = Pointer(applied, total)
        kept = 1 if self._is_purging else _FILES_KEPT
        self._is_purging = False
        for old in sorted(self._numbers(), reverse=True)[kept:]:
            fs.unlink(os.path.join(directory, segment_name(old, _SUFFIX)))
        return self._pointer

    def _numbers(self) -> list[int]:
        history = self.topic.history
        names = history.pool.fs.listdir(history.directory)
        return [one for name in names if (one := parse_numbered(name, _SUFFIX)) is not None]

    def _load(self) -> None:
        """Load the file that a snapshot named, on first use; if that fails, read all records."""
        if self._is_loaded:
            return
        pointer, state = self._pointer, self._new_state()
        assert pointer is not None
        directory = self.topic.history.directory
        path = os.path.join(directory, segment_name(pointer.applied, _SUFFIX))
        try:
            if pointer.applied > self.topic.committed:
                raise CorruptionError(f"it is ahead of the log, at {self.topic.committed}")
            file = self.topic.history.pool.fs.open(path, "read")
            try:
                self._load_file(file, pointer, state)
            finally:
                file.close()
        except (FormatError, OSError) as error:
            self._forget()
            logger.warning("%s: the table is made again from its records: %s", path, error)
        else:
            # After Ctrl-C before this the next call loads it again.
            # Uninterruptible.
            self.state, self._is_loaded = state, True
            # Interruptible.

    def _load_file(self, file: File, pointer: Pointer, state: TableState) -> None:
        topic = self.topic
        header = decode_state_header(file.pread(HEADER_BYTES, 0))
        identity = topic.history.pool.identity
        if header[:2] != (topic.id, pointer.applied) or header.identity != identity:
            raise CorruptionError("it is of another table")
        total = 0
        for rows, upto in _chunks(file):
            state.take_rows(rows)
            total += len(rows.keys)
            if upto != total:
                raise CorruptionError(f"it has {total} rows, {upto} expected")
        if total != pointer.rows:
            raise CorruptionError(f"it has {total} rows, {pointer.rows} expected")
        state.horizon = max(state.horizon, header.horizon)

    # --- values in the log -----------------------------------------------------------------

    def read_value(self, version: int) -> bytes | None:
        """Read the value of a version from its record; None if that is gone by now."""
        for part in read_batches(self.topic, version, version + 1):
            if isinstance(part, tuple):
                return part.batch.values(part.first, part.end)[0]
        return None


def _append(file: File, data: bytes, position: int) -> int:
    file.pwrite([data], position)
    return position + len(data)


def _chunks(file: File) -> Iterator[tuple[Rows, int]]:
    """Read the chunks of a state file, including the last one, which has no rows."""
    position, size = HEADER_BYTES, file.size()
    while True:
        head = file.pread(CHUNK_BYTES, position)
        header = decode_chunk_header(head)
        if header.body_bytes > size - position:
            raise CorruptionError("a chunk is cut short")
        position += CHUNK_BYTES
        yield decode_chunk(header, head, file.pread(header.body_bytes, position)), header.total
        position += header.body_bytes
        if not header.rows:
            break
    if position != size:
        raise CorruptionError("there is something after its end")


def row_flags(batch: Batch, first: int, end: int) -> list[int]:
    """Compute the flags of records: whether they are deletions, and whether keys are bytes."""
    flags = np.zeros(end - first, np.uint8)
    if batch.operation is not None:
        flags[batch.operation[first:end] == Operation.DELETE] |= DELETED
    if batch.value.validity >= 0:
        flags[~batch.valid(batch.value)[first:end]] |= DELETED
    if batch.tag is not None:
        tags = batch.text(batch.tag, first, end)
        is_bytes = np.fromiter((tag == BYTES_TAG.decode() for tag in tags), np.bool_, end - first)
        flags[is_bytes] |= BYTES_KEY
    found: list[int] = flags.tolist()
    return found

"""A topic in the log: the offsets that were assigned, and the frames that are published.

Invariants:
- `next_offset` is the next to assign, guarded by the shard's lock; `committed` is the first that
cannot be read yet. Offsets in between wait for their group.
- Timestamps never decrease: if the clock goes back, the last time is used until it catches up.

Concurrency: records enter through `stratalog.log.append`, from any thread. `publish*` is called by
the holder of the commit lock, in log order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from stratalog.errors import UnknownTopicError, UnsupportedVersionError, UsageError
from stratalog.format.codec import CODECS
from stratalog.format.control import LOST_CRASH, TopicBody, encode_delete
from stratalog.format.frame import HEADER_BYTES, FrameType
from stratalog.log.commit_group import (
    EPHEMERAL as EPHEMERAL,
)
from stratalog.log.commit_group import (
    LAZY as LAZY,
)
from stratalog.log.commit_group import (
    RELAXED as RELAXED,
)
from stratalog.log.commit_group import (
    SYNCED as SYNCED,
)
from stratalog.log.commit_group import (
    Entry,
    Pending,
    batch_bytes_max,
)
from stratalog.log.ephemeral import MemoryFrames
from stratalog.log.index import MEMORY, FrameIndex
from stratalog.log.reader import LogReader
from stratalog.log.waiters import Watched
from stratalog.memory_budget import MemoryBudget
from stratalog.model import Durability
from stratalog.options import TIME_MAX, StoreOptions, TopicOptions

if TYPE_CHECKING:
    from stratalog.log.ceilings import Ceilings
    from stratalog.log.shard import Shard
    from stratalog.segments.topic_segments import History
    from stratalog.state.group_state import Groups
    from stratalog.state.projection import Projection

RANKS = dict(zip(Durability, (EPHEMERAL, LAZY, RELAXED, SYNCED), strict=True))


class TopicLog(Watched):
    """One topic's records in the log: the index of published ones, and the state for new ones."""

    # Slots, because attribute lookup is slow in an instance with more than 30 attributes.
    __slots__ = (
        "batch_bytes_max",
        "ceilings",
        "codec",
        "created_at",
        "earliest",
        "epoch",
        "gathered",
        "given",
        "given_back",
        "groups",
        "history",
        "id",
        "index",
        "is_dropped",
        "is_ephemeral",
        "is_plain",
        "kind",
        "last_timestamp",
        "lock",
        "memory",
        "name",
        "next_offset",
        "options",
        "owed",
        "pending",
        "plain_bytes_max",
        "projection",
        "rank",
        "reader",
        "record_bytes_max",
        "replayed",
        "reservation",
        "reservation_asked",
        "reserved",
        "sane_time_ns",
        "shard",
        "single_bytes_max",
        "take_lock",
        "time_ns",
        "version",
        "vouched",
    )  # fmt: skip

    ceilings: Ceilings
    """The file of ceilings, which bound the offsets that were given out."""
    groups: Groups
    """The consumer groups of the topic."""
    lock: threading.Lock
    shard: Shard
    take_lock: Iterator[bool]
    """Each step takes the lock."""
    sane_time_ns: Callable[[], int]
    """The clock for deadlines: see `SaneClock`."""
    time_ns: Callable[[], int]
    """The clock for the times of records, unless it is before that of the last."""

    def __init__(self, id: int, reader: LogReader, history: History) -> None:
        super().__init__()
        self.id = id
        self.history = history
        """The records that have left the log."""
        self.given_back = -1
        """The lowest offset given back since this was last reset; -1 for none."""
        self.owed = 0
        """Offsets from `committed` up to this were given to callers, and their records are lost:
        the log must record the gap before the next record of the topic. At most `committed` if
        there is none."""
        self.vouched = 0
        """Offsets below this may be known to others than the append that got them."""
        self.epoch = 0
        """How many topics of this name were dropped before it."""
        self.is_dropped = False
        self.projection: Projection | None = None
        """State computed from the records, for a topic of kind `table` or `series`."""
        self.name = ""
        self.kind = "topic"
        self.created_at = 0
        self.options = TopicOptions()
        self.version = -1
        """Number of the newest `TOPIC` frame seen; -1 before the first."""
        self.index = FrameIndex()
        self.reader = reader
        self.next_offset = 0
        self.last_timestamp = 0
        self.earliest = 0
        """First offset that may still be readable."""
        self.given = 0
        """No offset from here on is given to an append below `fsync`: see `cover`. For an ephemeral
        topic equal to `reserved`."""
        self.reserved = 0
        """For an ephemeral topic, the offset up to which the log has recorded offsets as given out;
        for others, the offset up to which the ceiling is durable."""
        self.reservation = 0
        """Number of the newest `RESERVE` frame."""
        self.reservation_asked = 0
        """Number of the newest one that was requested."""
        self.replayed = 0
        """End of the frame recovered last, to detect frames that are out of order."""
        self.batch_bytes_max = self.record_bytes_max = 0
        self.plain_bytes_max = 0
        """A batch up to this size cannot hold a record that is too large."""
        self.single_bytes_max = 0
        """Size of the largest record that may be appended."""
        self.codec = 0
        self.rank = SYNCED
        self.is_ephemeral = False
        self.memory = MemoryFrames()
        """Frames of an ephemeral topic; their bodies are nowhere else."""
        self.pending: Pending | None = None
        """The batch that single appends are being gathered in; None if the next begins one."""
        self.gathered: deque[Pending] | None = None
        """Takes note of every such batch, for a projection that reads its columns."""
        self.is_plain = False
        """Whether bare values may take the fast path: there is a writer, and a log to write."""

    def define(self, body: TopicBody) -> None:
        """Take over the definition in a `TOPIC` frame."""
        self.name = body.name
        self.kind = body.kind
        self.created_at = body.created_at
        self.epoch = body.epoch
        try:
            self.options = TopicOptions.restore(body.options)
        except UsageError as error:
            raise UnsupportedVersionError(
                f"topic {body.name!r} has options that this release does not know ({error}): "
                "upgrade stratalog to open this store"
            ) from error
        self.is_ephemeral = self.options.durability == Durability.EPHEMERAL
        self.codec = CODECS[self.options.compression]

    def attach(
        self,
        shard: Shard,
        time_ns: Callable[[], int],
        sane_time_ns: Callable[[], int],
        options: StoreOptions,
        budget: MemoryBudget,
    ) -> None:
        """Set the shard and the clocks for appends; a topic that is only read has neither."""
        self.shard = shard
        self.time_ns = time_ns
        self.sane_time_ns = sane_time_ns
        self.lock = shard.lock
        self.take_lock = iter(shard.lock.acquire, False)
        self.is_plain = not self.is_ephemeral and self.projection is None
        self.reservation_asked = self.reservation
        self.rank = RANKS[self.options.durability or options.durability]
        if self.rank == EPHEMERAL and not self.is_ephemeral:
            self.rank = LAZY  # an option does not make a logged topic volatile
        if self.is_ephemeral:
            self.given = self.reserved
            self.memory.attach(self, budget, options.tail_bytes)
        self.record_bytes_max = options.record_bytes_max
        self.batch_bytes_max = batch_bytes_max(options)
        self.plain_bytes_max = min(self.batch_bytes_max, self.record_bytes_max)
        self.single_bytes_max = min(self.batch_bytes_max - 256, self.record_bytes_max)

    # --- replay --------------------------------------------------------------------------

    def resume(self, next_offset: int, timestamp: int) -> None:
        """Continue after the recovered frames."""
        self.next_offset = self.committed = max(next_offset, self.next_offset)
        self.last_timestamp = max(timestamp, self.last_timestamp)

    def skip(self, number: int, offset: int) -> None:
        """Continue at the newest reservation of an ephemeral topic."""
        if number > self.reservation:
            self.reservation = number
            self.earliest = self.next_offset = self.committed = offset
            self.reserved = self.given = offset

    # --- in: see `stratalog.log.append` --------------------------------------------------

    def cover(self, count: int) -> None:
        """Let `count` more offsets be given to appends below `fsync`; the lock is held.

        Called before a caller gets an offset whose record is not durable yet: a crash that loses
        the record then leaves a gap, and the offset is never used for another record.
        """
        if self.next_offset + count > self.given:
            self.check()
            self.ceilings.cover(self, count)

    def vouch(self, offset: int) -> bool:
        """Allow giving an offset to a caller that does not wait for the append that got it.

        Returns False if offsets were given back meanwhile: it may be one of them.
        """
        with self.lock:
            if offset < self.committed:
                return True
            if self.given_back >= 0:
                return False
            self.cover(offset + 1 - self.next_offset)
            self.vouched = max(self.vouched, offset + 1)
        return True

    def now(self) -> int:
        """Return the time of a record that enters now: never before that of the last one.

        A clock past 2230, to which no time to live could be added, is ignored.
        """
        now = self.time_ns()
        return now if self.last_timestamp < now <= TIME_MAX else self.last_timestamp

    def flush(self) -> None:
        """Make acknowledged appends readable: a reader sees every append before its own call."""
        if self.next_offset != self.committed:
            self.shard.flush()

    def check(self, *, reports_loss: bool = True) -> None:
        """Raise if nothing can be written; called with the lock held."""
        self.shard.check(reports_loss=reports_loss)
        self.check_dropped()

    def check_dropped(self) -> None:
        """Raise if the topic was dropped."""
        if self.is_dropped:
            raise UnknownTopicError(
                f"topic {self.name!r} was dropped: store.topic({self.name!r}) has what came after"
            )

    def drop(self) -> None:
        """Accept nothing more; called with the lock held."""
        self.is_dropped = True
        self.pending = None

    # --- out -----------------------------------------------------------------------------

    def publish(self, entry: Entry, file: int, position: int) -> None:
        """Make a logged frame readable; idempotent."""
        if entry.base_offset < self.committed:
            return
        self.index.add(
            entry.base_offset, entry.count, file, position, HEADER_BYTES + len(entry.body),
            entry.max_timestamp,
        )  # fmt: skip
        self.advance(entry.base_offset + entry.count)

    def publish_memory(self, entry: Entry) -> None:
        """Make a frame in memory readable; drops the oldest frames when there are too many."""
        if entry.base_offset < self.committed:
            return
        slot, length = self.memory.add(entry)
        self.index.add(entry.base_offset, entry.count, MEMORY, slot, length, entry.max_timestamp)
        if self.memory.held_bytes > self.memory.bytes_max:
            self.memory.drop_oldest(self)
        self.advance(entry.base_offset + entry.count)

    def trim(self, offset: int) -> None:
        """Drop the index of records below `offset`: segments have them now.

        Called by the holder of the commit lock; readers continue with the index they hold.
        """
        self.index = self.index.from_offset(offset)

    def give_back(self, *, is_known: bool) -> None:
        """Take back the offsets of a failed group; the shard's lock and its commit lock are held.

        With `is_known`, callers may know offsets of appends below `fsync`: those stay used, and
        become a gap. Idempotent.
        """
        self.pending = None
        if self.given_back < 0 or self.committed < self.given_back:
            self.given_back = self.committed
        known = self.given if is_known else self.vouched
        if self.projection is not None:
            self.projection.void()
        self.owed = max(self.owed, min(self.next_offset, known))
        self.next_offset = max(self.committed, self.owed)
        if self.next_offset == self.committed:
            return
        if self.is_ephemeral:
            self.advance(self.next_offset)  # not in the log: readers see a gap
        else:
            self.shard.owing[self] = None

    def lose(self) -> Entry:
        """Build the frame that records lost offsets as a gap; see `owed`."""
        end = self.owed
        offsets = BitMap64()
        offsets.add_range(self.committed, end)

        def done() -> None:
            self.history.note_lost(offsets, is_crash=True)
            if self.committed < end:
                self.advance(end)
            self.shard.owing.pop(self, None)

        return Entry(
            FrameType.LOST, self.id, encode_delete(offsets), base_offset=LOST_CRASH, on_commit=done
        )

"""A topic's end of the log: what was assigned, what is published, and how records enter.

Invariants:
- `next_offset` is the next to assign, guarded by the shard's lock, or by `gathering` while that
  runs; `committed` is the first that cannot be read yet. In between is what waits for its group.
- Timestamps never decrease: a clock that went back is held at the last value until it catches up.

Concurrency: the `append*` functions may be called from any thread. `publish*` is called by the
holder of the commit lock, in log order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stratalog.errors import UnknownTopicError, UnsupportedVersionError, UsageError
from stratalog.format.codec import CODECS
from stratalog.format.control import TopicBody
from stratalog.format.frame import HEADER_BYTES
from stratalog.log.future import AppendFuture
from stratalog.log.gathering import IS_POSSIBLE, NONE_RUNS, Gathering, claim, go_on
from stratalog.log.group import Entry, Group, Pending, batch_bytes_max
from stratalog.log.index import MEMORY, FrameIndex
from stratalog.log.memory import MemoryFrames, make_room
from stratalog.log.reader import LogReader
from stratalog.log.shard import GROUP_BYTES_MAX
from stratalog.log.watched import Watched
from stratalog.memory import MemoryBudget
from stratalog.model import Durability
from stratalog.options import StoreOptions, TopicOptions

if TYPE_CHECKING:
    from stratalog.log.shard import Shard
    from stratalog.projections.groups import Groups
    from stratalog.segments.history import History

EPHEMERAL, LAZY, RELAXED, SYNCED = range(4)
"""The durability classes as the hot path compares them."""
RANKS = dict(zip(Durability, (EPHEMERAL, LAZY, RELAXED, SYNCED), strict=True))

# Values up to this size take the short way, which counts records and not bytes.
PLAIN_BYTES_MAX = 1 << 10

# What a single append adds to a batch besides its bytes: timestamp, end, and its list slots.
_RECORD_BYTES = 32


class TopicLog(Watched):
    """One topic's records: where the published ones are, and the way in for new ones."""

    # Slots, because an instance with more than 30 attributes is looked up the slow way.
    __slots__ = (
        "add_timestamp", "add_value", "batch_bytes_max", "codec", "created_at", "earliest", "epoch",
        "gathering", "given_back", "groups", "history", "id", "index", "is_dropped", "is_ephemeral",
        "is_plain", "kind", "last_timestamp", "lock", "may_gather", "memory", "name", "next_offset",
        "options", "pending", "pending_group", "plain_bytes_max", "rank", "reader",
        "record_bytes_max", "replayed", "reservation", "reservation_asked", "reserved", "send",
        "shard", "take_lock", "time_ns", "version",
    )  # fmt: skip

    add_timestamp: Callable[[int], None]
    groups: Groups
    """Who consumes the records."""
    lock: threading.Lock
    pending: Pending
    shard: Shard
    take_lock: Iterator[bool]
    """Each step of it takes the lock."""
    time_ns: Callable[[], int]

    def __init__(self, id: int, reader: LogReader, history: History) -> None:
        super().__init__()
        self.id = id
        self.history = history
        """Where the records are that left the log."""
        self.given_back = -1
        """The lowest offset given back since somebody took note of that; -1 for none."""
        self.epoch = 0
        """How many topics of this name were dropped before it."""
        self.is_dropped = False
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
        self.reserved = 0
        self.reservation = 0
        """Number of the newest `RESERVE` frame."""
        self.reservation_asked = 0
        """Number of the newest that was asked for."""
        self.replayed = 0
        """End of the frame replayed last, to notice frames that come out of order."""
        self.batch_bytes_max = self.record_bytes_max = 0
        self.plain_bytes_max = 0
        """A batch up to this size holds no record that is too large, whichever it is."""
        self.codec = 0
        self.rank = SYNCED
        self.is_ephemeral = False
        self.memory = MemoryFrames()
        """Frames of an ephemeral topic; their bodies are nowhere else."""
        self.pending_group: Group | None = None
        """The open group, while single appends are being gathered in it; None otherwise."""
        self.add_value: Callable[[bytes | None], None] = self._begin
        """Adds to the batch being gathered. While there is none this is `_begin`, and while
        `gathering` has it one that ends that, so that the append itself need not ask."""
        self.gathering: Gathering | None = None
        """Guards the topic's end while it runs: see the module of that name."""
        self.send = NONE_RUNS
        self.may_gather = False
        self.is_plain = False
        """Whether plain values may take the short way: there is a writer, and a log to write."""

    def define(self, body: TopicBody) -> None:
        """Take over what a `TOPIC` frame says."""
        self.name = body.name
        self.kind = body.kind
        self.created_at = body.created_at
        self.epoch = body.epoch
        try:
            self.options = TopicOptions.build(body.options)
        except UsageError as error:
            raise UnsupportedVersionError(
                f"topic {body.name!r} has options that this release does not know ({error}): "
                "upgrade stratalog to open this store"
            ) from error
        self.is_ephemeral = self.options.durability == Durability.EPHEMERAL
        self.codec = CODECS[self.options.compression]

    def attach(
        self, shard: Shard, time_ns: Callable[[], int], options: StoreOptions, budget: MemoryBudget
    ) -> None:
        """Say where appends go and what time it is; a topic that is only read has neither."""
        self.shard = shard
        self.time_ns = time_ns
        self.lock = shard.lock
        self.take_lock = iter(shard.lock.acquire, False)
        self.is_plain = not self.is_ephemeral and options.record_bytes_max >= PLAIN_BYTES_MAX
        self.reservation_asked = self.reservation
        self.rank = RANKS[self.options.durability or options.durability]
        if self.rank == EPHEMERAL and not self.is_ephemeral:
            self.rank = LAZY  # what was written once does not become volatile by an option
        self.may_gather = IS_POSSIBLE and self.rank != SYNCED
        if self.is_ephemeral:
            self.memory.attach(self, budget, options.tail_bytes)
        self.record_bytes_max = options.record_bytes_max
        self.batch_bytes_max = batch_bytes_max(options)
        self.plain_bytes_max = min(self.batch_bytes_max, self.record_bytes_max)

    # --- replay --------------------------------------------------------------------------

    def resume(self, next_offset: int, timestamp: int) -> None:
        """Go on behind the frames that were found."""
        self.next_offset = self.committed = max(next_offset, self.next_offset)
        self.last_timestamp = max(timestamp, self.last_timestamp)

    def skip(self, number: int, offset: int) -> None:
        """Go on where an ephemeral topic's newest reservation says."""
        if number > self.reservation:
            self.reservation = number
            self.earliest = self.reserved = self.next_offset = self.committed = offset

    # --- in ------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        size: int,
        extras: dict[str, Any] | None,
        rank: int,
        nowait: bool = False,
        may_wait: bool = True,
    ) -> int | AppendFuture:
        """Append one record: its offset once its class is satisfied, or a future of that.

        With `may_wait` even that waits when too much has gathered. `extras` has the optional
        columns this record has. Plain values of the topic's own class take the shorter way through
        `Topic.append`, which does the same with less looking around.
        """
        shard = self.shard
        future = None
        while True:
            if self.is_ephemeral:
                make_room(self, 1, size)
            with shard.lock:
                if self.is_ephemeral and self.next_offset >= self.reserved:
                    continue  # another thread was faster
                group = shard.group
                try:
                    go_on(self)
                    self.add_value(value)
                    now = 0 if extras is None else extras.pop("timestamp", 0)
                    now = self.last_timestamp = max(now or self.time_ns(), self.last_timestamp)
                    self.add_timestamp(now)
                    if extras is not None:
                        self._add_extras(extras, now)
                    self.ask(group, rank)
                except BaseException:
                    self.take_back()
                    raise
                # No function is called until this is done: Ctrl-C does not come in between.
                offset = self.next_offset
                self.next_offset = offset + 1
                group.bytes += size + _RECORD_BYTES
                if rank != self.rank:
                    # As `stop_gathering`: the next plain append has to ask for its own class.
                    self.pending_group = None
                    self.add_value = self._begin
                if nowait:
                    future = shard.future(group, offset)
            break
        if future is not None:
            if group.bytes > GROUP_BYTES_MAX and may_wait:
                shard.finish(group)
            return future
        if rank == SYNCED or group.bytes > GROUP_BYTES_MAX:
            shard.commit(group)
        return offset

    def append_entries(
        self, entries: list[Entry], rank: int, remake: Callable[[int], list[Entry]] | None = None
    ) -> tuple[int, int]:
        """Append frames of several records; returns the first and last offset.

        They were encoded outside of any lock. Records that bring their own times also bring
        `remake(floor)`, which makes them again with no time below `floor`: it is called if the
        topic's time has moved on since.
        """
        group, first, last = self.enter(entries, rank, remake)
        if rank == SYNCED or group.bytes > GROUP_BYTES_MAX:
            self.shard.commit(group)
        return first, last

    def enter(
        self,
        entries: list[Entry],
        rank: int,
        remake: Callable[[int], list[Entry]] | None = None,
        is_left: bool = False,
    ) -> tuple[Group, int, int]:
        """The same without waiting; `is_left` leaves the group to the ticker or who comes first."""
        shard = self.shard
        count = 0
        while True:
            if self.is_ephemeral:
                count = sum(entry.count for entry in entries)
                make_room(self, count, sum(len(entry.body) for entry in entries))
            with shard.lock:
                if self.is_ephemeral and self.next_offset + count > self.reserved:
                    continue  # another thread was faster
                self.check()
                self.stop_gathering()  # single appends that follow start a batch behind these
                entries = self.place(entries, remake)
                group = shard.group
                first = self.next_offset
                offset = entries[-1].base_offset + entries[-1].count
                for entry in entries:
                    group.bytes += len(entry.body)
                self.ask(group, rank)
                if is_left:
                    shard.relax(group, lazy=False)
                # No function is called here: Ctrl-C comes before all of it or after.
                group.entries += entries
                self.next_offset = offset
                self.last_timestamp = entries[-1].max_timestamp
            break
        return group, first, offset - 1

    def place(
        self, entries: list[Entry], remake: Callable[[int], list[Entry]] | None
    ) -> list[Entry]:
        """Entries with the offsets and times they get if they enter now; the lock is held."""
        now = max(self.time_ns(), self.last_timestamp)
        if remake is not None and entries[0].base_timestamp < self.last_timestamp:
            entries = remake(self.last_timestamp)
        offset = self.next_offset
        for entry in entries:
            entry.base_offset = offset
            if remake is None:
                entry.base_timestamp = entry.max_timestamp = now
            offset += entry.count
        return entries

    def settle(self) -> None:
        """Make readable what was acknowledged: a reader sees every append before its own call."""
        if self.next_offset != self.committed:
            self.shard.settle()

    def _begin(self, value: bytes | None) -> None:
        """Add the first plain value of a new batch; called with the lock held."""
        self.begin_batch()
        self.add_value(value)
        self.ask(self.shard.group, self.rank)

    def begin_batch(self) -> None:
        """Start a batch for single appends in the open group; called with the lock held."""
        shard = self.shard
        self.check()
        pending = self.pending = Pending(self, self.next_offset)
        self.pending_group = shard.group
        self.pending_group.entries.append(pending)
        self.add_value = pending.values.append
        self.add_timestamp = pending.timestamps.append

    def check(self, *, tells_loss: bool = True) -> None:
        """Raise if nothing can be written; called with the lock held."""
        self.shard.check(tells_loss=tells_loss)
        self.check_dropped()

    def check_dropped(self) -> None:
        """Raise if the topic is gone."""
        if self.is_dropped:
            raise UnknownTopicError(
                f"topic {self.name!r} was dropped: store.topic({self.name!r}) has what came after"
            )

    def drop(self) -> None:
        """Let nothing more in; called with the lock held."""
        self.is_dropped = True
        self.stop_gathering()

    def take_back(self) -> None:
        """Undo what an interrupted append left half-done; called with the lock held.

        A value without its time, or both without their offset, would be written as they are. The
        next append begins a batch of its own: this one may not have asked for its class yet.
        """
        if self.pending_group is not None:
            go_on(self)
            self.stop_gathering()

    def stop_gathering(self) -> None:
        """Have the next single append begin a batch of its own; called with the lock held."""
        claim(self)
        self.pending_group = None
        self.add_value = self._begin

    def ask(self, group: Group, rank: int) -> None:
        """Have a group treated as a class demands."""
        if rank == SYNCED:
            group.sync = True
        elif not group.is_acknowledged or group.is_lazy:
            self.shard.relax(group, lazy=rank < RELAXED, acknowledged=True)

    def _add_extras(self, extras: dict[str, Any], now: int) -> None:
        """Add the optional columns of the record that was just added."""
        pending = self.pending
        index = len(pending.values) - 1
        if ttl := extras.pop("ttl", 0):
            extras["expires_at"] = now + ttl
        if pending.extras is None:
            pending.extras = {}
        for name, item in extras.items():
            pending.extras.setdefault(name, {})[index] = item

    # --- out -----------------------------------------------------------------------------

    def publish(self, entry: Entry, file: int, position: int) -> None:
        """Make a frame readable that is in the log; doing so again changes nothing."""
        if entry.base_offset < self.committed:
            return
        self.index.add(
            entry.base_offset, entry.count, file, position, HEADER_BYTES + len(entry.body),
            entry.max_timestamp,
        )  # fmt: skip
        self.advance(entry.base_offset + entry.count)

    def publish_memory(self, entry: Entry) -> None:
        """Make a frame readable that stays in memory; the oldest go when there are too many."""
        if entry.base_offset < self.committed:
            return
        slot, length = self.memory.add(entry)
        self.index.add(entry.base_offset, entry.count, MEMORY, slot, length, entry.max_timestamp)
        if self.memory.held_bytes > self.memory.bytes_max:
            self.memory.drop_oldest(self)
        self.advance(entry.base_offset + entry.count)

    def trim(self, offset: int) -> None:
        """Forget where the log has records below `offset`: segments have them now.

        Called by the holder of the commit lock; readers go on with the index they hold.
        """
        self.index = self.index.behind(offset)

    def give_back(self) -> None:
        """Forget offsets whose group failed; called with the shard's lock held."""
        self.stop_gathering()
        if self.given_back < 0 or self.committed < self.given_back:
            self.given_back = self.committed
        self.next_offset = self.committed

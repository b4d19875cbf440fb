"""What changes in a group, gathered until it is written: one frame for all of a commit.

A change is noted by one append to a list. What comes to nothing, because a record was delivered
and acknowledged within one commit, is not written but as consumed.

Concurrency: the holder of the group's lock notes changes. `encode` is called by the holder of the
commit lock and takes no other: it cuts off what is in the lists, while others go on adding to
them. Whoever adds first and then finds the changes entered in a group knows that the group has
yet to be encoded.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from stratalog.format.frame import FrameType
from stratalog.format.groups import ENTRY_BYTES, GROUP_BYTES, Description, encode_group
from stratalog.log.group import Entry, Gathered, Group
from stratalog.log.topic import RELAXED, SYNCED, TopicLog
from stratalog.model import Lease

if TYPE_CHECKING:
    from stratalog.projections.groups import GroupState

# Changes that gather before whoever makes them commits them: bounds memory.
CHANGES_MAX = 1 << 12

# Room in a frame for names of consumers and for the description.
_TEXT_BYTES = 4096


class _Drained(NamedTuple):
    """Changes that are being written."""

    consumed: list[int]
    touched: list[int]
    description: Description | None
    seek: int | None
    is_dropped: bool
    is_moved: bool

    @property
    def is_more(self) -> bool:
        """Whether there is something else than deliveries and what was consumed."""
        is_told = self.description is not None or self.seek is not None
        return is_told or self.is_dropped or self.is_moved


class Operations(Gathered):
    """The changes of one group."""

    __slots__ = (
        "_description", "_draining", "_is_dropped", "_is_moved", "_lock", "_seek", "consumed",
        "entered", "group", "numbered", "state", "topic_log", "touched",
    )  # fmt: skip

    def __init__(self, topic: TopicLog, state: GroupState) -> None:
        self.topic_log = topic
        self.state = state
        self.consumed: list[int] = []
        """Offsets that were consumed."""
        self.touched: list[int] = []
        """Offsets whose lease is another one."""
        self.entered: Group | None = None
        """The group that will be written with the changes noted so far."""
        self.group: Group | None = None
        """The one that was entered last: what was noted so far is written once it is."""
        self.numbered = 0
        """Of the newest frame that was made. One that was not written leaves its number unused."""
        self._lock = threading.Lock()
        self._description: Description | None = None
        self._seek: int | None = None
        self._is_dropped = False
        self._is_moved = False
        self._draining: _Drained | None = None

    # --- noting: the group's lock is held -------------------------------------------------

    def describe(self, description: Description) -> None:
        """The group is made, or something about it changed."""
        with self._lock:
            self._description = description

    def untouch(self, offsets: list[int]) -> None:
        """What was touched last is consumed at once: then it is only that which is written."""
        with self._lock:
            count = len(offsets)
            if count and self.touched[-count:] == offsets:
                del self.touched[-count:]

    def seek(self, offset: int) -> None:
        """All before is void: delivery goes on from an offset."""
        with self._lock:
            self.consumed.clear()
            self.touched.clear()
            self._seek = offset

    def move(self, cursor: int, *, is_written: bool = False) -> None:
        """The cursor of a group in mode `stream` moves, unless it is further already.

        `is_written` if a frame says so; then the commit lock is held, and not the group's.
        """
        with self._lock:
            self._is_moved |= not is_written
            if cursor > self.state.cursor:
                self.state.consumed += cursor - self.state.cursor
                self.state.cursor = cursor

    def disown(self) -> None:
        """Hold no lock, and look at the log before the next change: this is a fork."""
        self._lock = threading.Lock()
        self.entered = None

    def drop(self) -> None:
        """The group is gone."""
        with self._lock:
            self._is_dropped = True

    def enter(self, *, sync: bool) -> Group:
        """See that what was noted is written with a group; raises if nothing can be written."""
        group = self.entered
        if group is not None:
            if not sync or group.sync:
                return group
            group.sync = True
            if self.entered is group:  # it was not being written yet
                return group
            # Its commit may have looked before: what follows is synced with the next.
        topic = self.topic_log
        shard = topic.shard
        if sync:
            with self._lock:
                self._is_moved = True  # so that there is something to sync
        with shard.lock:
            topic.check()
            group = self.entered = self.group = shard.gather(
                self, sync=sync, lazy=topic.rank < RELAXED
            )
        return group

    def wait(self, group: Group, *, sync: bool, written: bool) -> None:
        """Return once a group is synced, or written; no lock is held."""
        if sync or written or len(self.consumed) + len(self.touched) > CHANGES_MAX:
            self.topic_log.shard.commit(group)

    # --- writing: the commit lock is held -------------------------------------------------

    def encode(self) -> list[Entry]:
        """The changes as frames: few entries and sets at a time, so that each fits a log file."""
        self.entered = None
        with self._lock:
            if self._draining is None:
                self._draining = self._drain()
            drained = self._draining
        pending = self.state.pending
        # What was consumed since is not among those that are pending, and is in the other list.
        chosen = sorted(pending.keys() & drained.touched) if pending else []
        leases = [(offset, lease) for offset in chosen if (lease := pending.get(offset))]
        room = self.topic_log.batch_bytes_max - GROUP_BYTES - _TEXT_BYTES
        at_once = max(1, room // (ENTRY_BYTES + 1))
        parts = [dict(leases[at : at + at_once]) for at in range(0, len(leases), at_once)]
        sets = _sets(drained.consumed, room)
        if not parts and not sets and not drained.is_more:
            self._draining = None
            return []
        return self._frames(drained, parts or [{}], sets)

    def _frames(
        self, drained: _Drained, parts: list[dict[int, Lease]], sets: list[BitMap64]
    ) -> list[Entry]:
        state = self.state
        bodies = []
        for index in range(max(len(parts) + len(sets) - 1, len(parts))):
            # Entries first: what was consumed since they were made is in a set behind them.
            leases = parts[index] if index < len(parts) else {}
            chosen = index - len(parts) + 1
            is_first = index == 0
            bodies.append(
                encode_group(
                    state.id,
                    state.deliveries,
                    state.cursor,
                    leases,
                    sets[chosen] if 0 <= chosen < len(sets) else (),
                    description=drained.description if is_first else None,
                    seek=drained.seek if is_first else None,
                    is_dropped=drained.is_dropped and is_first,
                )
            )
        number = self.next_number(len(bodies))
        entries = [
            Entry(
                FrameType.GROUP, self.topic_log.id, body, base_offset=number + place,
                on_fail=self.on_fail,
            )
            for place, body in enumerate(bodies)
        ]  # fmt: skip
        last = self.numbered

        def done() -> None:
            if state.number < last:
                state.number = last
                self._draining = None

        entries[-1].on_commit = done
        return entries

    def next_number(self, frames: int = 1) -> int:
        """The number of the next frame, of the first if there are several; commit lock held."""
        first = max(self.numbered, self.state.number) + 1
        self.numbered = first + frames - 1
        return first

    def _drain(self) -> _Drained:
        consumed, touched = self.consumed[:], self.touched[:]
        drained = _Drained(
            consumed, touched, self._description, self._seek, self._is_dropped, self._is_moved
        )
        # Only what was copied: others may have added something meanwhile.
        del self.consumed[: len(consumed)], self.touched[: len(touched)]
        self._description = self._seek = None
        self._is_dropped = self._is_moved = False
        return drained

    def on_fail(self) -> None:
        """Nothing of it is in the log: it is written with the next group that is."""
        self.entered = None
        with self._lock:
            drained, self._draining = self._draining, None
            if drained is None:
                return
            if self._seek is None:  # one that came since makes all before it void
                self.consumed[:0] = drained.consumed
                self.touched[:0] = drained.touched
                self._seek = drained.seek
            self._description = self._description or drained.description
            self._is_dropped |= drained.is_dropped
            self._is_moved |= drained.is_moved


def is_synced(topic: TopicLog) -> bool:
    """Whether what is acknowledged to a consumer of this topic must be on the disk."""
    return topic.rank == SYNCED


def _sets(offsets: list[int], bytes_max: int) -> list[BitMap64]:
    """Offsets as sets, none larger than this when it is written."""
    if not offsets:
        return []
    chosen = BitMap64(offsets)
    if len(offsets) * 16 < bytes_max:
        return [chosen]
    return _split(chosen, bytes_max)


def _split(chosen: BitMap64, bytes_max: int) -> list[BitMap64]:
    if len(chosen) == 1 or len(chosen.serialize()) <= bytes_max:
        return [chosen]
    middle = chosen[len(chosen) // 2]
    low = chosen.copy()
    low.remove_range(middle, 1 << 63)
    return _split(low, bytes_max) + _split(chosen - low, bytes_max)

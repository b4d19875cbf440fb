"""Changes of a group, gathered until they are written: one frame for all of a commit.

A change is noted by one append to a list. A record that was delivered and acknowledged within one
commit is written only as consumed.

Noting a change and entering it in a commit group is one step: a call that raises has noted nothing.
A call that waits for its commit leaves a ticket, which undoes the change if that fails.

Concurrency: the holder of the group's lock notes changes. `encode` is called by the holder of the
commit lock and takes no lock but the one here: it cuts off what is in the lists, while others go
on adding to them. A thread that adds first and then finds the changes entered in the same commit
group as before knows that the group has yet to be encoded. Locks, in the order they are taken: the
group's, the shard's, the one here.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import filterfalse
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from stratalog.format.frame import FrameType
from stratalog.format.groups import ENTRY_BYTES, GROUP_BYTES, Description, encode_group
from stratalog.log.commit_group import Entry, Gathered, Group
from stratalog.log.topic import RELAXED, SYNCED, TopicLog
from stratalog.model import Lease

if TYPE_CHECKING:
    from stratalog.consume.undo import Ticket
    from stratalog.state.group_state import GroupState

# Changes that gather before the caller commits them: bounds memory.
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
    tickets: list[Ticket]

    @property
    def is_more(self) -> bool:
        """Whether there is anything besides deliveries and consumed records."""
        is_told = self.description is not None or self.seek is not None
        return is_told or self.is_dropped or self.is_moved


class Operations(Gathered):
    """The changes of one group."""

    __slots__ = (
        "_description", "_draining", "_is_dropped", "_is_moved", "_lock", "_seek", "_tickets",
        "consumed", "entered", "group", "numbered", "state", "topic_log", "touched",
    )  # fmt: skip

    def __init__(self, topic: TopicLog, state: GroupState) -> None:
        self.topic_log = topic
        self.state = state
        self.consumed: list[int] = []
        """Offsets that were consumed."""
        self.touched: list[int] = []
        """Offsets whose lease changed."""
        self.entered: Group | None = None
        """The commit group that will be written with the changes noted so far."""
        self.group: Group | None = None
        """The group that was entered last: the changes noted so far are written once it is."""
        self.numbered = 0
        """Number of the newest frame; a frame that was not written leaves its number unused."""
        self._lock = threading.Lock()
        self._description: Description | None = None
        self._seek: int | None = None
        self._is_dropped = False
        self._is_moved = False
        self._draining: _Drained | None = None
        self._tickets: list[Ticket] = []

    # --- noting: the group's lock is held -------------------------------------------------

    def describe(self, description: Description) -> None:
        """Note that the group was created, or its description changed."""
        with self._lock:
            self._description = description

    def untouch(self, offsets: list[int]) -> None:
        """Drop touches of records that are consumed right after: only that is written."""
        with self._lock:
            count = len(offsets)
            if count and self.touched[-count:] == offsets:
                del self.touched[-count:]

    def seek(self, offset: int) -> None:
        """Void everything before: delivery continues from an offset."""
        with self._lock:
            del self.consumed[:], self.touched[:]
            self._seek = offset

    def forget_news(self) -> None:
        """Write nothing of a description, a `seek` or a drop that failed, as its caller knows."""
        with self._lock:
            self._description = self._seek = None
            self._is_dropped = self._is_moved = False

    def moved(self, cursor: int) -> None:
        """Note that a written frame has moved the cursor; the commit lock is held."""
        with self._lock:
            self._move(cursor)

    def _move(self, cursor: int) -> None:
        if cursor > self.state.cursor:
            self.state.consumed += cursor - self.state.cursor
            self.state.cursor = cursor

    def disown(self) -> None:
        """Replace the lock, and check the log before the next change: this is a fork."""
        self._lock = threading.Lock()
        self.entered = None

    def drop(self) -> None:
        """Note that the group was dropped."""
        with self._lock:
            self._is_dropped = True

    def note(
        self,
        consumed: Sequence[int] = (),
        touched: Sequence[int] = (),
        *,
        cursor: int = 0,
        sync: bool = False,
        waits: bool = False,
        ticket: Ticket | None = None,
    ) -> Group:
        """Write changes with a commit group; if that is impossible, raises and notes nothing.

        `cursor` is that of a group in mode `stream`, and never moves back. `waits` if the caller
        waits for the commit: then a failure is reported to no other call.
        """
        with self._lock:
            group = self.entered
            if group is not None:  # and it stays so: `encode` takes the lock
                self._add(consumed, touched, cursor, sync, ticket)
                group.sync = group.sync or sync
                return group
        topic = self.topic_log
        shard = topic.shard
        with shard.lock:
            if shard.refusal is not None or shard.lost is not None or topic.is_dropped:
                topic.check()
            with self._lock:
                self._add(consumed, touched, cursor, sync, ticket)
                group = self.entered = self.group = shard.gather(
                    self, sync=sync, lazy=topic.rank < RELAXED, acknowledged=not waits
                )
        return group

    def remember(self, consumed: Sequence[int]) -> None:
        """Write with the next frame that records are gone, which no call undoes."""
        with self._lock:
            self.consumed += consumed

    def _add(
        self, consumed: Sequence[int], touched: Sequence[int], cursor: int, sync: bool,
        ticket: Ticket | None,
    ) -> None:  # fmt: skip
        self._is_moved |= sync or bool(cursor)  # so that there is something to write
        self._move(cursor)
        self.consumed += consumed
        self.touched += touched
        if ticket is not None:
            self._tickets.append(ticket)

    def confirm(self, notes: list[int], added: Sequence[int]) -> None:
        """Ensure that newly added changes are written, after the group was encoded without them.

        If nothing can be written, removes them and raises; unless they are being written.
        """
        topic = self.topic_log
        with topic.shard.lock:
            try:
                topic.check()
            except BaseException:
                with self._lock:
                    if notes[-len(added) :] == list(added):
                        del notes[-len(added) :]
                        raise
                return
            with self._lock:
                if self.entered is None:
                    self.entered = self.group = topic.shard.gather(
                        self, sync=False, lazy=topic.rank < RELAXED
                    )

    # --- writing: the commit lock is held -------------------------------------------------

    def encode(self) -> list[Entry]:
        """Encode the changes as frames, each small enough for a log file."""
        with self._lock:
            self.entered = None
            if self._draining is None:
                self._draining = self._drain()
            drained = self._draining
        pending = self.state.pending
        # Offsets consumed since are no longer pending, and are in the other list.
        chosen = {offset: lease for offset in drained.touched if (lease := pending.get(offset))}
        offsets = sorted(chosen)
        room = self.topic_log.batch_bytes_max - GROUP_BYTES - _TEXT_BYTES
        at_once = max(1, room // (ENTRY_BYTES + 1))
        parts = [
            {offset: chosen[offset] for offset in offsets[at : at + at_once]}
            for at in range(0, len(offsets), at_once)
        ]
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
            # Entries first: offsets consumed since they were made are in a set that is read after
            # them.
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
                # Before the number: a snapshot that has the number has the effect of the frames.
                for ticket in drained.tickets:
                    ticket.done()
                state.number = last
                self._draining = None

        entries[-1].on_commit = done
        return entries

    def next_number(self, frames: int = 1) -> int:
        """Return the number of the next frame, or of the first of several; commit lock held."""
        first = max(self.numbered, self.state.number) + 1
        self.numbered = first + frames - 1
        return first

    def _drain(self) -> _Drained:
        consumed, touched = self.consumed[:], self.touched[:]
        drained = _Drained(
            consumed, touched, self._description, self._seek, self._is_dropped, self._is_moved,
            self._tickets,
        )  # fmt: skip
        # Only what was copied: other threads may have added something meanwhile.
        del self.consumed[: len(consumed)], self.touched[: len(touched)]
        self._description = self._seek = None
        self._is_dropped = self._is_moved = False
        self._tickets = []
        return drained

    def on_fail(self) -> None:
        """Keep unawaited changes for the next group, after nothing of them was logged.

        Calls that wait for the group raise. The open group fails as well, so calls that wait for
        that one raise, too.
        """
        with self._lock:
            self.entered = None
            drained, self._draining = self._draining, None
            tickets, self._tickets = self._tickets, []
            if drained is not None:
                tickets = drained.tickets + tickets
                if self._seek is None:  # a later seek voids everything before it
                    self.consumed[:0] = drained.consumed
                    self.touched[:0] = drained.touched
                    self._seek = drained.seek
                self._description = self._description or drained.description
                self._is_dropped |= drained.is_dropped
                self._is_moved |= drained.is_moved
            if tickets:
                void = set().union(*(ticket.leases for ticket in tickets))
                self.consumed[:] = filterfalse(void.__contains__, self.consumed)
        for ticket in tickets:
            ticket.failed()


def is_synced(topic: TopicLog) -> bool:
    """Return whether an acknowledgement to a consumer of this topic must be on the disk."""
    return topic.rank == SYNCED


def _sets(offsets: list[int], bytes_max: int) -> list[BitMap64]:
    """Encode offsets as sets, none larger than this when it is written."""
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

"""The state of a table: for every key its newest version, and a few before it.

A version is the offset of its record. Columns by slot hold the newest version of each key: 100
bytes a key besides key and value, where a tuple each would take twice as much. Older versions are
in a list for each key that has some. Everything is computed from rows in offset order, without a
clock: live, in recovery and for a read-only view by the same code.

Invariants:
- Rows that are already in the state are skipped, so rows may be applied again.
- A key has at most `keep` versions; a deletion counts as one, and the oldest is removed first.
- Where the state no longer has an old version, because it was removed, it says so.

Concurrency: none; the projection that holds it has a lock.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import NamedTuple

from stratalog.format.table import BYTES_KEY, DELETED, IN_LOG, Rows

Row = tuple[int, bytes, "bytes | None", int, int, int]
"""Version, key, value, timestamp, expires_at and flags: one change of a key."""

VALUE_BYTES_MAX = 1 << 14
"""Larger values stay in the log. Reading one takes 20 to 100 us from the disk."""

KEY_BYTES = 190
"""Bytes of a key besides key and value, including the headers of both objects."""
VERSION_BYTES = 200
"""Bytes of an older version besides its value: a tuple and its numbers."""

# Keys that are removed, or values that are left to the log, at a time when memory is short.
_SHED_COUNT = 4096


class Version(NamedTuple):
    """One version of a key."""

    version: int
    value: bytes | None
    timestamp: int
    expires_at: int
    flags: int

    @property
    def is_deleted(self) -> bool:
        """Whether it is the deletion of the key."""
        return bool(self.flags & DELETED)

    @property
    def is_in_log(self) -> bool:
        """Whether the value has to be read from its record."""
        return bool(self.flags & IN_LOG)


_Older = tuple[int, "bytes | None", int, int, int]
"""As a `Version`, which takes three times as long to make."""


class Gone(NamedTuple):
    """A version that the state no longer has; `horizon` is the first it may have."""

    horizon: int


class TableState:
    """All keys of a table."""

    def __init__(self, keep: int, grace_ns: int) -> None:
        self.keep = keep
        """Versions kept for each key."""
        self._grace_ns = grace_ns
        """How long the deletion of a key is kept."""
        self.slots: dict[bytes, int] = {}
        self._versions = array("q")
        self._timestamps = array("q")
        self._expires = array("q")
        self._flags = bytearray()
        self._values: list[bytes | None] = []
        self._older: dict[int, list[_Older]] = {}
        """Older versions by slot, the oldest first."""
        self._free: list[int] = []
        self.deleted: dict[bytes, None] = {}
        """Keys whose newest version is a deletion, the oldest first."""
        self._due: list[tuple[int, bytes]] = []
        """A heap of expiry times; an item is valid while the key still has that time."""
        self._expiring = 0
        """Keys whose newest version expires."""
        self.horizon = 0
        """Below this offset, a key that is missing here may have had versions."""
        self.newest_timestamp = 0
        self.held_bytes = 0
        self._order: list[bytes] | None = None
        """Keys in order, as of the last scan; None before the first."""
        self._fresh: list[bytes] = []
        """Keys that were added since."""
        self._has_removed = False
        self._has_marks = False
        """Whether a key was ever put as bytes."""
        self._spilled = 0
        """Slots below this have left their values to the log, when memory was short."""

    def __len__(self) -> int:
        return len(self.slots) - len(self.deleted)

    # --- in ------------------------------------------------------------------------------

    def take_columns(
        self,
        versions: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        expires_at: Sequence[int] | None,
        flags: Sequence[int] | None,
    ) -> None:
        """Apply rows by column; a batch of new keys at the speed of a copy."""
        if expires_at is None and not flags:
            if not self._take_new(versions, keys, values, timestamps):
                self._take_puts(versions, keys, values, timestamps)
            return
        expiries = repeat(0) if expires_at is None else expires_at
        self.take(
            zip(versions, keys, values, timestamps, expiries, flags or repeat(0), strict=False)
        )

    def _take_new(
        self,
        versions: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
    ) -> bool:
        """Apply puts of new keys, each once; False if these rows are anything else."""
        slots, count = self.slots, len(keys)
        if not count:
            return True
        if self._free or len(set(keys)) != count or not slots.keys().isdisjoint(keys):
            return False
        lengths = [-1 if value is None else len(value) for value in values]
        if min(lengths) < 0 or max(lengths) > VALUE_BYTES_MAX:
            return False
        base = len(self._values)
        slots.update(zip(keys, range(base, base + count), strict=True))
        self._versions.extend(versions)
        self._timestamps.extend(timestamps)
        self._expires.frombytes(bytes(8 * count))
        self._flags += bytes(count)
        self._values += values
        self.held_bytes += count * KEY_BYTES + sum(lengths) + sum(map(len, keys))
        if self._order is not None:
            self._fresh += keys
        self._note_time(timestamps[-1])
        return True

    def _take_puts(
        self,
        new_versions: Sequence[int],
        keys: Sequence[bytes],
        new_values: Sequence[bytes | None],
        new_timestamps: Sequence[int],
    ) -> None:
        """Apply puts of text keys that never expire: as `take`, in half the time."""
        slots, versions, values, older = self.slots, self._versions, self._values, self._older
        timestamps, expires, all_flags = self._timestamps, self._expires, self._flags
        keep = self.keep
        chain_max = keep - 1
        held = 0
        for version, key, value, timestamp in zip(
            new_versions, keys, new_values, new_timestamps, strict=True
        ):
            slot = slots.get(key)
            if slot is None:
                slot = self._new_slot(key)
                held += KEY_BYTES + len(key)
            elif version <= versions[slot]:
                continue
            else:
                flags, expiry = all_flags[slot], expires[slot]
                old = values[slot]
                if chain_max:
                    one = (versions[slot], old, timestamps[slot], expiry, flags)
                    chain = older.get(slot)
                    if chain is None:
                        older[slot] = [one]
                        held += VERSION_BYTES
                    else:
                        chain.append(one)
                        if len(chain) > chain_max:
                            held -= len(chain.pop(0)[1] or b"")
                        else:
                            held += VERSION_BYTES
                elif old is not None:
                    held -= len(old)
                if flags:
                    if flags & DELETED:
                        self.deleted.pop(key, None)
                    all_flags[slot] = 0
                if expiry:
                    self._expiring -= 1
                    expires[slot] = 0
            if value is None:
                all_flags[slot] = IN_LOG
            elif (length := len(value)) > VALUE_BYTES_MAX:
                value = None
                all_flags[slot] = IN_LOG
            else:
                held += length
            versions[slot] = version
            timestamps[slot] = timestamp
            values[slot] = value
        self.held_bytes += held
        self._note_time(new_timestamps[-1] if keys else 0)

    def take(self, rows: Iterable[Row]) -> None:
        """Apply rows, those of each key in version order."""
        slots, versions, values = self.slots, self._versions, self._values
        timestamps, expires, all_flags = self._timestamps, self._expires, self._flags
        deleted = self.deleted
        keep = self.keep
        held = 0
        timestamp = 0
        for version, key, value, timestamp, expires_at, flags in rows:
            if flags & DELETED:
                value = None
            if value is None:
                pass
            elif (length := len(value)) > VALUE_BYTES_MAX:
                value = None
                flags |= IN_LOG
            else:
                held += length
            slot = slots.get(key)
            if slot is None:
                slot = self._new_slot(key)
                held += KEY_BYTES + len(key)
            elif version <= versions[slot]:
                held -= 0 if value is None else len(value)
                continue
            else:
                if keep > 1:
                    held += self._keep_older(slot)
                elif (old := values[slot]) is not None:
                    held -= len(old)
                if all_flags[slot] & DELETED:
                    deleted.pop(key, None)
                if expires[slot]:
                    self._expiring -= 1
            versions[slot] = version
            timestamps[slot] = timestamp
            expires[slot] = expires_at
            all_flags[slot] = flags
            values[slot] = value
            if flags & DELETED:
                deleted[key] = None
            if flags & BYTES_KEY:
                self._has_marks = True
            if expires_at:
                self._expiring += 1
                heapq.heappush(self._due, (expires_at, key))
        self.held_bytes += held
        self._note_time(timestamp)

    def _note_time(self, timestamp: int) -> None:
        """Forget what is over by the time of the newest row."""
        self.newest_timestamp = max(self.newest_timestamp, timestamp)
        if len(self._due) > 2 * self._expiring + 1024:
            self._due = [(at, key) for at, key in self._due if self._is_due(key, at)]
            heapq.heapify(self._due)
        if self.deleted:
            self._prune(self.newest_timestamp - self._grace_ns)

    def take_rows(self, rows: Rows) -> None:
        """Apply rows of a state file, which have no value where the log has it."""
        if not any(rows.flags) and not any(rows.expires_at):
            self.take_columns(rows.versions, rows.keys, rows.values, rows.timestamps, None, None)
            return
        values = (
            None if flags & (DELETED | IN_LOG) else value
            for value, flags in zip(rows.values, rows.flags, strict=True)
        )
        self.take(
            zip(
                rows.versions,
                rows.keys,
                values,
                rows.timestamps,
                rows.expires_at,
                rows.flags,
                strict=True,
            )
        )

    def _new_slot(self, key: bytes) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._values)
            self._versions.append(-1)
            self._timestamps.append(0)
            self._expires.append(0)
            self._flags.append(0)
            self._values.append(None)
        self.slots[key] = slot
        if self._order is not None:
            self._fresh.append(key)
        return slot

    def _keep_older(self, slot: int) -> int:
        """Move the newest version to the older ones; returns the bytes that this takes."""
        chain = self._older.get(slot)
        if chain is None:
            chain = self._older[slot] = []
        chain.append(self._version(slot))
        taken = VERSION_BYTES
        while len(chain) >= self.keep:
            taken -= VERSION_BYTES + len(chain.pop(0)[1] or b"")
        return taken

    def _prune(self, before: int) -> None:
        """Remove keys that were deleted at this time or earlier."""
        for key in list(self.deleted):
            slot = self.slots[key]
            if self._timestamps[slot] > before:
                break
            self._remove(key, slot)

    def _remove(self, key: bytes, slot: int) -> None:
        self.horizon = max(self.horizon, self._versions[slot] + 1)
        del self.slots[key], self.deleted[key]
        for old in self._older.pop(slot, ()):
            self.held_bytes -= VERSION_BYTES + len(old[1] or b"")
        self.held_bytes -= KEY_BYTES + len(key)
        self._expires[slot] = self._flags[slot] = 0
        self._free.append(slot)
        self._has_removed = True

    # --- out -----------------------------------------------------------------------------

    def newest(self, key: bytes) -> Version | None:
        """Find the newest version of a key, which may be its deletion."""
        slot = self.slots.get(key)
        return None if slot is None else self._version(slot)

    def get(self, key: bytes, now: int) -> Version | None:
        """Find the newest version of a key, unless it was deleted or has expired."""
        slot = self.slots.get(key)
        if slot is None or self._flags[slot] & DELETED:
            return None
        if 0 < self._expires[slot] <= now:
            return None
        return self._version(slot)

    def plain_version(self, key: bytes) -> int:
        """Give the newest version of a key, -1 if there is none.

        -2 if it takes a look at the clock or the flags to tell whether that counts.
        """
        slot = self.slots.get(key)
        if slot is None:
            return -1
        return -2 if self._expires[slot] or self._flags[slot] & DELETED else self._versions[slot]

    def value_at(self, slot: int) -> bytes | None:
        """Return the value in a slot; None if that depends on the clock or needs the log."""
        return None if self._expires[slot] else self._values[slot]

    def at(self, key: bytes, version: int) -> Version | Gone | None:
        """Find the version that a key had when a version was the newest of all."""
        slot = self.slots.get(key)
        if slot is None:
            return Gone(self.horizon) if version < self.horizon else None
        if self._versions[slot] <= version:
            return self._version(slot)
        chain = self._older.get(slot, [])
        index = bisect_right(chain, version, key=lambda one: one[0])
        if index:
            return Version(*chain[index - 1])
        if len(chain) + 1 >= self.keep or version < self.horizon:
            return Gone(chain[0][0] if chain else self._versions[slot])
        return None

    def history(self, key: bytes) -> list[Version]:
        """List the versions of a key, the oldest first."""
        slot = self.slots.get(key)
        if slot is None:
            return []
        return [Version(*old) for old in self._older.get(slot, ())] + [self._version(slot)]

    def page(self, prefix: bytes, after: bytes | None, count: int, now: int) -> Page:
        """List living keys with a prefix in order, with their newest values, after a key."""
        order = self._ordered()
        start = bisect_left(order, prefix) if after is None else bisect_right(order, after)
        end = _prefix_end(order, prefix, start)
        if self.deleted or self._expiring or self._has_marks:
            return self._marked_page(order, start, end, after, count, now)
        keys = order[start : min(end, start + count)]
        values = self._values
        slots = map(self.slots.__getitem__, keys)
        return Page(
            keys, [values[slot] for slot in slots], None, keys[-1] if keys else after,
            start + len(keys) >= end,
        )  # fmt: skip

    def _marked_page(
        self, order: list[bytes], start: int, end: int, after: bytes | None, count: int, now: int
    ) -> Page:
        """As `page`, where some keys are deleted, expire, or were put as bytes."""
        slots, values, flags, expires = self.slots, self._values, self._flags, self._expires
        keys: list[bytes] = []
        found: list[bytes | None] = []
        marks: list[int] = []
        last = after
        for last in islice(order, start, end):
            slot = slots.get(last)
            if slot is None or flags[slot] & DELETED or 0 < expires[slot] <= now:
                continue
            keys.append(last)
            found.append(values[slot])
            marks.append(flags[slot])
            if len(keys) >= count:
                return Page(keys, found, marks, last, False)
        return Page(keys, found, marks, last, True)

    def page_at(self, prefix: bytes, after: bytes | None, count: int, version: int) -> Versions:
        """List keys with a prefix as they were at a version; looks at `count` keys.

        A key that has changed too often since is left out.
        """
        order = self._ordered()
        start = bisect_left(order, prefix) if after is None else bisect_right(order, after)
        found: list[tuple[bytes, Version]] = []
        last = after
        looked = 0
        for last in islice(order, start, start + count):
            if not last.startswith(prefix):
                break
            looked += 1
            one = self.at(last, version)
            if isinstance(one, Version) and not one.is_deleted:
                found.append((last, one))
        return Versions(found, last, looked < count)

    def expired(self, now: int) -> list[bytes]:
        """List expired keys whose expiry no record has logged yet."""
        found: dict[bytes, None] = {}
        heap, stack = self._due, [0]
        while stack:
            index = stack.pop()
            if index < len(heap) and heap[index][0] <= now:
                at, key = heap[index]
                if self._is_due(key, at):
                    found[key] = None
                stack += (2 * index + 1, 2 * index + 2)
        return list(found)

    @property
    def next_expiry(self) -> int:
        """Return when the next key may expire; 0 for never."""
        return self._due[0][0] if self._due else 0

    def _is_due(self, key: bytes, at: int) -> bool:
        slot = self.slots.get(key)
        return slot is not None and self._expires[slot] == at

    def _version(self, slot: int) -> Version:
        return Version(
            self._versions[slot], self._values[slot], self._timestamps[slot],
            self._expires[slot], self._flags[slot],
        )  # fmt: skip

    def _ordered(self) -> list[bytes]:
        """Return the keys in order; deleted ones may be among them."""
        order = self._order
        if order is None:
            order = self._order = sorted(self.slots)
            self._fresh = []
        elif self._has_removed or self._fresh:
            fresh = set(self._fresh)
            if self._has_removed:
                order = [key for key in order if key in self.slots and key not in fresh]
                fresh &= self.slots.keys()
            order = order + list(fresh)
            order.sort()
            self._order, self._fresh = order, []
        self._has_removed = False
        return order

    # --- snapshots and memory ------------------------------------------------------------

    def rows(self, keys: Iterable[bytes]) -> Rows:
        """Collect all versions of keys; missing keys are left out."""
        names: list[bytes] = []
        found: list[_Older] = []
        versions, values, older = self._versions, self._values, self._older
        timestamps, expires, flags = self._timestamps, self._expires, self._flags
        for key in keys:
            slot = self.slots.get(key)
            if slot is None:
                continue
            if chain := older.get(slot):
                found += chain
                names += [key] * len(chain)
            names.append(key)
            found.append(
                (versions[slot], values[slot], timestamps[slot], expires[slot], flags[slot])
            )
        return Rows(
            [one[0] for one in found],
            [one[2] for one in found],
            [one[3] for one in found],
            bytes(one[4] for one in found),
            names,
            [one[1] or b"" for one in found],
        )

    def shed(self) -> bool:
        """Release some memory: deletions, older versions, then values, which the log has."""
        if self.deleted:
            for key in list(islice(self.deleted, _SHED_COUNT)):
                self._remove(key, self.slots[key])
            return True
        if self._older:
            for slot in list(islice(self._older, _SHED_COUNT)):
                for old in self._older.pop(slot):
                    self.held_bytes -= VERSION_BYTES + len(old[1] or b"")
                self.horizon = max(self.horizon, self._versions[slot])
            return True
        return self._spill()

    def _spill(self) -> bool:
        """Leave values to the log, slot by slot; returns whether there were any."""
        start, count = self._spilled, 0
        for slot in range(start, len(self._values)):
            value = self._values[slot]
            if value:
                self._values[slot] = None
                self._flags[slot] |= IN_LOG
                self.held_bytes -= len(value)
                count += 1
                if count == _SHED_COUNT:
                    self._spilled = slot + 1
                    return True
        self._spilled = 0  # the next call starts again, for values that were added since
        return count > 0 or start > 0


class Page(NamedTuple):
    """Some keys in order, with their values."""

    keys: list[bytes]
    values: list[bytes | None]
    flags: list[int] | None
    """One for each key; None if all are text."""
    last: bytes | None
    """The key to continue after."""
    is_last: bool
    """Whether no key follows."""


class Versions(NamedTuple):
    """Some keys in order, with a version each."""

    items: list[tuple[bytes, Version]]
    last: bytes | None
    is_last: bool


def text_of(key: bytes, flags: int) -> str | bytes:
    """Return a key as it was put: as text, unless it was bytes."""
    return key if flags & BYTES_KEY else key.decode()


def texts_of(keys: list[bytes], flags: list[int] | None) -> Iterable[str | bytes]:
    """Return keys as they were put."""
    return map(bytes.decode, keys) if flags is None else map(text_of, keys, flags)


def _prefix_end(order: list[bytes], prefix: bytes, start: int) -> int:
    """Find where keys with a prefix end, from a place on that is not before them."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        return len(order)  # there is no greater prefix
    return bisect_left(order, stem[:-1] + bytes([stem[-1] + 1]), start)

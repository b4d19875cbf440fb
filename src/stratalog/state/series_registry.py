"""The series of a topic: their tags and their newest points, by column.

A series has a number, which is its index in several arrays: 4 bytes for each tag, 16 for the time
and the offset of its newest point, 9 for each of its fields. So a batch with thousands of series
takes a few vectorised steps, and so does a search by tags.

Invariants:
- The newest point of a series has its greatest time; of several with that time, the one with the
highest offset counts, as a whole.
- Applying points again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.format.point_records import Part
from stratalog.format.points import DTYPES, Bools, Column, FieldType, Int64s, series_tags

# Bytes of a key and its place in a dictionary and a list, besides the key itself.
KEY_BYTES = 160
_FIRST_SIZE = 16
# Tags that are cached as dictionaries.
_TAGS_KEPT = 1 << 12


def grown(array: npt.NDArray[Any], size: int, fill: Any) -> npt.NDArray[Any]:
    """Extend an array to a number of items; the new ones are `fill`."""
    if size <= len(array):
        return array
    larger = np.full(max(size, 2 * len(array), _FIRST_SIZE), fill, array.dtype)
    larger[: len(array)] = array
    return larger


class TagColumn:
    """The values of one tag, as a code for each series; -1 for a series without it."""

    __slots__ = ("codes", "texts", "values")

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.texts: list[str] = []
        self.codes = np.full(0, -1, np.int32)

    def set(self, id: int, value: str) -> None:
        """Set the tag of a series."""
        self.codes = grown(self.codes, id + 1, -1)
        code = self.values.setdefault(value, len(self.texts))
        if code == len(self.texts):
            self.texts.append(value)
        self.codes[id] = code

    def of(self, ids: Int64s) -> npt.NDArray[np.int64]:
        """Return the codes of these series."""
        known = np.full(len(ids), -1, np.int64)
        is_known = ids < len(self.codes)
        known[is_known] = self.codes[ids[is_known]]
        return known


class Newest:
    """The values of one field in the newest point of each series."""

    __slots__ = ("type", "valid", "values")

    def __init__(self, type: FieldType) -> None:
        self.type = type
        self.values: npt.NDArray[Any] = np.zeros(0, DTYPES[type])
        self.valid: Bools = np.zeros(0, np.bool_)

    def promote(self) -> None:
        """Convert whole numbers to floats."""
        self.type, self.values = FieldType.FLOAT, self.values.astype(np.float64)


class Registry:
    """All series of a topic that have points."""

    def __init__(self) -> None:
        self.ids: dict[bytes, int] = {}
        self.keys: list[bytes | None] = []
        """Names of series by number; None for a forgotten one."""
        self.tags: dict[str, TagColumn] = {}
        self.times = np.full(0, -1, np.int64)
        self.offsets = np.full(0, -1, np.int64)
        self.fields: dict[str, Newest] = {}
        self.generation = 0
        """Changes whenever a series is added or forgotten."""
        self.bytes = 0
        """Approximate bytes of the series."""
        self._tags: dict[int, dict[str, str]] = {}
        self._found: dict[tuple[tuple[str, str], ...], tuple[int, Int64s]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, keys: Iterable[bytes]) -> Int64s:
        """Return the numbers of these series; new ones get a number."""
        known = list(map(self.ids.get, keys))
        if None in known:
            known = [self._add(key) for key in keys]
        return np.array(known, np.int64)

    def _add(self, key: bytes) -> int:
        id = self.ids.get(key)
        if id is None:
            id = len(self.keys)
            # The list first: an interrupt then only wastes a number.
            self.keys.append(key)
            self.times = grown(self.times, id + 1, -1)
            self.offsets = grown(self.offsets, id + 1, -1)
            for name, value in series_tags(key).items():
                self.tags.setdefault(name, TagColumn()).set(id, value)
            self.ids[key] = id
            self.bytes += KEY_BYTES + len(key) + 16 + 9 * len(self.fields)
            self.generation += 1
        return id

    def declare(self, name: str, type: FieldType) -> None:
        """Set the type of a field; whole numbers become floats once there is a float."""
        known = self.fields.get(name)
        if known is None:
            self.fields[name] = Newest(type)
            self.bytes += 9 * len(self.keys) + len(name) + 200
        elif known.type == FieldType.INT and type == FieldType.FLOAT:
            known.promote()

    def apply(self, part: Part) -> Int64s:
        """Apply points; returns the numbers of their series."""
        points = part.points
        for name, column in points.fields.items():
            self.declare(name, column.type)
        ids = self.add(points.series)
        last = points.ends - 1
        times, offsets = points.times[last], part.offsets[last]
        older = self.times[ids]
        is_newer = (times > older) | ((times == older) & (offsets >= self.offsets[ids]))
        target, source = ids[is_newer], last[is_newer]
        size = len(self.keys)
        for name, newest in self.fields.items():
            newest.values = grown(newest.values, size, "" if newest.type == FieldType.TEXT else 0)
            newest.valid = grown(newest.valid, size, False)
            known = typed(points.fields.get(name), newest.type)
            newest.valid[target] = known is not None
            if known is not None:
                newest.values[target] = known.values[source]
                if known.valid is not None:
                    newest.valid[target] = known.valid[source]
        self.times[target] = times[is_newer]
        self.offsets[target] = offsets[is_newer]
        return ids

    def forget(self, before: int) -> int:
        """Forget series whose newest point is before a time; returns how many."""
        old = np.flatnonzero(self.times[: len(self.keys)] < before)
        count = 0
        for id in old.tolist():
            key = self.keys[id]
            if key is not None:
                self.ids.pop(key, None)
                self.keys[id] = None
                self.bytes -= KEY_BYTES + len(key)
                count += 1
        self.generation += bool(count)
        return count

    def find(self, tags: Mapping[str, str]) -> Int64s:
        """Return the numbers of the series that have all these tags, ordered by name."""
        wanted = tuple(tags.items())
        found = self._found.get(wanted)
        if found is not None and found[0] == self.generation:
            return found[1]
        ids = np.fromiter(self.ids.values(), np.int64, len(self.ids))
        for name, value in wanted:
            column = self.tags.get(name)
            code = -1 if column is None else column.values.get(value, -1)
            if column is None or code < 0:
                ids = ids[:0]
                break
            ids = ids[column.of(ids) == code]
        keys = self.keys
        ordered = np.array(sorted(ids.tolist(), key=keys.__getitem__), np.int64)
        if len(self._found) >= 1024:
            self._found.clear()
        self._found[wanted] = self.generation, ordered
        return ordered

    def mask(self, ids: Int64s) -> Bools:
        """Convert series numbers to a mask."""
        chosen = np.zeros(len(self.keys), np.bool_)
        chosen[ids] = True
        return chosen

    def newest(self, id: int) -> tuple[int, dict[str, Any]]:
        """Return time and fields of the newest point of a series."""
        fields = {
            name: newest.values.item(id)  # a fifth of what values[id].item() takes
            for name, newest in self.fields.items()
            if id < len(newest.valid) and newest.valid[id]
        }
        return self.times.item(id), fields

    def tags_of(self, id: int) -> dict[str, str]:
        """Return the tags of a series."""
        key = self.keys[id]
        tags = self._tags.get(id)
        if tags is None:
            tags = {} if key is None else series_tags(key)
            if len(self._tags) >= _TAGS_KEPT:
                self._tags.clear()
            self._tags[id] = tags
        return dict(tags)

    def group(self, ids: Int64s, by: Sequence[str]) -> tuple[Int64s, list[list[str | None]]]:
        """Group these series by the values of some tags; returns groups, and values by tag.

        Groups are ordered by their values; a missing tag sorts first.
        """
        codes: Int64s = np.zeros(len(ids), np.int64)
        columns: list[list[str | None]] = []
        for name in by:
            tag = self.tags.get(name)
            own = np.full(len(ids), -1, np.int64) if tag is None else tag.of(ids)
            there, places = np.unique(own, return_inverse=True)
            texts = [None if tag is None or code < 0 else tag.texts[code] for code in there]
            order = sorted(range(len(texts)), key=lambda place: texts[place] or "")
            rank = np.empty(len(texts), np.int64)
            rank[order] = np.arange(len(texts))
            combined = codes * len(texts) + rank[places]
            there, codes = np.unique(combined, return_inverse=True)
            inner = [texts[order[place]] for place in (there % len(texts)).tolist()]
            outer = (there // len(texts)).tolist()
            columns = [[column[place] for place in outer] for column in columns]
            columns.append(inner)
        return codes, columns


def typed(column: Column | None, type: FieldType) -> Column | None:
    """Convert a field of a record to its type in the series; None if the record lacks it.

    Values of a type that cannot be converted count as missing.
    """
    if column is None or column.type == type:
        return column
    if column.type == FieldType.INT and type == FieldType.FLOAT:
        return Column(type, column.values.astype(np.float64), column.valid)
    return None

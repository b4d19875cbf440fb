"""Sorting the entries of Flo's log into tables, topics, queues and series.

Versions of a key are the indexes of its puts, as Flo has them. Offsets are preserved, unless
several shards have entries of one name: these are renumbered by time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.interop.flo import format as flo
from stratalog.interop.flo.points import is_ours
from stratalog.interop.flo.state import TABLE, OurState, table_of
from stratalog.interop.model import SCHEMA, Foreign, ForeignTopic, Pending, Problem
from stratalog.model import Operation
from stratalog.state.table_projection import BYTES_TAG

SERIES = "series"
"""The name for points."""

_ROWS = 4096
_UNKNOWN_CHANGES = {flo.KV_BATCH: "kv_batch", flo.KV_ADD: "kv_incr", flo.KV_TOUCH: "kv_touch"}


class Entry(NamedTuple):
    """An entry of the log, with its command."""

    type: int
    flags: int
    index: int  # type: ignore[assignment]  # Flo's own term
    timestamp: int
    namespace: int
    key: bytes
    value: bytes


_Place = tuple[int, int]
"""Shard and index of an entry: each shard numbers its own."""


class _Row(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    priority: int | None = None
    operation: int = Operation.PUT
    tag: str | None = None
    expires_at: int | None = None
    shard: int = 0


class Collector:
    """Sorts entries by topic, queue, table or series."""

    def __init__(self, foreign: Foreign, name: str | None, state: OurState) -> None:
        self._foreign = foreign
        self._name = name
        self._state = state
        self._rows: dict[tuple[str, str], list[_Row]] = {}
        self._messages: dict[_Place, str] = {}
        self._done: dict[str, set[_Place]] = {}
        self._returns: dict[str, Counter[_Place]] = {}
        self._strange: Counter[int] = Counter()
        self._timed: Counter[str] = Counter()

    def _title(self, namespace: int, name: str) -> str:
        parts = [self._name, f"{namespace:08x}" if namespace else None, name]
        return ".".join(part for part in parts if part)

    def take(self, entry: Entry, shard: int) -> None:
        """Add one entry of a shard."""
        text = entry.key.decode("utf-8", "backslashreplace")
        place = entry.index, entry.timestamp
        if entry.type in (flo.KV_PUT, flo.KV_DELETE):
            self._change(entry, shard)
        elif entry.type == flo.STREAM_APPEND:
            self._add(
                "topic", self._title(entry.namespace, text), _Row(*place, None, entry.value), shard
            )
        elif entry.type == flo.QUEUE_PUT and len(entry.value) >= 4:
            title = self._title(entry.namespace, text)
            priority = min(int.from_bytes(entry.value[:4], "little"), 255)
            self._add("queue", title, _Row(*place, None, entry.value[4:], priority), shard)
            self._messages[shard, entry.index] = title
        elif entry.type in (flo.QUEUE_ACK, flo.QUEUE_NACK) and len(entry.key) == 8:
            self._end_message(entry.type, (shard, int.from_bytes(entry.key, "little")))
        elif entry.type in (flo.SERIES_WRITE, flo.SERIES_WRITE_MANY):
            title = self._title(entry.namespace, text if is_ours(entry.value) else SERIES)
            self._add("series", title, _Row(*place, entry.key, entry.value), shard)
        else:
            self._strange[entry.type] += 1

    def _change(self, entry: Entry, shard: int) -> None:
        """Add a put or a deletion of a key."""
        table, key = TABLE, entry.key
        if not entry.namespace:
            table, key = table_of(self._state.tables, key)
        title = self._title(entry.namespace, table)
        value: bytes | None = entry.value
        operation = Operation.PUT
        # The file was written by an export, which has one shard.
        expiry = None if shard else self._state.expires_at.get(entry.index)
        if entry.type == flo.KV_DELETE or entry.flags & flo.TOMBSTONE:
            value, operation, expiry = None, Operation.DELETE, None
        elif entry.flags & flo.TTL and expiry is None:
            self._timed[title] += 1
        row = _Row(entry.index, entry.timestamp, key, value, None, operation, _tag(key), expiry)
        self._add("table", title, row, shard)

    def _add(self, kind: str, title: str, row: _Row, shard: int) -> None:
        self._rows.setdefault((kind, title), []).append(row._replace(shard=shard))

    def _end_message(self, type: int, message: _Place) -> None:
        title = self._messages.get(message)
        if title is None:
            return
        if type == flo.QUEUE_ACK:
            self._done.setdefault(title, set()).add(message)
        else:
            self._returns.setdefault(title, Counter())[message] += 1

    def finish(self) -> None:
        """Build topics, queues and tables of what was collected."""
        self._report()
        for (kind, title), collected in self._rows.items():
            key = title if title not in self._foreign.contents else f"{title}.{kind}"
            rows, offsets = _numbered(collected)
            topic = ForeignTopic(
                key, kind, rows[0].offset, rows[-1].offset + 1,
                lambda rows=rows: _batches(rows),  # type: ignore[misc]
            )  # fmt: skip
            if kind == "queue":
                done = self._done.get(title, set())
                topic.cursor = topic.first
                topic.done = sorted(offsets[place] for place in done)
                returns = self._returns.get(title, Counter())
                topic.pending = sorted(
                    (
                        Pending(offsets[place], "", count)
                        for place, count in returns.items()
                        if place not in done
                    ),
                    key=lambda one: one.offset,
                )
            self._foreign.contents[key] = topic

    def _report(self) -> None:
        """Report entries that are not understood."""
        problems = self._foreign.problems
        for type, count in sorted(self._strange.items()):
            what = f"{count} entries of type {type:#04x} have no counterpart."
            lost = "them"
            if type in _UNKNOWN_CHANGES:
                what = f"{count} entries {_UNKNOWN_CHANGES[type]} are in an encoding not known."
                lost = "these changes: their keys have the value, or the time to live, of before"
            problems.append(Problem("", -1, what, lost))
        for title, count in self._timed.items():
            problems.append(
                Problem(
                    "", -1,
                    f"{count} puts of {title!r} have a time to live, and where Flo stores it is "
                    "not known: the values are as they are stored.",
                    "when these keys expire: they stay until they are deleted",
                )
            )  # fmt: skip


def _tag(key: bytes) -> str | None:
    """Return the tag of a table's record: it marks a key that is bytes, because it is no text."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return BYTES_TAG.decode()
    return None


def _numbered(rows: list[_Row]) -> tuple[list[_Row], dict[_Place, int]]:
    """Return rows with increasing offsets, and the offset of each by its place.

    Rows of several shards have separate indexes: they are renumbered by time.
    """
    places = [(row.shard, row.offset) for row in rows]
    if len({shard for shard, _ in places}) > 1:
        order = sorted(range(len(rows)), key=lambda at: (rows[at].timestamp, *places[at]))
        places = [places[at] for at in order]
        rows = [rows[at]._replace(offset=number) for number, at in enumerate(order, 1)]
    return rows, {place: row.offset for place, row in zip(places, rows, strict=True)}


def _batches(rows: list[_Row]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        count = len(some)
        stamps = np.array([row.timestamp for row in some], np.int64)
        expiries = pa.array([row.expires_at for row in some], pa.int64())
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([row.offset for row in some], pa.int64()),
                pa.array(stamps).cast(SCHEMA.field("timestamp").type),
                pa.array([row.key for row in some], pa.binary()),
                pa.array([row.value for row in some], pa.binary()),
                pa.nulls(count, SCHEMA.field("headers").type),
                pa.array([row.tag for row in some], pa.string()),
                pa.nulls(count, pa.string()),
                pa.array([row.priority for row in some], pa.uint8()),
                expiries.cast(SCHEMA.field("expires_at").type),
                pa.nulls(count, SCHEMA.field("not_before").type),
                pa.array([row.operation for row in some], pa.uint8()),
            ],
            schema=SCHEMA,
        )


__all__ = ["SERIES", "Collector", "Entry"]

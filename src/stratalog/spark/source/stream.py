"""Topics as a stream: records since the last micro-batch, from a view that is refreshed.

An offset, as Spark keeps it in the checkpoint, is the next offset of every topic:
`{"": {"ids": {"orders": 1}, "store": "5f..."}, "orders": 120}`. The empty name is not a topic: it
holds the identity of the store and the ids of the topics, so that a resumed query notices another
store in its place, or another topic of the same name.

Invariants:
- A micro-batch ends where the view ended: it never reads past what the writer has written.
- Nothing depends on `commit` or `stop`, which Spark may never call.

Concurrency: Spark calls a reader from one thread of one process on the driver; tasks are read
elsewhere, from the result of `partitions` alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from stratalog.errors import DataLossError, NotAStoreError, OptionError, UnknownTopicError
from stratalog.log.topic import TopicLog
from stratalog.spark.places import find
from stratalog.spark.ship import Shipped
from stratalog.spark.source.features import (
    HAS_LIMITS,
    ReadLimit,
    SupportsTriggerAvailableNow,
    default_limit,
    is_everything,
)
from stratalog.spark.source.limits import limited, limited_by_bytes
from stratalog.spark.source.plan import (
    Range,
    TaskPartition,
    check_floor,
    make_tasks,
    place,
    spans_of,
    view_of,
)
from stratalog.spark.source.read_options import LATEST, ReadOptions
from stratalog.spark.source.read_task import Task, read_task
from stratalog.state.identity import read_store_file
from stratalog.view import View

Offsets = dict[str, Any]
"""Offsets as Spark keeps them: see above."""

_ABOUT = ""
"""The key that is not a topic."""


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics, including later ones that match a pattern."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._view: View | None = None
        self._target: Offsets | None = None
        """Where to stop, if only what is available now is requested."""
        self._planned: Offsets | None = None
        """Where the newest micro-batch ends."""
        self._planned_at: float | None = None
        """When it was planned, by a clock that never goes back; None before the first."""

    # --- what Spark asks ------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Return where a new query begins."""
        view = self._refreshed()
        options = self._options
        names = options.topics.choose(view.catalog, may_miss=True)
        options.start.check(names)
        topics = [view.catalog.find(name) for name in names]
        starts = {
            topic.name: place(topic, options.start.of(topic.name), options, is_start=True)
            for topic in topics
        }
        return _offsets(view, topics, starts)

    def latestOffset(  # noqa: N802
        self, start: Offsets | None = None, limit: ReadLimit | None = None
    ) -> Offsets:
        """Return where the next micro-batch ends; Spark says where it begins from 4.2 on."""
        if start is None:
            self._check_unlimited()
            start = {}
        view = self._refreshed()
        self._check(view, start)
        topics = self._topics(view, start)
        if self._target is not None:
            # Topics that were created later are for the next query.
            topics = [one for one in topics if one.name in self._target or one.name in start]
        starts = {topic.name: _begin(topic, start) for topic in topics}
        ends = {topic.name: self._end(topic, starts[topic.name]) for topic in topics}
        if not is_everything(limit):
            if self._is_too_early(starts, ends):
                return start
            ends = self._limit(topics, starts, ends, limit)
        if ends != starts:
            self._planned_at = self._seconds()
        self._planned = _offsets(view, topics, ends)
        return self._planned

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch."""
        options = self._options
        return default_limit(
            options.max_offsets_per_trigger, options.max_bytes_per_trigger,
            options.min_offsets_per_trigger,
        )  # fmt: skip

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """Report the newest offsets and the lag of every topic, for the query's progress."""
        found = self._latest()
        if self._planned is not None:
            planned = self._planned
            found[_ABOUT]["lag"] = {
                name: end - planned[name] for name, end in found.items() if name in planned and name
            }
        return found

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave everything that is appended from now on to the next query."""
        self._target = self._latest()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        view = self._refreshed()
        self._check(view, start)
        self._check(view, end)
        ranges = []
        for topic in self._topics(view, end):
            if topic.name in end and _is_same(topic, end):
                first, last = _begin(topic, start), end[topic.name]
                last = self._there(topic, last)
                first = check_floor(topic, first, last, self._options)
                ranges.append(Range(topic, first, last))
        spans = [span for one in ranges for span in spans_of(one)]
        tasks = make_tasks(view, spans, self._options, time.time_ns(), is_pinned=False)
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the record batches of one task."""
        task: Task | None = partition.value
        return read_task(task, self._names)

    def commit(self, end: Offsets) -> None:
        """Do nothing: nothing is kept for a query."""

    def stop(self) -> None:
        """Close the view."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_view": None, "_target": None, "_planned": None}

    # --- how it is answered ---------------------------------------------------------------

    def _latest(self) -> Offsets:
        view = self._refreshed()
        topics = [view.catalog.find(name) for name in self._chosen(view)]
        return _offsets(view, topics, {topic.name: topic.committed for topic in topics})

    def _check_unlimited(self) -> None:
        options = self._options
        limits = {
            "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
            "maxBytesPerTrigger": options.max_bytes_per_trigger,
            "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        }
        asked = [name for name, value in limits.items() if value is not None]
        if asked and not HAS_LIMITS:
            raise OptionError(
                f"{asked[0]} needs PySpark 4.2 or newer: before, Spark asks no source for less "
                "than there is. Leave it out, or upgrade PySpark."
            )

    def _is_too_early(self, starts: dict[str, int], ends: dict[str, int]) -> bool:
        """Whether to wait for more, as `minOffsetsPerTrigger` says."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._planned_at is None or self._target is not None:
            return False
        if sum(ends.values()) - sum(starts.values()) >= least:
            return False
        return self._seconds() - self._planned_at < self._options.max_trigger_delay

    def _limit(
        self, topics: Sequence[TopicLog], starts: dict[str, int], ends: dict[str, int],
        limit: ReadLimit | None,
    ) -> dict[str, int]:  # fmt: skip
        """Ends that are no farther away than Spark and the options say."""
        most = getattr(limit, "max_rows", self._options.max_offsets_per_trigger)
        if most is not None:
            ends = limited(starts, ends, most)
        size = getattr(limit, "max_bytes", self._options.max_bytes_per_trigger)
        return ends if size is None else limited_by_bytes(topics, starts, ends, size)

    @staticmethod
    def _seconds() -> float:
        return time.monotonic()

    def _refreshed(self) -> View:
        """Return the store as it is now; raises if another store is in its place."""
        if self._view is None:
            self._view = view_of(self._options)
            return self._view
        fs, root = find(self._options.path)
        if read_store_file(fs, root).identity != self._view.store_file.identity:
            raise _replaced(root)
        self._view.refresh()
        return self._view

    def _check(self, view: View, offsets: Offsets) -> None:
        """Raise if the offsets belong to another store, or to other topics of the same names."""
        about = offsets.get(_ABOUT, {})
        if about.get("store", view.store_file.identity.hex()) != view.store_file.identity.hex():
            raise _replaced(self._options.path)
        if not self._options.fail_on_data_loss:
            return
        for name, id in about.get("ids", {}).items():
            topic = view.catalog.get(name)
            if topic is not None and topic.id != id:
                raise UnknownTopicError(
                    f"topic {name!r} was dropped and made again since this query began: its "
                    "offsets mean other records now. Start a new query, with a new checkpoint, or "
                    "read the new topic from its first record with option failOnDataLoss=false."
                )
            if topic is None:
                raise UnknownTopicError(
                    f"topic {name!r} was dropped while this query followed it. Start a new query "
                    "without it, or go on with the others with option failOnDataLoss=false."
                )

    def _topics(self, view: View, known: Offsets) -> list[TopicLog]:
        """Return the topics that the query follows: known ones, and those created since."""
        names = {name for name in known if name != _ABOUT}
        names |= set(self._chosen(view, frozenset(names)))
        found = (view.catalog.get(name) for name in sorted(names))
        return [topic for topic in found if topic is not None]

    def _chosen(self, view: View, known: frozenset[str] = frozenset()) -> list[str]:
        """Return the selected topics that exist; dropped ones raise, or are skipped if losses
        are allowed."""
        wanted = self._options.topics
        if not self._options.fail_on_data_loss:
            known |= {name for name in wanted.names if view.catalog.get(name) is None}
        return wanted.choose(view.catalog, may_miss=True, skip=known)

    def _end(self, topic: TopicLog, start: int) -> int:
        """Return how far a query reads in a topic: to its end, or to where it has to stop."""
        if start > topic.committed:
            return self._there(topic, start)
        end = topic.committed
        stop = self._options.end.of(topic.name)
        if stop.is_time or stop.number != LATEST:
            bound = (
                place(topic, stop, self._options, is_start=False) if stop.is_time else stop.number
            )
            end = min(end, bound)
        if self._target is not None:
            end = min(end, self._target.get(topic.name, start))
        return max(start, end)

    def _there(self, topic: TopicLog, end: int) -> int:
        """Return the end of a micro-batch that was planned before, as far as it still exists."""
        if end > topic.committed and self._options.fail_on_data_loss:
            raise DataLossError(
                f"topic {topic.name!r} ends at offset {topic.committed}, but this query has seen "
                f"{end}: the store was restored from an older copy, or lost what was not synced "
                "when its machine crashed. Start a new query, or go on from what there is with "
                "option failOnDataLoss=false."
            )
        return min(end, topic.committed)


def _offsets(view: View, topics: Sequence[TopicLog], positions: dict[str, int]) -> Offsets:
    about = {
        "ids": {topic.name: topic.id for topic in topics},
        "store": view.store_file.identity.hex(),
    }
    return {_ABOUT: about, **{name: positions[name] for name in sorted(positions)}}


def _begin(topic: TopicLog, start: Offsets) -> int:
    """Return where a micro-batch begins in a topic; one created since is read from its start."""
    return int(start.get(topic.name, topic.earliest)) if _is_same(topic, start) else topic.earliest


def _is_same(topic: TopicLog, offsets: Offsets) -> bool:
    """Return whether offsets belong to this topic, not to a dropped one of its name."""
    return bool(offsets.get(_ABOUT, {}).get("ids", {}).get(topic.name, topic.id) == topic.id)


def _replaced(path: str) -> NotAStoreError:
    return NotAStoreError(
        f"{path} is another store than the one that this query began to read: its offsets mean "
        "nothing there. Start a new query, with a new checkpoint."
    )

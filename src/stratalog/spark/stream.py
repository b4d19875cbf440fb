"""A topic as a stream: what came since the last micro-batch, from a view that is refreshed.

An offset, as Spark keeps it in the checkpoint, is the next offset of every topic:
`{"": {"ids": {"orders": 1}, "store": "5f..."}, "orders": 120}`. The empty name is no topic's: under
it are the identity of the store and the ids of the topics, so that a query that goes on notices
that there is another store in its place, or another topic of the same name.

Invariants:
- A micro-batch ends where the view ended: nothing is read that its writer has not written.
- Nothing depends on `commit` or `stop`, which Spark may never call.

Concurrency: Spark calls a reader from one thread of one process on the driver; the tasks are read
elsewhere, from what `partitions` says alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from stratalog.errors import DataLossError, NotAStoreError, UnknownTopicError
from stratalog.log.topic import TopicLog
from stratalog.projections.identity import read_store_file
from stratalog.spark.options import LATEST, ReadOptions
from stratalog.spark.pieces import Task, read_task
from stratalog.spark.places import find
from stratalog.spark.plan import (
    Range,
    TaskPartition,
    check_floor,
    make_tasks,
    place,
    spans_of,
    view_of,
)
from stratalog.spark.ship import Shipped
from stratalog.view import View

Offsets = dict[str, Any]
"""As Spark keeps them: see above."""

_ABOUT = ""
"""The key of what is not a topic."""


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics, those that come later too if there is a pattern for them."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._view: View | None = None
        self._target: Offsets | None = None
        """Where to stop, if somebody wants what is available now and no more."""

    # --- what Spark asks ------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where a new query begins."""
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

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Where the next micro-batch ends."""
        view = self._refreshed()
        self._check(view, start)
        topics = self._topics(view, start)
        if self._target is not None:
            # A topic that came later is for the next query.
            topics = [one for one in topics if one.name in self._target or one.name in start]
        starts = {topic.name: _begin(topic, start) for topic in topics}
        ends = {topic.name: self._end(topic, starts[topic.name]) for topic in topics}
        if isinstance(limit, ReadMaxRows):
            ends = _limited(starts, ends, limit.max_rows)
        return _offsets(view, topics, ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a micro-batch takes at most."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """What there is, for the query's progress."""
        view = self._refreshed()
        topics = [
            view.catalog.find(name)
            for name in self._options.topics.choose(view.catalog, may_miss=True)
        ]
        return _offsets(view, topics, {topic.name: topic.committed for topic in topics})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Whatever comes from now on is for the next query."""
        self._target = self.reportLatestOffset()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """What the tasks of a micro-batch are to read."""
        view = self._refreshed()
        self._check(view, start)
        self._check(view, end)
        ranges = []
        for topic in self._topics(view, end):
            if topic.name in end:
                first, last = _begin(topic, start), end[topic.name]
                last = self._there(topic, last)
                first = check_floor(topic, first, last, self._options)
                ranges.append(Range(topic, first, last))
        spans = [span for one in ranges for span in spans_of(one)]
        return [
            TaskPartition(task) for task in make_tasks(view, spans, self._options, time.time_ns())
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one task."""
        task: Task | None = partition.value
        return read_task(task, self._names)

    def commit(self, end: Offsets) -> None:
        """Nothing is kept for a query that it would have to give back."""

    def stop(self) -> None:
        """Let the view go."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_view": None, "_target": None}

    # --- how it is answered ---------------------------------------------------------------

    def _refreshed(self) -> View:
        """The store as it is now; raises if there is another one in its place."""
        if self._view is None:
            self._view = view_of(self._options)
            return self._view
        fs, root = find(self._options.path)
        if read_store_file(fs, root).identity != self._view.store_file.identity:
            raise _replaced(root)
        self._view.refresh()
        return self._view

    def _check(self, view: View, offsets: Offsets) -> None:
        """Raise if the offsets are of another store, or of other topics of the same names."""
        about = offsets.get(_ABOUT, {})
        if about.get("store", view.store_file.identity.hex()) != view.store_file.identity.hex():
            raise _replaced(self._options.path)
        for name, id in about.get("ids", {}).items():
            topic = view.catalog.get(name)
            if topic is not None and topic.id != id:
                raise UnknownTopicError(
                    f"topic {name!r} was dropped and made again since this query began: its "
                    "offsets mean other records now. Start a new query, with a new checkpoint."
                )
            if topic is None and self._options.fail_on_data_loss:
                raise UnknownTopicError(
                    f"topic {name!r} was dropped while this query followed it. Start a new query "
                    "without it, or go on with the others with option failOnDataLoss=false."
                )

    def _topics(self, view: View, known: Offsets) -> list[TopicLog]:
        """The topics that the query follows: those it knows, and those that came since."""
        names = {name for name in known if name != _ABOUT}
        names |= set(self._options.topics.choose(view.catalog, may_miss=True, skip=names))
        found = (view.catalog.get(name) for name in sorted(names))
        return [topic for topic in found if topic is not None]

    def _end(self, topic: TopicLog, start: int) -> int:
        """How far a query goes in a topic: to its end, or to where it was told to stop."""
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
        """The end of a micro-batch that was planned before, as far as it is still there."""
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
    """Where a micro-batch begins in a topic; one that came since is read as a whole."""
    return int(start.get(topic.name, topic.earliest))


def _limited(starts: dict[str, int], ends: dict[str, int], most: int) -> dict[str, int]:
    """Ends that are at most so many offsets away, every topic with its share.

    One that has little to give gets on too, beside one that always has more than the limit.
    """
    wanted = {name: end - starts[name] for name, end in ends.items() if end > starts[name]}
    total = sum(wanted.values())
    if total <= most:
        return ends
    turn = sum(starts.values()) % len(wanted)  # in turns, if there are more topics than offsets
    names = [*wanted][turn:] + [*wanted][:turn]
    taken = {name: int(number < most) for number, name in enumerate(names)}
    left = most - sum(taken.values())
    rest = max(1, total - sum(taken.values()))
    for name in names:
        taken[name] += left * (wanted[name] - taken[name]) // rest
    left = most - sum(taken.values())  # what rounding left
    for name in names:
        more = min(left, wanted[name] - taken[name])
        taken[name] += more
        left -= more
    return ends | {name: starts[name] + count for name, count in taken.items()}


def _replaced(path: str) -> NotAStoreError:
    return NotAStoreError(
        f"{path} is another store than the one that this query began to read: its offsets mean "
        "nothing there. Start a new query, with a new checkpoint."
    )

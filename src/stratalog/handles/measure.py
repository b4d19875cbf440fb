"""Metrics of a store: counters and gauges of numbers it has anyway, and histograms.

No append pays for counting. Commits are timed where they are written, and reads a batch at a time.
Of single appends, the fastest of all calls, only samples are timed: the sampler makes a topic's
next append take the general path, as a topic can at any time, and that append times itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratalog.metrics import Histogram, summarize
from stratalog.state.recovery import Replay

if TYPE_CHECKING:
    from stratalog.handles.topic import Topic
    from stratalog.log.log import Log
    from stratalog.log.topic import TopicLog
    from stratalog.reports import StoreStats
    from stratalog.upkeep.rounds import Upkeep

# Interval of the sampler: 20 timed appends a second for each topic, for so many topics.
_SAMPLE_SECONDS = 0.05
_SAMPLED_MAX = 16

# A topic without single appends is asked less and less often.
_BACKOFF_SECONDS_MAX = 60.0


class Sampler:
    """Has single appends timed, now and then.

    Concurrency: any thread of the store calls `tick`; if another thread is in it, the call returns.
    The sampler asks a handle, and the handle's next append answers.
    """

    def __init__(self, handles: Mapping[str, Topic]) -> None:
        self.appends = Histogram()
        self.gets = Histogram()
        self.bases: dict[int, int] = {}
        """Where topics ended when the store was opened; topics created since are not in it."""
        self.dropped_records = 0
        """Records appended to topics that were dropped since."""
        self._handles = handles
        self._next_at = 0.0
        self._lock = threading.Lock()
        self._backoff: dict[Topic, tuple[float, float]] = {}
        """For topics that did not answer: when to ask again, and how long to wait after that."""
        self._asked: list[Topic] = []

    def tick(self) -> None:
        """Ask topics to time their next append; called often, and cheap."""
        now = time.monotonic()
        if now < self._next_at or not self._lock.acquire(blocking=False):
            return
        try:
            self._ask(now)
        finally:
            self._lock.release()

    def _ask(self, now: float) -> None:
        self._next_at = now + _SAMPLE_SECONDS
        for topic in self._asked:
            if topic.stop_sample():  # no append came: let appends take the fast path again
                wait = min(2 * self._backoff.get(topic, (0.0, 0.5))[1], _BACKOFF_SECONDS_MAX)
                self._backoff[topic] = (now + wait, wait)
            else:
                self._backoff.pop(topic, None)
        asked: list[Topic] = []
        for topic in list(self._handles.values()):
            if len(asked) == _SAMPLED_MAX:
                break
            if self._backoff.get(topic, (0.0, 0.0))[0] <= now and topic.begin_sample(self.appends):
                asked.append(topic)
        self._asked = asked
        self.appends.fold_if_full()

    def appended(self, topic: TopicLog) -> int:
        """Count the records that a topic got since the store was opened."""
        return topic.committed - self.bases.get(topic.id, 0)

    def drop(self, topic: TopicLog) -> None:
        """Keep the count of a topic that is being dropped."""
        self.dropped_records += self.appended(topic)


def collect(
    stats: StoreStats, replay: Replay, log: Log | None, upkeep: Upkeep | None, sampler: Sampler
) -> dict[str, dict[str, Any]]:
    """Collect the current counters, gauges and histograms of a store."""
    shards = [] if log is None else log.shards
    routes = replay.routes.all()
    topics = list(replay.topics.values())
    pool = replay.pool
    counters = {
        "records_appended": sampler.dropped_records + sum(map(sampler.appended, topics)),
        "records_read": pool.records_read,
        "records_forwarded": sum(route.forwarded for route in routes),
        "schedules_fired": sum(schedule.fired for schedule in replay.schedules.all()),
        "commits": stats.commits,
        "committed_frames": stats.committed_frames,
        "log_bytes": sum(shard.files.bytes_written for shard in shards),
        "syncs": stats.syncs,
        "checkpoints": stats.checkpoints,
        "snapshots": stats.snapshots,
        "upkeep_failures": 0 if upkeep is None else upkeep.failures,
        "replayed_frames": stats.replayed_frames,
    }
    gauges: dict[str, Any] = {
        "topics": stats.topics,
        "records": stats.records,
        "bytes": stats.bytes,
        "shards": stats.shards,
        "log_bytes_unchecked": 0 if upkeep is None else upkeep.log_bytes(),
        "open_files": len(replay.files),
        "routes": stats.routes,
        "failed_routes": len(stats.failed_routes),
        "schedules": stats.schedules,
        "failed_schedules": len(stats.failed_schedules),
        "route_lag": sum(
            max(0, source.committed - route.cursor)
            for route in routes
            if route.body is not None
            and (source := replay.topics.get(route.body.source)) is not None
        ),
        **{f"memory_{share}_bytes": used for share, used in stats.memory.items()},
    }
    histograms = {
        "append": summarize([sampler.appends]),
        "commit": summarize(shard.files.times for shard in shards),
        "get": summarize([sampler.gets]),
        "checkpoint": summarize([] if upkeep is None else [upkeep.times]),
        "read": summarize([pool.times]),
    }
    return {"counters": counters, "gauges": gauges, "histograms": histograms}

"""All shards of a store together: replay on open, routing of topics, background flush.

Replay reads every shard that is there, whatever the number of shards now is: frames say which
topic they belong to, and a topic whose frames are in several shards is put in order by offset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from xxhash import xxh3_64_intdigest

from stratalog.clock import Clock
from stratalog.errors import ClosedError, DamagedError, StratalogError
from stratalog.format.control import TopicBody, encode_topic
from stratalog.format.frame import FrameType
from stratalog.format.names import shard_path
from stratalog.fs import FileSystem
from stratalog.log.files import LogFiles
from stratalog.log.group import Entry
from stratalog.log.replay import Replay
from stratalog.log.scan import TornTail
from stratalog.log.shard import Shard, again
from stratalog.log.ticker import Ticker
from stratalog.log.topic import TopicLog
from stratalog.options import StoreOptions

_T = TypeVar("_T")


class Log:
    """The writer's side of the log."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        options: StoreOptions,
        clock: Clock,
        *,
        background: bool = True,
    ) -> None:
        self._clock = clock
        self._options = options
        self._tick_lock = threading.Lock()
        self._synced_at = clock.monotonic()
        self.replay = Replay(fs, root)
        self.replay.advance()
        self.torn: list[TornTail] = []
        self.damage: DamagedError | None = self.replay.damage()
        self.shards: list[Shard] = []
        self._ticker = Ticker(
            self.tick, flush_interval=options.flush_interval, sync_interval=options.sync_interval
        )
        if self.damage is not None:
            return  # nothing on disk is touched: what repair has to judge stays as it is
        self._open_shards(fs, root)
        for topic in self.replay.topics.values():
            self.attach(topic)
        if background:
            self._ticker.start()

    def _open_shards(self, fs: FileSystem, root: str) -> None:
        scanners = self.replay.scanners
        self.torn = [torn for s in scanners.values() if (torn := s.torn_tail()) is not None]
        torn_paths = {torn.path for torn in self.torn}
        for number in sorted({*range(self._options.shards), *scanners}):
            scanner = scanners.get(number)
            first_lsn, position = (scanner.first_lsn, scanner.position) if scanner else (-1, 0)
            directory = shard_path(root, number)
            reader, wake = self.replay.reader, self._ticker.wake
            files = LogFiles(fs, reader, directory, self._options, first_lsn, position, wake)
            files.recover(files.file.path in torn_paths)
            if number < self._options.shards:
                self.shards.append(Shard(files, self._ticker.wake))
            else:
                files.close(trim=True)

    def attach(self, topic: TopicLog) -> None:
        """Give a topic its shard: by a stable hash of its id, so that a topic has one at a time."""
        digest = xxh3_64_intdigest(topic.id.to_bytes(8, "little"))
        topic.attach(self.shards[digest % len(self.shards)], self._clock.time_ns, self._options)

    def write_topic(self, topic: TopicLog) -> None:
        """Put a topic's options into the log, durably."""
        body = TopicBody(topic.name, topic.kind, topic.created_at, topic.options.to_dict())
        shard = topic.shard
        with shard.lock:
            shard.check()
            entry = Entry(
                FrameType.TOPIC, topic.id, encode_topic(body), base_offset=topic.version + 1
            )
            group = shard.enter(entry)
        shard.commit(group)
        topic.version += 1

    def tick(self) -> bool:
        """Write what waits, sync what is due; returns whether something is left for later."""
        with self._tick_lock:
            now = self._clock.monotonic()
            is_due = now - self._synced_at >= self._options.sync_interval
            is_left = False
            for shard in self.shards:
                is_left |= shard.tick(is_due=is_due)
            if is_due or not is_left:
                self._synced_at = now
            return is_left

    def sync(self) -> None:
        """Make everything accepted so far durable, in all shards; raises what went wrong."""
        self._each(Shard.sync, self.shards)

    def close(self, topics: Iterable[TopicLog]) -> None:
        """Write and sync everything, then stop; raises if something could not be kept."""
        self._ticker.stop()
        refusal = ClosedError("the store is closed: open it again with stratalog.open()")
        try:
            self._each(TopicLog.release_reserve, [t for t in topics if t.is_ephemeral])
            self.sync()
        finally:
            for shard in self.shards:
                shard.close(refusal)

    def _each(self, action: Callable[[_T], None], items: Iterable[_T]) -> None:
        """Do it to all of them, even if one fails; then raise the first failure."""
        failed: StratalogError | None = None
        for item in items:
            try:
                action(item)
            except StratalogError as error:
                failed = failed or error
        if failed is not None:
            raise again(failed)

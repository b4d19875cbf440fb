"""All shards of a store together: routing of topics, control frames, background flush.

Any number of shards opens any directory: frames say which topic they belong to, and a topic whose
frames are in several shards is put in order by offset.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from xxhash import xxh3_64_intdigest

from stratalog.clock import Clock
from stratalog.errors import ClosedError, StratalogError
from stratalog.format.control import TopicBody, encode_topic
from stratalog.format.frame import FrameType
from stratalog.format.names import log_file_path, shard_path
from stratalog.fs import FileSystem
from stratalog.log.crossing import Crossing
from stratalog.log.failures import again
from stratalog.log.files import LogFiles, complete_below
from stratalog.log.forked import forget
from stratalog.log.group import Entry, Group
from stratalog.log.memory import write_reserve
from stratalog.log.reader import LogReader
from stratalog.log.scan import ShardScanner, TornTail
from stratalog.log.shard import Shard
from stratalog.log.telling import Teller
from stratalog.log.ticker import Ticker
from stratalog.log.topic import TopicLog
from stratalog.memory import MemoryBudget
from stratalog.options import StoreOptions

_T = TypeVar("_T")

logger = logging.getLogger("stratalog")


class Control(NamedTuple):
    """A control frame of a topic, to be written."""

    topic: TopicLog
    type: int
    base_offset: int
    body: bytes
    on_commit: Callable[[], None] | None
    """Makes it state once it is durable; may be called again."""


class Log:
    """The writer's side of the log."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        options: StoreOptions,
        clock: Clock,
        reader: LogReader,
        scanners: Mapping[int, ShardScanner],
    ) -> None:
        self._fs = fs
        self._root = root
        self._clock = clock
        self._options = options
        self._tick_lock = threading.Lock()
        self._synced_at = clock.monotonic()
        self.budget = MemoryBudget(options.memory_bytes)
        self.is_closed = False
        self._refusal = ClosedError("the store is closed: open it again with stratalog.open()")
        self.torn: list[TornTail] = []
        self.shards: list[Shard] = []
        self.ended: dict[int, int] = {}
        """Where shards end that are no longer written, because there are fewer now."""
        self.on_tick: Callable[[], None] | None = None
        """Called by the ticker after each round."""
        self._ticker = Ticker(
            self.tick, root,
            flush_interval=options.flush_interval, sync_interval=options.sync_interval,
        )  # fmt: skip
        self._teller = Teller()
        self._open_shards(fs, root, reader, scanners)
        self.crossing = Crossing(self.shards)
        """The way in for frames of several topics."""

    def start(self) -> None:
        """Begin to write in the background what nobody waits for."""
        self._teller.start()
        self._ticker.start()

    def _open_shards(
        self, fs: FileSystem, root: str, reader: LogReader, scanners: Mapping[int, ShardScanner]
    ) -> None:
        tails = [tail for s in scanners.values() if (tail := s.torn_tail()) is not None]
        tail_paths = {tail.path for tail in tails}
        self.torn = [tail for tail in tails if not tail.is_past]
        for number in sorted({*range(self._options.shards), *scanners}):
            scanner = scanners.get(number)
            first_lsn, position = (scanner.first_lsn, scanner.position) if scanner else (-1, 0)
            directory = shard_path(root, number)
            wake = self._ticker.wake
            files = LogFiles(fs, reader, directory, self._options, first_lsn, position, wake)
            files.recover(files.file.path in tail_paths)
            if number < self._options.shards:
                self.shards.append(Shard(files, self._ticker.wake, self._teller.post))
            else:
                self.ended[number] = files.lsn
                files.close(trim=True)
        for torn in self.torn:
            logger.warning(
                "%s: cut %d unfinished bytes off at position %d: what a crash left of appends "
                "that were not yet durable", torn.path, torn.bytes, torn.position,
            )  # fmt: skip

    def attach(self, topic: TopicLog) -> None:
        """Give a topic its shard: by a stable hash of its id, so that a topic has one at a time."""
        digest = xxh3_64_intdigest(topic.id.to_bytes(8, "little"))
        shard = self.shards[digest % len(self.shards)]
        topic.attach(shard, self._clock.time_ns, self._options, self.budget)

    def write_topic(self, topic: TopicLog, add: Callable[[TopicLog], None]) -> None:
        """Put a topic's options into the log, durably, and add it to those that are known.

        In one with the commit: a snapshot at a position behind the frame must have the topic.
        """
        version = topic.version + 1

        def done() -> None:
            topic.version = version
            add(topic)

        self.write([Control(topic, FrameType.TOPIC, version, topic_body(topic), done)])

    def write_drop(
        self, topic: TopicLog, remove: Callable[[], None], is_removed: Callable[[], bool]
    ) -> None:
        """Drop a topic, durably, and remove it from those that are known.

        In one with the commit: no snapshot behind the frame may have the topic.
        """
        try:
            self.write([Control(topic, FrameType.DROP, 0, topic_body(topic), remove)])
        except BaseException:
            # Ctrl-C may leave the frame in the open group: what becomes of it comes first, or a
            # record would be acknowledged in a topic that is about to go.
            with contextlib.suppress(StratalogError):
                topic.shard.sync(tells_loss=False)
            topic.is_dropped = is_removed()
            raise

    def write(self, controls: Sequence[Control]) -> None:
        """Put control frames into the log, durably, and make them state, in log order."""
        groups: list[tuple[Shard, Group]] = []
        for control in controls:
            topic, shard = control.topic, control.topic.shard
            with shard.lock:
                if topic.is_dropped and control.type == FrameType.CHECKPOINT:
                    continue  # dropped meanwhile: nobody will ask
                topic.check(tells_loss=False)
                if control.type == FrameType.DROP:
                    topic.drop()
                entry = Entry(
                    control.type, topic.id, control.body, base_offset=control.base_offset,
                    on_commit=control.on_commit,
                )  # fmt: skip
                groups.append((shard, shard.enter(entry)))
        for shard, group in groups:
            shard.commit(group)

    def positions(self) -> dict[int, int]:
        """Per shard, the lsn below which everything is durable and can be read."""
        positions = dict(self.ended)
        with self.crossing.lock:  # what is behind a joint frame is not below them without it
            for number, shard in enumerate(self.shards):
                with shard.commit_lock:
                    positions[number] = shard.files.first_lsn + shard.files.synced
        return positions

    def freeze(self, look: Callable[[Shard], None]) -> dict[int, int]:
        """Sync, and say per shard where its log ends then; `look` is called at that very moment."""
        positions = dict(self.ended)

        def note(number: int, shard: Shard) -> None:
            positions[number] = shard.files.lsn
            look(shard)

        with self.crossing.lock:
            for number, shard in enumerate(self.shards):
                shard.sync(partial(note, number, shard), tells_loss=False)
        return positions

    def release(self, positions: Mapping[int, int]) -> int:
        """Give up log files that are not needed below these lsns; returns how many."""
        released = 0
        for number, shard in enumerate(self.shards):
            if number in positions:
                with shard.commit_lock:
                    released += len(shard.files.release(positions[number]))
        for number in self.ended.keys() & positions.keys():
            directory = shard_path(self._root, number)
            done = complete_below(self._fs, directory, positions[number])
            for first in done:
                self._fs.unlink(log_file_path(directory, first))
            if done:
                self._fs.sync_dir(directory)
            released += len(done)
        return released

    def rotate(self) -> None:
        """Go on in new files, so that all others can be given up."""
        for shard in self.shards:
            try:
                with shard.commit_lock:
                    if shard.files.position:
                        shard.rotate()
            finally:
                shard.tell()

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
        if self.on_tick is not None:
            self.on_tick()
        return is_left

    def sync(self, *, tells_loss: bool = True) -> None:
        """Make everything accepted so far durable, in all shards; raises what went wrong."""
        self._each(lambda shard: shard.sync(tells_loss=tells_loss), self.shards)

    def finish(self, topics: Iterable[TopicLog]) -> None:
        """Write and sync everything; raises if something could not be kept."""
        self._ticker.stop()
        # The next offset exactly, so that nothing is skipped.
        ephemeral = [topic for topic in topics if topic.is_ephemeral]
        self._each(partial(write_reserve, ahead=0), ephemeral)
        self.sync()

    def close(self) -> None:
        """Accept nothing more, write what was, and let the files go; may be repeated."""
        self.is_closed = True
        self._ticker.stop()
        for shard in self.shards:
            try:
                shard.close(self._refusal)
            except StratalogError as error:  # nobody waits for these; the directory is let go
                logger.error("%s: appends were lost while it was closed: %s", self._root, error)

    def forget(self, topics: Iterable[TopicLog], refusal: StratalogError) -> None:
        """Write nothing any more: this is a fork of the process whose log it is."""
        self.is_closed = True
        forget(self.shards, topics, refusal)

    def tell(self) -> None:
        """Return when all were called who look at futures that are done; no lock is held."""
        for shard in self.shards:
            shard.tell()
        if self.is_closed:
            self._teller.stop()
        else:
            self._teller.flush()

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


def topic_body(topic: TopicLog) -> bytes:
    """What a control frame says of a topic: its name, options and epoch."""
    return encode_topic(
        TopicBody(topic.name, topic.kind, topic.created_at, topic.options.to_dict(), topic.epoch)
    )

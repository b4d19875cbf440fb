"""All shards of a store: routing of topics, control frames, background flush.

Any number of shards opens any directory: frames name their topic, and a topic with frames in
several shards is sorted by offset.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from xxhash import xxh3_64_intdigest

from stratalog.clock import Clock
from stratalog.errors import ClosedError, FencedError, StratalogError
from stratalog.format.control import TopicBody, encode_topic
from stratalog.format.ends import End
from stratalog.format.frame import FrameType
from stratalog.format.names import log_file_path, parse_numbered, shard_path
from stratalog.fs import FileSystem
from stratalog.log.callbacks import Notifier
from stratalog.log.ceilings import Ceilings
from stratalog.log.commit_failures import again
from stratalog.log.commit_group import Entry, Group
from stratalog.log.cross_shard import CrossShard
from stratalog.log.ephemeral import write_reserve
from stratalog.log.files import LogFiles, complete_below
from stratalog.log.fork import forget
from stratalog.log.reader import LogReader
from stratalog.log.scan import ShardScanner, TornTail
from stratalog.log.shard import Shard
from stratalog.log.ticker import Ticker
from stratalog.log.topic import TopicLog
from stratalog.memory_budget import MemoryBudget
from stratalog.options import StoreOptions

_T = TypeVar("_T")

logger = logging.getLogger("stratalog.log")


class Control(NamedTuple):
    """A control frame of a topic, to be written."""

    topic: TopicLog
    type: int
    base_offset: int
    body: bytes
    on_commit: Callable[[], None] | None
    """Applies it to the state once it is durable; idempotent."""


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
        time_ns: Callable[[], int] | None = None,
        check_lock: Callable[[], None] = lambda: None,
        identity: bytes = bytes(16),
    ) -> None:
        self._fs = fs
        self._root = root
        self._clock = clock
        self._time_ns = clock.time_ns if time_ns is None else time_ns
        """The clock for the times of records."""
        self._options = options
        self._tick_lock = threading.Lock()
        self._synced_at = clock.monotonic()
        self._check_lock = check_lock
        self.budget = MemoryBudget(options.memory_bytes)
        self.is_closed = False
        self._refusal = ClosedError("the store is closed: open it again with stratalog.open()")
        self.torn: list[TornTail] = []
        self.shards: list[Shard] = []
        self.ended: dict[int, int] = {}
        """Ends of shards that are no longer written, because there are fewer now."""
        self._last: dict[int, End] = {}
        self.recycles = True
        """Whether released log files are recycled."""
        self.on_tick: Callable[[], None] | None = None
        """Called by the ticker after each round."""
        self._ticker = Ticker(
            self.tick, root,
            flush_interval=options.flush_interval, sync_interval=options.sync_interval,
        )  # fmt: skip
        self.ceilings = Ceilings(fs, root, identity)
        self._notifier = Notifier()
        self._open_shards(fs, root, reader, scanners)
        self.cross_shard = CrossShard(self.shards)
        """The writer of frames that span several topics."""

    def start(self) -> None:
        """Start writing in the background what no thread waits for."""
        self._notifier.start()
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
                self.shards.append(Shard(files, self._ticker.wake, self._notifier.post))
            else:
                self.ended[number] = files.lsn
                self._last[number] = End(files.first_lsn, files.lsn)
                files.close(trim=True)
        for torn in self.torn:
            logger.warning(
                "%s: cut %d unfinished bytes off at position %d: a crash left them of appends that "
                "were not yet durable", torn.path, torn.bytes, torn.position,
                extra={"file": torn.path, "position": torn.position, "bytes": torn.bytes},
            )  # fmt: skip

    def attach(self, topic: TopicLog) -> None:
        """Assign a topic to its shard, by a stable hash of its id, so that it has one at a time."""
        digest = xxh3_64_intdigest(topic.id.to_bytes(8, "little"))
        shard = self.shards[digest % len(self.shards)]
        topic.ceilings = self.ceilings
        topic.attach(shard, self._time_ns, self._clock.time_ns, self._options, self.budget)

    def write_topic(self, topic: TopicLog, add: Callable[[TopicLog], None]) -> None:
        """Write a topic's options to the log, durably, and register it.

        Atomic with the commit: a snapshot at a position after the frame must have the topic.
        """
        version = topic.version + 1

        def done() -> None:
            topic.version = version
            add(topic)

        self.write([Control(topic, FrameType.TOPIC, version, topic_body(topic), done)])

    def write_drop(
        self, topic: TopicLog, remove: Callable[[], None], is_removed: Callable[[], bool]
    ) -> None:
        """Drop a topic, durably, and unregister it.

        Atomic with the commit: no snapshot after the frame may have the topic.
        """
        try:
            self.write([Control(topic, FrameType.DROP, 0, topic_body(topic), remove)])
        except BaseException:
            # Ctrl-C may leave the frame in the open group: wait for its outcome first, or a record
            # would be acknowledged in a topic that is about to be dropped.
            with contextlib.suppress(StratalogError):
                topic.shard.sync(reports_loss=False)
            topic.is_dropped = is_removed()
            raise

    def write(self, controls: Sequence[Control]) -> None:
        """Write control frames to the log, durably, and apply them in log order."""
        groups: list[tuple[Shard, Group]] = []
        for control in controls:
            topic, shard = control.topic, control.topic.shard
            with shard.lock:
                if topic.is_dropped and control.type == FrameType.CHECKPOINT:
                    continue  # dropped meanwhile
                topic.check(reports_loss=False)
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
        """Return per shard the lsn below which everything is durable and readable."""
        positions = dict(self.ended)
        with self.cross_shard.lock:  # a position never splits a joint frame from what follows
            for number, shard in enumerate(self.shards):
                with shard.commit_lock:
                    positions[number] = shard.files.first_lsn + shard.files.synced
        return positions

    def ends(self) -> dict[int, End]:
        """Return per shard the newest log file and the lsn below which everything is durable."""
        ends = dict(self._last)
        for number, shard in enumerate(self.shards):
            with shard.commit_lock:
                files = shard.files
                ends[number] = End(files.first_lsn, files.first_lsn + files.synced)
        return ends

    def freeze(self, look: Callable[[Shard], None]) -> dict[int, int]:
        """Sync; returns per shard where its log ends then, and calls `look` at that very moment."""
        positions = dict(self.ended)

        def note(number: int, shard: Shard) -> None:
            positions[number] = shard.files.lsn
            look(shard)

        with self.cross_shard.lock:
            for number, shard in enumerate(self.shards):
                shard.sync(partial(note, number, shard), reports_loss=False)
        return positions

    def release(self, positions: Mapping[int, int]) -> int:
        """Release log files that are not needed below these lsns; returns how many."""
        released = 0
        for number, shard in enumerate(self.shards):
            if number in positions:
                with shard.commit_lock:
                    files = shard.files
                    released += len(files.release(positions[number], recycles=self.recycles))
        for number in self.ended.keys() & positions.keys():
            directory = shard_path(self._root, number)
            done = complete_below(self._fs, directory, positions[number])
            for first in done:
                self._fs.unlink(log_file_path(directory, first))
            if done:
                self._fs.sync_dir(directory)
            released += len(done)
        return released

    def remove_spares(self) -> int:
        """Remove released log files, which still hold old frames; returns how many.

        One thread at a time releases or removes. Commits continue, and create new files meanwhile.
        """
        removed = 0
        for number, shard in enumerate(self.shards):
            with shard.commit_lock:
                shard.files.disown_spares()
            directory = shard_path(self._root, number)
            # Looks at the directory: an earlier attempt may have been interrupted.
            for name in self._fs.listdir(directory):
                if parse_numbered(name, ".free") is not None:
                    self._fs.unlink(os.path.join(directory, name))
                    removed += 1
            self._fs.sync_dir(directory)
        return removed

    def rotate_all(self) -> None:
        """Continue in new files in every shard, including those that are no longer written."""
        self.rotate()
        for number, lsn in self.ended.items():
            directory = shard_path(self._root, number)
            with contextlib.suppress(FileExistsError):  # nothing was written since
                self._fs.open(log_file_path(directory, lsn), "create").close()
            self._fs.sync_dir(directory)

    def rotate(self) -> None:
        """Continue in new files, so that all others can be released."""
        for shard in self.shards:
            try:
                with shard.commit_lock:
                    if shard.files.position:
                        shard.rotate()
            finally:
                shard.notify()

    def tick(self) -> bool:
        """Write waiting appends, sync if due; returns whether something is left for later."""
        with self._tick_lock:
            now = self._clock.monotonic()
            is_due = now - self._synced_at >= self._options.sync_interval
            is_left = False
            for shard in self.shards:
                is_left |= shard.tick(is_due=is_due)
            if is_due or not is_left:
                self._synced_at = now
            self.ceilings.tend()
        if self.on_tick is not None:
            self.on_tick()
        return is_left

    def check_lock(self) -> None:
        """Raise `FencedError` if the directory was replaced, and accept nothing more then."""
        try:
            self._check_lock()
        except FencedError as error:
            for shard in self.shards:  # without its lock, which the caller may hold
                shard.refusal = shard.refusal or error
            raise

    def sync(self, *, reports_loss: bool = True) -> None:
        """Make everything accepted so far durable, in all shards; raises the first error."""
        self.check_lock()
        self._each(lambda shard: shard.sync(reports_loss=reports_loss), self.shards)

    def finish(self, topics: Iterable[TopicLog]) -> None:
        """Write and sync everything; raises if something could not be kept."""
        self._ticker.stop()
        # The next offset exactly, so that nothing is skipped.
        ephemeral = [topic for topic in topics if topic.is_ephemeral]
        self._each(partial(write_reserve, ahead=0), ephemeral)
        self.sync()

    def close(self) -> None:
        """Accept nothing more, write what was accepted, and close the files; idempotent."""
        self.is_closed = True
        self._ticker.stop()
        whole: set[Shard] = set()
        for shard in self.shards:
            is_well = shard.refusal in (None, self._refusal)
            try:
                shard.close(self._refusal)
                if is_well:
                    whole.add(shard)
            except StratalogError as error:  # no caller waits for these; the directory is released
                logger.error(
                    "%s: appends were lost while it was closed: %s",
                    self._root,
                    error,
                    extra={"store": self._root, "error": str(error)},
                )
        try:
            self.ceilings.finish(whole)
        except (StratalogError, OSError) as error:
            logger.warning(
                "%s: the next open leaves a gap: %s",
                self._root,
                error,
                extra={"store": self._root, "error": str(error)},
            )

    def forget(self, topics: Iterable[TopicLog], refusal: StratalogError) -> None:
        """Stop writing: this process is a fork of the one that owns the log."""
        self.is_closed = True
        self.ceilings.close()
        forget(self.shards, topics, refusal)

    def notify(self) -> None:
        """Return once the waiters of all futures that are done were called; no lock is held."""
        for shard in self.shards:
            shard.notify()
        if self.is_closed:
            self._notifier.stop()
        else:
            self._notifier.flush()

    def _each(self, action: Callable[[_T], None], items: Iterable[_T]) -> None:
        """Apply an action to every item, even if one fails; then raise the first failure."""
        failed: StratalogError | None = None
        for item in items:
            try:
                action(item)
            except StratalogError as error:
                failed = failed or error
        if failed is not None:
            raise again(failed)


def topic_body(topic: TopicLog) -> bytes:
    """Encode the control frame of a topic: its name, options and epoch."""
    return encode_topic(
        TopicBody(topic.name, topic.kind, topic.created_at, topic.options.to_dict(), topic.epoch)
    )

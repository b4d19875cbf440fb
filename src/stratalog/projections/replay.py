"""From a snapshot and the log behind it to topics: how frames become state when a store is opened.

`Replay` starts from the newest snapshot that can be read, and `advance` takes in whatever was not
seen yet: once for the writer that opens a directory, again and again for a reader beside a live
one. A reader whose log files were given up meanwhile starts again from the snapshot that made them
superfluous, in place: its topics stay the same objects.

Concurrency: one thread at a time calls `advance`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from stratalog.errors import CorruptionError, DamagedError, StorageError
from stratalog.format.control import TopicBody, decode_offsets
from stratalog.format.frame import HEADER_BYTES, FrameHeader, FrameType
from stratalog.format.manifest import Adoption, Placed, decode_adoption
from stratalog.format.multi import decode_multi
from stratalog.format.names import incoming_path, log_file_path, log_path, parse_shard, shard_path
from stratalog.format.segment import decode_summaries
from stratalog.format.snapshot import GroupSnapshot, Snapshot, TopicState
from stratalog.fs import FileSystem
from stratalog.log.index import FrameIndex
from stratalog.log.reader import LogReader
from stratalog.log.scan import Damage, ReleasedError, ShardScanner
from stratalog.log.topic import TopicLog
from stratalog.projections.groups import Groups
from stratalog.projections.lost import lost
from stratalog.projections.router import apply
from stratalog.projections.snapshot import SnapshotFiles
from stratalog.projections.writers import Writers
from stratalog.segments.exchange import exchange
from stratalog.segments.history import History
from stratalog.segments.pool import SegmentPool

# A reader that is overtaken this often in a row reads slower than the writer writes.
_RESTARTS_MAX = 8


class Replay:
    """What the snapshot and the log files say, so far."""

    def __init__(self, fs: FileSystem, root: str, identity: bytes) -> None:
        self._fs = fs
        self._root = root
        self._touched: set[TopicLog] = set()
        self._unordered: set[TopicLog] = set()
        self.reader = LogReader(fs)
        self.pool = SegmentPool(fs, root)
        self.snapshots = SnapshotFiles(fs, root, identity)
        self.snapshot: Snapshot | None = None
        self.scanners: dict[int, ShardScanner] = {}
        self.topics: dict[int, TopicLog] = {}
        self.epochs: dict[str, int] = {}
        """How many topics of a name were dropped, for names of which one was."""
        self.next_topic_id = 1
        self.dropped: set[int] = set()
        """Topics that are gone, and whose files may not be."""
        self.writers = Writers()
        self.replacements: list[Placed] = []
        """Segments that were adopted in the place of others, and may not be there yet."""
        self.finished: set[str] = set()
        """Names of staged segments that were adopted before: what is not ahead is not needed."""
        self.generation = 0
        """Changes whenever a topic comes or goes."""
        self.problems: dict[int, list[str]] = {}
        """What is wrong with a topic's segments, by topic; what is missing is not among it."""
        self.frames = 0
        self.refresh: Callable[[], None] | None = None
        """Has another process' changes taken in, where there is another process."""
        self._doubted: deque[TopicLog] = deque()
        """Topics whose files are not where they were: any thread adds, `advance` takes."""
        self._file = ("", -1)
        self._file_number = -1
        self._begin()

    # --- from the snapshot ----------------------------------------------------------------

    def _begin(self) -> None:
        """Start from the newest snapshot, or from nothing."""
        self.snapshot = self.snapshots.load()
        self.scanners = {}
        self.generation += 1
        for topic in self.topics.values():  # their frames come again
            topic.index = FrameIndex()
            topic.replayed = 0
        if self.snapshot is None:
            return
        catalog = self.snapshot.catalog
        self.next_topic_id = catalog.next_topic_id
        self.epochs = dict(catalog.epochs)
        self.dropped = set(catalog.dropped)
        self.pool.cold_location = catalog.cold
        self.writers.restore(catalog.writers, catalog.once)
        present = {state.id for state in catalog.topics}
        for id in self.topics.keys() - present:
            if id < catalog.next_topic_id:  # else it was made since
                self.drop(self.topics[id])
        for state in catalog.topics:
            self._restore(state)
            if state.id in self.dropped:  # it was, while an older release made the snapshot
                self.drop(self.topics[state.id])
        self._restore_groups(self.snapshot)

    def _restore(self, state: TopicState) -> None:
        topic = self._topic(state.id)
        body = TopicBody(state.name, state.kind, state.created_at, state.options, state.epoch)
        topic.version = state.version
        topic.define(body)
        # A view may be ahead of the snapshot it starts again from: what went does not come back.
        topic.earliest = max(topic.earliest, state.earliest)
        topic.reservation = max(topic.reservation, state.reservation)
        history = topic.history
        if state.evicted_below >= history.evicted_below:
            history.evicted_below = state.evicted_below
            history.evicted_reason = state.evicted_reason
        history.deleted = history.deleted | decode_offsets(state.deleted)
        history.lost = history.lost | decode_offsets(state.lost)
        history.restore(decode_summaries(state.segments), state.checkpointed)
        topic.resume(state.next_offset, state.last_timestamp)
        if history.lost:
            topic.resume(history.lost.max() + 1, 0)
        if topic.is_ephemeral:
            topic.earliest = topic.reserved = topic.next_offset
        self._touched.add(topic)

    def _restore_groups(self, snapshot: Snapshot) -> None:
        queues = {state.topic_id: state for state in snapshot.queues.queues}
        by_topic: dict[int, list[GroupSnapshot]] = {}
        for state in snapshot.groups.groups:
            by_topic.setdefault(state.topic_id, []).append(state)
        for id, states in by_topic.items():
            if id in self.topics:
                self.topics[id].groups.restore(states, queues.get(id))

    def _topic(self, id: int) -> TopicLog:
        topic = self.topics.get(id)
        if topic is None:
            topic = self.topics[id] = self._make(id)
            self.generation += 1
        return topic

    def _make(self, id: int) -> TopicLog:
        self.next_topic_id = max(self.next_topic_id, id + 1)
        topic = TopicLog(id, self.reader, History(self.pool, id))
        topic.groups = Groups(topic)
        topic.history.refresh = partial(self._look_again, topic)
        return topic

    def adopt(self, id: int) -> TopicLog:
        """A topic of which nothing is known but its id: for a repair that found its files."""
        topic = self._topic(id)
        topic.history.is_stale = True
        self._finish(topic)
        return topic

    def doubt(self) -> None:
        """Look at the files of topics with problems again, with the next `advance`."""
        self._doubted.extend(topic for topic in self.topics.values() if self._wrong(topic))

    def _look_again(self, topic: TopicLog) -> None:
        """A reader misses something: look at the topic's files, also if no frame speaks of it.

        One that was moved was still there, and preferred, when the frame that says so was read.
        """
        if self.refresh is not None:
            self._doubted.append(topic)
            self.refresh()

    def new_topic(self) -> TopicLog:
        """A topic with the next free id, which nobody knows yet."""
        return self._make(self.next_topic_id)

    # --- from the log ---------------------------------------------------------------------

    def advance(self) -> None:
        """Take in every frame that was not seen yet, and the segments they speak of."""
        self._follow()
        self._look()

    def listen(self) -> None:
        """Take in frames alone: what they say explains what was seen of files before."""
        for _ in range(_RESTARTS_MAX):
            begun = self.snapshot
            self._follow()
            if self.snapshot is begun:
                break
            self._look()  # it has begun again, and no file was seen since

    def _follow(self) -> None:
        """Take in every frame that was not seen yet, and put those of a topic in order."""
        for _ in range(_RESTARTS_MAX):
            try:
                self._scan()
                break
            except ReleasedError:
                self._begin()
        else:
            raise StorageError(
                f"{self._root}: the writer gives log files up faster than they can be read here: "
                "try again later, or give them more time with a larger log_file_bytes"
            )
        while self._unordered:
            topic = self._unordered.pop()
            topic.index = topic.index.sorted()

    def _look(self) -> None:
        """Take in the segments that frames spoke of, or that somebody misses."""
        while self._doubted:
            topic = self._doubted.popleft()
            if not topic.is_dropped:
                topic.history.is_stale = True
                self._touched.add(topic)
        for topic in self._touched:
            self._finish(topic)
        self._touched.clear()

    def _scan(self) -> None:
        starts = {} if self.snapshot is None else self.snapshot.log.shards
        found = {parse_shard(name) for name in self._fs.listdir(log_path(self._root))}
        # A shard that the snapshot knows must be there, or its log would begin again at 0.
        for number in sorted(number for number in found | set(starts) if number is not None):
            if number not in self.scanners:
                directory = shard_path(self._root, number)
                self.scanners[number] = ShardScanner(self._fs, directory, starts.get(number, 0))
        for scanner in self.scanners.values():
            scanner.advance(self._apply)
        # A file that was needed is given up, and filled with something else, only behind a
        # snapshot that was not there yet. Without one, what looks damaged is.
        if self.damages() and self.snapshots.has_newer():
            raise ReleasedError(self._root)

    def _apply(
        self, directory: str, first_lsn: int, position: int, header: FrameHeader, body: bytes
    ) -> None:
        self.frames += 1
        if header.type == FrameType.MULTI:
            self._apply_multi(directory, first_lsn, position, header, body)
        elif header.type != FrameType.SKIP:
            file = self._number(directory, first_lsn)
            self._apply_frame(file, position, header, body)

    def _apply_multi(
        self, directory: str, first_lsn: int, position: int, header: FrameHeader, body: bytes
    ) -> None:
        """Take in what is inside of a frame, once all of it is known to be right."""
        try:
            inner = decode_multi(header, body, first_lsn)
        except CorruptionError as error:
            path = log_file_path(directory, first_lsn)
            raise CorruptionError(f"{path} at position {position}: {error}") from error
        file = self.reader.number(directory, first_lsn, is_inner=True)
        position += HEADER_BYTES
        for at, one in inner:
            start = at + HEADER_BYTES
            self._apply_frame(file, position + at, one, body[start : start + one.body_length])

    def _apply_frame(self, file: int, position: int, header: FrameHeader, body: bytes) -> None:
        """Take in a frame of one topic; the body is needed of control frames only."""
        if header.topic_id in self.dropped:
            return
        if header.type == FrameType.ADOPT:
            self._replay_adoption(self.reader.path(file), position, body)
            return
        topic = self._topic(header.topic_id)
        self._touched.add(topic)
        if header.type == FrameType.RECORDS:
            end = header.base_offset + header.count
            if end <= topic.history.checkpointed:
                return  # a segment has them
            if header.base_offset < topic.replayed:
                self._unordered.add(topic)  # its frames are in several shards
            topic.replayed = end
            topic.index.add(
                header.base_offset, header.count, file, position,
                HEADER_BYTES + header.body_length, header.max_timestamp,
            )  # fmt: skip
            return
        try:
            apply(topic, header.type, header.base_offset, body)
        except CorruptionError as error:
            path = self.reader.path(file)
            raise CorruptionError(f"{path} at position {position}: {error}") from error
        if header.type == FrameType.TOPIC:
            self.generation += 1
        elif header.type == FrameType.DROP:
            self.drop(topic)

    def _replay_adoption(self, path: str, position: int, body: bytes) -> None:
        try:
            adoption = decode_adoption(body)
        except CorruptionError as error:
            raise CorruptionError(f"{path} at position {position}: {error}") from error
        for part in adoption.parts:
            if part.topic_id not in self.dropped:
                self._touched.add(self._topic(part.topic_id))
        self.take_in(adoption, publish=False)

    def take_in(self, adoption: Adoption, *, publish: bool) -> None:
        """Make what an `ADOPT` frame says state; may be repeated."""
        self.writers.note(adoption.writer, adoption.batch, once=adoption.once)
        for part in adoption.parts:
            placed = part.placed()
            topic = self.topics.get(part.topic_id)
            if not publish:
                self.finished.update(one.staged.name for one in placed)
            if topic is None:
                continue  # dropped since
            if part.kind == "replace":
                self.replacements += placed
                for one in placed:
                    topic.history.note_replaced(one)
            else:
                topic.history.note_adopted(map(self.pool.staged, placed))
                if publish and placed[-1].footer.end_offset > topic.committed:
                    topic.committed = placed[-1].footer.end_offset
                    topic.wake()

    def finish_replacements(self) -> None:
        """Put segments in the place of those that they replace; for the writer."""
        while self.replacements:
            one = self.replacements[0]
            topic = self.topics.get(one.footer.topic_id)
            if topic is not None:
                path = incoming_path(self._root, f"{one.staged.name}.seg")
                exchange(topic.history, path, one)
            del self.replacements[0]

    def drop(self, topic: TopicLog) -> None:
        """Forget a topic, but not that it was there."""
        self.finished |= topic.history.staged_names()
        topic.is_dropped = True
        topic.wake()
        self.topics.pop(topic.id, None)
        self._touched.discard(topic)
        self.epochs[topic.name] = max(self.epochs.get(topic.name, 0), topic.epoch + 1)
        self.dropped.add(topic.id)  # behind it: a snapshot that has this one has that one
        self.generation += 1

    def _number(self, directory: str, first_lsn: int) -> int:
        """The file's number; asked for every frame, and nearly always the one before."""
        if self._file != (directory, first_lsn):
            self._file = (directory, first_lsn)
            self._file_number = self.reader.number(directory, first_lsn)
        return self._file_number

    def _finish(self, topic: TopicLog) -> None:
        """Let readers see the frames of a topic, and its segments."""
        history = topic.history
        if history.is_stale:
            problems = history.discover(topic.earliest)
            self.problems[topic.id] = problems
            end = max(history.checkpointed, history.adopted_end)
            topic.resume(end, history.newest_timestamp())
        if not topic.is_ephemeral:
            topic.trim(history.checkpointed)
        if len(topic.index):
            newest = len(topic.index) - 1
            place = topic.index.place(newest)
            topic.resume(place.base_offset + place.count, topic.index.max_timestamp(newest))

    def clean_up(self) -> None:
        """Remove what a crash left unfinished; for the writer, once nothing is found damaged."""
        self.snapshots.clean()
        self.finish_replacements()
        for topic in self.topics.values():
            topic.history.clean_up(topic.earliest)

    # --- what is wrong --------------------------------------------------------------------

    def damages(self) -> list[Damage]:
        """Places in the log that were durable once and do not validate now."""
        return [damage for scanner in self.scanners.values() for damage in scanner.damages]

    def _wrong(self, topic: TopicLog) -> list[str]:
        """What is wrong with a topic's segments, and which are missing."""
        return self.problems.get(topic.id, []) + topic.history.holes(topic.earliest)

    def damage(self) -> DamagedError | None:
        """What a write to this directory must be answered with, if anything."""
        found = [str(damage) for damage in self.damages()]
        found += self.snapshots.problems()
        for topic in self.topics.values():
            found += self._wrong(topic)
            found += [
                f"topic {topic.name!r} lacks offsets {first} to {last}"
                for first, last in lost(topic)
            ]
            if topic.version < 0:
                found.append(f"topic {topic.id} lost its name")
        if not found:
            return None
        return DamagedError(
            f"the store {self._root} is damaged: {'; '.join(found)}. Nothing was changed, and "
            "everything else can be read, but nothing can be written: restore the damaged file "
            "from a copy, or run `stratalog repair`; with --dry-run it only says what it would do."
        )

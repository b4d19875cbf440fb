"""Recovery: from a snapshot and the log after it to the state of topics.

`Replay` starts from the newest readable snapshot, and `advance` applies every frame it has not
seen: once for the writer that opens a directory, repeatedly for a reader beside a live writer. A
reader whose log files were released meanwhile starts again, in place, from the snapshot that
replaced them: its topics stay the same objects.

Concurrency: one thread at a time calls `advance`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from stratalog.errors import CorruptionError, DamagedError, StorageError
from stratalog.format.control import TopicBody, decode_offsets
from stratalog.format.ends import End
from stratalog.format.frame import HEADER_BYTES, FrameHeader, FrameType
from stratalog.format.manifest import Adoption, Placed, decode_adoption
from stratalog.format.multi import decode_multi
from stratalog.format.names import (
    incoming_path,
    log_file_path,
    log_path,
    parse_shard,
    shard_number,
    shard_path,
    store_path,
)
from stratalog.format.segment import decode_summaries
from stratalog.format.snapshot import GroupSnapshot, Snapshot, TopicState
from stratalog.format.store import StoreFile
from stratalog.fs import FileSystem
from stratalog.fs.open_files import OpenFiles
from stratalog.log.ends import read_ends
from stratalog.log.index import FrameIndex
from stratalog.log.reader import LogReader
from stratalog.log.scan import Damage, ReleasedError, ShardScanner
from stratalog.log.topic import TopicLog
from stratalog.options import expanded_bytes_max as environment_expanded_bytes_max
from stratalog.segments.exchange import exchange
from stratalog.segments.pool import SegmentPool
from stratalog.segments.topic_segments import Flaw, History
from stratalog.state.group_state import Groups
from stratalog.state.missing_offsets import lost
from stratalog.state.owner import owner_of
from stratalog.state.router import apply, project
from stratalog.state.routes import ROUTE_FRAMES, Routes
from stratalog.state.schedules import SCHEDULE_FRAMES, Schedules
from stratalog.state.snapshot import SnapshotFiles
from stratalog.state.writers import Writers

logger = logging.getLogger("stratalog.recovery")

# A reader that is overtaken this often in a row reads slower than the writer writes.
_RESTARTS_MAX = 8


class Replay:
    """The state of the snapshot and the log files, as read so far."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        store_file: StoreFile,
        expanded_bytes_max: int | None = None,
    ) -> None:
        self._fs = fs
        self._root = root
        self.identity = store_file.identity
        self._touched: set[TopicLog] = set()
        self._unordered: set[TopicLog] = set()
        self.files = OpenFiles()
        self.reader = LogReader(fs, store_file.log_identity, self.files)
        self.pool = SegmentPool(fs, root, identity=store_file.identity, files=self.files)
        if expanded_bytes_max is None:  # for tools and jobs, which open no store
            expanded_bytes_max = environment_expanded_bytes_max()
        self.reader.expanded_bytes_max = self.pool.expanded_bytes_max = expanded_bytes_max
        self.snapshots = SnapshotFiles(fs, root, store_file.identity)
        self.snapshot: Snapshot | None = None
        self.scanners: dict[int, ShardScanner] = {}
        self.ends: dict[int, End] = {}
        """How far the log was durable, at least."""
        self.topics: dict[int, TopicLog] = {}
        self.epochs: dict[str, int] = {}
        """How many topics of a name were dropped, for names with a dropped topic."""
        self.next_topic_id = 1
        self.dropped: set[int] = set()
        """Dropped topics, whose files may still exist."""
        self.writers = Writers()
        self.routes = Routes()
        self.schedules = Schedules()
        self.replacements: list[Placed] = []
        """Segments that were adopted in place of others, and may not be in place yet."""
        self.finished: set[str] = set()
        """Names of staged segments that are already adopted; only those ahead are needed."""
        self.generation = 0
        """Changes whenever a topic is created or dropped."""
        self.problems: dict[int, list[Flaw]] = {}
        """Problems of a topic's segments, by topic, other than missing offsets."""
        self.frames = 0
        self.refresh: Callable[[], None] | None = None
        """Applies the changes of another process, where there is one."""
        self._doubted: deque[TopicLog] = deque()
        """Topics whose files were moved: any thread adds, `advance` removes."""
        self._file = ("", -1)
        self._file_number = -1
        self._is_owned = False
        """Whether the files were found to belong to this store; checked only if some do not."""
        self._begin()

    # --- from the snapshot ----------------------------------------------------------------

    def _begin(self) -> None:
        """Start from the newest snapshot, or from nothing."""
        self.snapshot = self.snapshots.load()
        if self.snapshots.problems():
            self._check_owner()
        self.scanners = {}
        self.generation += 1
        for topic in self.topics.values():  # their frames are read again
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
            if id < catalog.next_topic_id:  # otherwise it was created since
                self.drop(self.topics[id])
        for state in catalog.topics:
            self._restore(state, catalog.objects.get(state.id, {}))
            if state.id in self.dropped:  # dropped while an older release wrote the snapshot
                self.drop(self.topics[state.id])
        for id, offsets in catalog.crashed.items():
            if id in self.topics:
                history = self.topics[id].history
                history.crashed = history.crashed | decode_offsets(offsets)
        self._restore_groups(self.snapshot)
        self._restore_projections(self.snapshot)
        self.routes.restore(self.snapshot.routes)
        self.schedules.restore(self.snapshot.schedules)
        for lake in self.snapshot.lakes.lakes:
            if lake.topic_id in self.topics:
                history = self.topics[lake.topic_id].history
                history.lake_floor = max(history.lake_floor, lake.floor)
                history.note_lake(lake.body)

    def _restore(self, state: TopicState, objects: dict[int, str]) -> None:
        topic = self._topic(state.id)
        body = TopicBody(state.name, state.kind, state.created_at, state.options, state.epoch)
        topic.version = state.version
        topic.define(body)
        project(topic)
        # A view may be ahead of the snapshot it starts again from: evicted records stay evicted.
        topic.earliest = max(topic.earliest, state.earliest)
        topic.reservation = max(topic.reservation, state.reservation)
        history = topic.history
        if state.evicted_below >= history.evicted_below:
            history.evicted_below = state.evicted_below
            history.evicted_reason = state.evicted_reason
        history.deleted = history.deleted | decode_offsets(state.deleted)
        history.lost = history.lost | decode_offsets(state.lost)
        history.restore(decode_summaries(state.segments), state.checkpointed, objects)
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

    def _restore_projections(self, snapshot: Snapshot) -> None:
        """Start projections from the snapshot, unless they are ahead of it."""
        for state in snapshot.projections.projections:
            topic = self.topics.get(state.topic_id)
            projection = None if topic is None else topic.projection
            if topic is None or projection is None or projection.applied >= state.applied:
                continue
            try:
                projection.restore(state.applied, state.data)
            except CorruptionError as error:  # its records hold everything
                projection.reset()
                logger.warning(
                    "%s: %r is made again: %s",
                    self._root,
                    topic.name,
                    error,
                    extra={"store": self._root, "topic": topic.name, "error": str(error)},
                )

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
        """Create a topic known only by its id, for a repair that found its files."""
        topic = self._topic(id)
        topic.history.is_stale = True
        self._finish(topic)
        return topic

    def doubt(self) -> None:
        """Check the files of topics with problems again, with the next `advance`."""
        self._doubted.extend(topic for topic in self.topics.values() if self._wrong(topic))

    def _look_again(self, topic: TopicLog) -> None:
        """Check the topic's files because a reader misses one, even if no frame mentions it.

        A moved file was still in its old place, and preferred, when the frame of its move was read.
        """
        if self.refresh is not None:
            self._doubted.append(topic)
            self.refresh()

    def new_topic(self) -> TopicLog:
        """Create a topic with the next free id, not registered yet."""
        return self._make(self.next_topic_id)

    # --- from the log ---------------------------------------------------------------------

    def advance(self) -> None:
        """Apply every new frame, and the segments they refer to."""
        self._follow()
        self._look()

    def listen(self) -> None:
        """Apply new frames alone: they explain what was seen of files before."""
        for _ in range(_RESTARTS_MAX):
            begun = self.snapshot
            self._follow()
            if self.snapshot is begun:
                break
            self._look()  # recovery has started again, and no file was checked since

    def publish(self) -> None:
        """Make the frames readable that `listen` applied, without checking files again."""
        for topic in self._touched:
            _show(topic)

    def _follow(self) -> None:
        """Apply every new frame, and sort the frames of each topic."""
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
        """Take in the segments that frames refer to, or that a reader misses."""
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
        if not self.scanners:
            self.ends = read_ends(self._fs, self._root, self.snapshots.identity)
        found = {parse_shard(name) for name in self._fs.listdir(log_path(self._root))}
        # A shard in the snapshot must exist, or its log would begin again at 0.
        known = found | set(starts) | set(self.ends)
        for number in sorted(number for number in known if number is not None):
            if number not in self.scanners:
                directory = shard_path(self._root, number)
                self.scanners[number] = ShardScanner(
                    self._fs, directory, starts.get(number, 0), self.reader.identity
                )
                if number in self.ends:
                    self.scanners[number].end_lsn = self.ends[number].end_lsn
        for scanner in self.scanners.values():
            scanner.advance(self._apply)
        # A needed file is released, and recycled, only after a newer snapshot exists. If there is
        # none, what looks damaged is damaged.
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
        """Apply the frames inside of a frame, once all of it is verified."""
        try:
            inner = decode_multi(header, body, self.scanners[shard_number(directory)].seed)
        except CorruptionError as error:
            path = log_file_path(directory, first_lsn)
            raise CorruptionError(f"{path} at position {position}: {error}") from error
        file = self.reader.number(directory, first_lsn, is_inner=True)
        position += HEADER_BYTES
        for at, one in inner:
            start = at + HEADER_BYTES
            self._apply_frame(file, position + at, one, body[start : start + one.body_length])

    def _apply_frame(self, file: int, position: int, header: FrameHeader, body: bytes) -> None:
        """Apply a frame of one topic; only control frames need the body."""
        if header.topic_id in self.dropped:
            return
        if header.type == FrameType.ADOPT:
            self._replay_adoption(self.reader.path(file), position, body)
            return
        if header.type in ROUTE_FRAMES or header.type in SCHEDULE_FRAMES:
            state = self.routes if header.type in ROUTE_FRAMES else self.schedules
            try:
                state.apply(header.type, header.base_offset, body)
            except CorruptionError as error:
                path = self.reader.path(file)
                raise CorruptionError(f"{path} at position {position}: {error}") from error
            return
        topic = self._topic(header.topic_id)
        self._touched.add(topic)
        if header.type == FrameType.RECORDS:
            end = header.base_offset + header.count
            if end <= topic.history.checkpointed:
                return  # a segment has these records
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
        """Apply an `ADOPT` frame to the state; idempotent."""
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
        """Put segments in place of those that they replace; for the writer."""
        while self.replacements:
            one = self.replacements[0]
            topic = self.topics.get(one.footer.topic_id)
            if topic is not None:
                path = incoming_path(self._root, f"{one.staged.name}.seg")
                exchange(topic.history, path, one)
            del self.replacements[0]

    def drop(self, topic: TopicLog) -> None:
        """Drop a topic, but remember that it existed."""
        self.finished |= topic.history.staged_names()
        topic.is_dropped = True
        if topic.projection is not None:
            topic.projection.drop()
        topic.wake()
        self.topics.pop(topic.id, None)
        self._touched.discard(topic)
        self.epochs[topic.name] = max(self.epochs.get(topic.name, 0), topic.epoch + 1)
        self.dropped.add(topic.id)  # after the epoch: a snapshot that has the one has the other
        self.generation += 1

    def _number(self, directory: str, first_lsn: int) -> int:
        """Return the file's number, cached: it is needed for every frame, and rarely changes."""
        if self._file != (directory, first_lsn):
            self._file = (directory, first_lsn)
            self._file_number = self.reader.number(directory, first_lsn)
        return self._file_number

    def _finish(self, topic: TopicLog) -> None:
        """Make the frames and segments of a topic readable."""
        history = topic.history
        if history.is_stale:
            problems = history.discover(topic.earliest)
            self.problems[topic.id] = problems
            end = max(history.checkpointed, history.adopted_end)
            topic.resume(end, history.newest_timestamp())
        if not topic.is_ephemeral:
            topic.trim(history.checkpointed)
        _show(topic)

    def clean_up(self) -> None:
        """Remove unfinished files after a crash; for the writer, if nothing is damaged."""
        self.snapshots.clean()
        for topic in self.topics.values():
            topic.history.prefer_hot(topic.earliest)
        self.finish_replacements()
        for topic in self.topics.values():
            topic.history.clean_up(topic.earliest)

    # --- what is wrong --------------------------------------------------------------------

    def damages(self) -> list[Damage]:
        """List places in the log that were durable once and are not valid now."""
        return [damage for scanner in self.scanners.values() for damage in scanner.damages]

    def _check_owner(self) -> None:
        """Raise if the store file belongs to another store, as which nothing must be read."""
        if not self._is_owned:
            self._is_owned = owner_of(self._fs, self._root, self.identity) == self.identity
        if not self._is_owned:
            raise CorruptionError(
                f"{store_path(self._root)} is the store file of another store: most other files "
                "here are not of that one. Nothing was changed, and nothing is read. Restore the "
                "file from a copy, or run `stratalog repair`."
            )

    def _wrong(self, topic: TopicLog) -> list[str]:
        """List the problems of a topic's segments, and the missing ones."""
        flaws = [str(flaw) for flaw in self.problems.get(topic.id, [])]
        return flaws + topic.history.holes(topic.earliest)

    def damage(self) -> DamagedError | None:
        """Return the error for every write to this directory, if it is damaged."""
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
        self._check_owner()
        return DamagedError(
            f"the store {self._root} is damaged: {'; '.join(found)}. Nothing was changed, and "
            "everything else can be read, but nothing can be written: restore the damaged file "
            "from a copy, or run `stratalog repair`; with --dry-run it only says what it would do."
        )


def _show(topic: TopicLog) -> None:
    """Make the frames of a topic readable."""
    if len(topic.index):
        newest = len(topic.index) - 1
        place = topic.index.place(newest)
        topic.resume(place.base_offset + place.count, topic.index.max_timestamp(newest))

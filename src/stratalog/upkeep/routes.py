"""Forward records from topics to topics, each once, in a thread of its own.

A route reads its source from its cursor on, and commits the records that match and the cursor that
is past them in one frame of the destination's shard: after a crash both are there or neither. Only
synced records are forwarded, so that no destination has a record that its source could still lose.
Nothing here is on the way of an append: a source is not told that it has routes, except that a
forwarder with nothing to do has itself woken by the next commit.

What cannot be forwarded, because a topic was dropped or a disk is full, is that route's failure:
`problem` says it, it is tried again, and the other routes go on.

Concurrency: `_lock` is held while a route moves or changes, so that nothing is forwarded once
`pause` or `drop` has returned. No lock of the upkeep is ever taken. Locks of shards are taken
inside it. Crash: the cursor is where the records of the destination end. Records that were read and
did not match may be read again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from stratalog.clock import Clock
from stratalog.errors import ClosedError, StratalogError
from stratalog.format.frame import HEADER_BYTES, FrameType
from stratalog.format.merge import Part, renumber
from stratalog.format.routes import FORWARD_BYTES, RouteBody, encode_forward, encode_route
from stratalog.log.commit_group import Entry
from stratalog.log.interrupts import Background, Signal
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.segments.choose import Choice, choose
from stratalog.segments.read import read_living
from stratalog.segments.segment import Slice
from stratalog.state.recovery import Replay
from stratalog.state.routes import RouteState
from stratalog.upkeep.store_frames import Apply, commit_noted, note, write_definition

logger = logging.getLogger("stratalog.routes")

# A frame of this many bytes of records: 1 MiB takes about 2 ms, and an append that wants the
# interpreter meanwhile waits no longer than that.
_CHUNK_BYTES = 1 << 20

# So many frames of one route, then it is the next one's turn.
_TURN_CHUNKS = 16

# Between rounds and, beside other commits, between frames: appends go first.
_REST_SECONDS = 0.005

# How often to check whether what was written is synced.
_LOOK_SECONDS = 0.02

# What failed is not tried again sooner.
_RETRY_SECONDS = 1.0

# A cursor over records that do not match is written after so many of them, or so many seconds.
_NOTE_RECORDS = 1 << 16
_NOTE_SECONDS = 1.0

# How often `wait` looks.
_POLL_SECONDS = 0.002


class _HeldError(Exception):
    """The route was paused or dropped meanwhile."""


class _Mark(NamedTuple):
    """Records below an offset are synced once the log is, up to an lsn."""

    offset: int
    lsn: int


class _Source:
    """How far the records of a topic are durable."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self.end = 0
        """The first offset that is not known to be durable."""
        self.is_behind = False
        """Whether records are readable that are not synced yet."""

    def look(self, topic: TopicLog) -> None:
        """See what was synced since."""
        shard, marks = topic.shard, self._marks
        with shard.commit_lock:
            committed, files = topic.committed, shard.files
            written, synced = files.lsn, files.first_lsn + files.synced
        if written == synced:
            marks.clear()
            self.end = committed
        while marks and marks[0].lsn <= synced:
            self.end = max(self.end, marks.popleft().offset)
        if committed > max(self.end, marks[-1].offset if marks else 0):
            marks.append(_Mark(committed, written))
        self.is_behind = self.end < committed


class _Scan:
    """How far a route has read, beyond its cursor: no record in between matched."""

    def __init__(self, position: int, noted_at: float) -> None:
        self.position = position
        self.missed = 0
        self.noted_at = noted_at


class _Waker:
    """Stands in a topic's list of waiters."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal

    def locked(self) -> bool:
        """Whether it is still held."""
        return True

    def release(self) -> None:
        """Wake the forwarder."""
        self._signal.give()


class Forwarder:
    """The routes of one store."""

    def __init__(self, log: Log, replay: Replay, clock: Clock) -> None:
        self._log = log
        self._replay = replay
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = Signal()
        self._waker = _Waker(self._wake)
        self._thread: Background | None = None
        self._is_background = False
        self._is_stopped = False
        self._next_id = 0
        self._sources: dict[int, _Source] = {}
        self._scans: dict[int, _Scan] = {}
        self._failures: dict[int, tuple[str, float]] = {}
        """The failure of each route, and when it happened."""
        self._commits = 0

    # --- in the background ----------------------------------------------------------------

    def start(self) -> None:
        """Begin, in a thread once there is a route."""
        self._is_background = True
        if self._replay.routes.all():
            with self._lock:
                self._run_thread()

    def _run_thread(self) -> None:
        if self._is_background and self._thread is None and not self._is_stopped:
            self._thread = Background(self._run, "stratalog-routes")
            self._thread.start()

    def stop(self) -> None:
        """End the thread, once its frame is committed; may be repeated."""
        self._is_stopped = True
        self._wake.give()
        if self._thread is not None:
            self._thread.wait()

    def _run(self) -> None:
        while not self._is_stopped:
            if self._round():
                self._wake.take(_REST_SECONDS)
            else:
                self._wait()

    def _wait(self) -> None:
        """Return when there may be something to do."""
        routes = [route for route in self._running() if route.id not in self._failures]
        topics = [topic for route in routes if (topic := self._source(route)) is not None]
        if any(self._synced(topic).is_behind for topic in topics):
            self._wake.take(_LOOK_SECONDS)  # not woken by commits: the next sync is what counts
            return
        is_noted = all(self.position(route) == route.cursor for route in routes)
        timeout = _RETRY_SECONDS if self._failures else -1.0 if is_noted else _NOTE_SECONDS
        for topic in topics:
            topic.add_waiter(self._waker)
        try:
            # Looked at after that: whatever is committed from now on wakes this thread.
            if not self._has_news(routes):
                self._wake.take(timeout)
        finally:
            for topic in topics:
                topic.remove_waiter(self._waker)

    def _has_news(self, routes: list[RouteState]) -> bool:
        """Whether one of these routes can go on at once."""
        for route in routes:
            topic = self._source(route)
            if topic is not None and topic.committed > self.position(route):
                return True
        return False

    def _synced(self, topic: TopicLog) -> _Source:
        """How far a source is durable, as of now."""
        source = self._sources.setdefault(topic.id, _Source())
        source.look(topic)
        return source

    def _round(self, *, notes: bool = False) -> bool:
        """Give every route a turn; returns whether one has forwarded something."""
        has_moved = False
        running = self._running()
        kept = {route.id for route in running}
        self._failures = {id: why for id, why in self._failures.items() if id in kept}
        for route in running:
            failed = self._failures.get(route.id)
            if failed is not None and time.monotonic() - failed[1] < _RETRY_SECONDS and not notes:
                continue
            try:
                has_moved |= self._turn(route, notes=notes)
                self._failures.pop(route.id, None)
            except _HeldError:
                pass
            # Whatever it is: a thread that ends in silence would leave all routes where they are.
            except Exception as error:
                if not self._is_stopped:
                    self._fail(route, error)
        return has_moved

    def _fail(self, route: RouteState, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if self._failures.get(route.id, ("",))[0] != text and self.problem(route) is None:
            body = route.body
            assert body is not None
            is_known = isinstance(error, StratalogError | OSError)
            logger.warning(
                "%s: the route from %r to %r failed, and will be tried again: %s",
                self._replay.pool.root, body.source_name, body.destination_name, text,
                exc_info=not is_known, extra={
                    "store": self._replay.pool.root, "source": body.source_name,
                    "destination": body.destination_name, "error": text,
                },
            )  # fmt: skip
        self._failures[route.id] = (text, time.monotonic())

    # --- what routes there are ------------------------------------------------------------

    def _running(self) -> list[RouteState]:
        """Routes that are neither paused nor lack a topic."""
        return [
            route
            for route in self._replay.routes.all()
            if route.body is not None and not route.body.is_paused and self._missing(route) is None
        ]

    def _source(self, route: RouteState) -> TopicLog | None:
        assert route.body is not None
        return self._replay.topics.get(route.body.source)

    def _missing(self, route: RouteState) -> str | None:
        return missing(self._replay, route)

    def problem(self, route: RouteState) -> str | None:
        """Say why a route does not forward, if it does not."""
        failed = self._failures.get(route.id)
        return self._missing(route) or (None if failed is None else failed[0])

    def position(self, route: RouteState) -> int:
        """The first offset of the source that a route has not dealt with."""
        scan = self._scans.get(route.id)
        return route.cursor if scan is None else max(route.cursor, scan.position)

    def create(self, body: RouteBody) -> RouteState:
        """Make a route, durably; the id of `body` does not count."""
        with self._lock:
            # Never one that may be on its way into the log since Ctrl-C came.
            self._next_id = id = max(self._next_id + 1, self._replay.routes.next_id)
            self._run_thread()
            self._write(0, msgspec.structs.replace(body, id=id))
        self._wake.give()
        route = self._replay.routes.get(id)
        assert route is not None
        return route

    def change(
        self, route: RouteState, *, is_paused: bool = False, is_dropped: bool = False
    ) -> None:
        """Pause, resume or drop a route, durably; nothing is forwarded after that."""
        with self._lock:
            body = route.body
            assert body is not None
            if self._replay.routes.get(route.id) is not route:
                return  # dropped already
            if body.is_paused != is_paused or is_dropped:
                changed = msgspec.structs.replace(body, is_paused=is_paused, is_dropped=is_dropped)
                self._write(route.version + 1, changed)
            self._failures.pop(route.id, None)
            if is_dropped:
                self._scans.pop(route.id, None)
        self._wake.give()

    def _write(self, version: int, body: RouteBody) -> None:
        """Put a `ROUTE` frame into the log, durably, and make it state."""
        entry = note(FrameType.ROUTE, version, encode_route(body), self._replay.routes.apply)
        write_definition(self._log, entry)

    # --- forwarding -----------------------------------------------------------------------

    def run(self) -> None:
        """Forward all that is synced now, without the thread; cursors are written in any case."""
        while self._round(notes=True) and not self._is_stopped:
            pass

    def wait(self, route: RouteState, offset: int, timeout: float | None) -> bool:
        """Block until a route has dealt with records below an offset; False if the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.position(route) < offset:
            if self._is_stopped:
                raise ClosedError(
                    f"{self._replay.pool.root} was closed while a route was waited for."
                )
            if self._missing(route) is not None or self._replay.routes.get(route.id) is not route:
                return False
            if not self._is_background:
                self.run()
            if deadline is not None and time.monotonic() >= deadline:
                return self.position(route) >= offset
            time.sleep(_POLL_SECONDS)
        return True

    def _turn(self, route: RouteState, *, notes: bool) -> bool:
        """Forward what a route can, up to a bound; returns whether something was forwarded."""
        body = route.body
        assert body is not None
        topics = self._replay.topics
        source, destination = topics[body.source], topics[body.destination]
        end = self._synced(source).end
        scan = self._scans.setdefault(route.id, _Scan(route.cursor, time.monotonic()))
        start = scan.position = max(route.cursor, scan.position)
        has_moved = False
        moves = _Move(self, route, destination, route.version)
        try:
            for number, chunk in enumerate(
                _chunks(source, body, start, end, self._clock.time_ns())
            ):
                scan.missed += chunk.missed
                if chunk.parts:
                    with self._lock:
                        moves.commit(chunk.parts, chunk.position, scan.missed)
                    scan.missed, scan.noted_at, has_moved = 0, time.monotonic(), True
                scan.position = chunk.position
                if self._is_stopped or number + 1 == _TURN_CHUNKS:
                    break
                self._rest()
        except BaseException:
            scan.position, scan.missed = 0, 0  # from the cursor again, and gaps are counted again
            raise
        ahead = scan.position - route.cursor
        is_due = ahead >= _NOTE_RECORDS or time.monotonic() - scan.noted_at >= _NOTE_SECONDS
        if ahead > 0 and (notes or scan.missed or is_due):
            with self._lock:
                moves.commit([], scan.position, scan.missed)
            scan.missed, scan.noted_at = 0, time.monotonic()
        return has_moved

    def _rest(self) -> None:
        """Leave the interpreter to appends for a moment, if there are any."""
        commits = sum(shard.commits for shard in self._log.shards)
        is_active = commits - self._commits > 1  # one was our own
        self._commits = commits
        if is_active and not self._is_stopped:
            time.sleep(_REST_SECONDS)

    def check_held(self, route: RouteState, version: int) -> None:
        """Raise if a route was paused or dropped; the lock is held."""
        known, body = self._replay.routes.get(route.id), route.body
        is_paused = body is None or body.is_paused
        if known is not route or route.version != version or is_paused or self._is_stopped:
            raise _HeldError

    @property
    def apply(self) -> Apply:
        """Makes a frame of routes state."""
        return self._replay.routes.apply

    @property
    def log(self) -> Log:
        """Where frames go."""
        return self._log


class _Chunk(NamedTuple):
    """Records that match, of those below `position`."""

    parts: list[Part]
    position: int
    missed: int
    """Offsets among them that were gone."""


def _chunks(source: TopicLog, body: RouteBody, start: int, end: int, now: int) -> Iterator[_Chunk]:
    """Yield what a route has to handle between two offsets, in pieces that become frames."""
    choice = Choice(body.tag_glob, body.key_prefix, body.node)
    slices: list[Slice] = []
    size = missed = 0
    if start >= end:
        return
    for item in read_living(source, start, end, now):
        if isinstance(item, Gap):
            # What went with a crash was never durable, and is no loss of the route's: most of these
            # offsets are reserved ones that no record ever had.
            missed += 0 if item.reason == "crash" else item.last + 1 - item.first
            continue
        for piece, bytes_held in _pieces(item):
            slices.append(piece)
            size += bytes_held
            if size >= _CHUNK_BYTES:
                position = piece.batch.offset_of(piece.end - 1) + 1
                yield _Chunk(choose(slices, choice), position, missed)
                slices, size, missed = [], 0, 0
    yield _Chunk(choose(slices, choice), end, missed)


def _pieces(part: Slice) -> Iterator[tuple[Slice, int]]:
    """A slice in parts of no more bytes of values than a frame should have, and their bytes."""
    batch, first, end = part
    ends = batch.value.ends
    while first < end:
        limit = int(ends[first]) + _CHUNK_BYTES
        stop = end if int(ends[end]) <= limit else int(ends.searchsorted(limit, "right")) - 1
        stop = min(max(stop, first + 1), end)
        yield Slice(batch, first, stop), int(ends[stop]) - int(ends[first]) + 32 * (stop - first)
        first = stop


class _Move:
    """Commits records and the cursor after them, for one turn of a route."""

    def __init__(
        self, forwarder: Forwarder, route: RouteState, destination: TopicLog, version: int
    ) -> None:
        self._forwarder = forwarder
        self._route = route
        self._destination = destination
        self._version = version

    def commit(self, parts: list[Part], cursor: int, missed: int) -> None:
        """Put records into the destination, and the cursor past them, in one frame.

        In several if that would be too large, each with the cursor that belongs to it. The
        forwarder's lock is held.
        """
        self._forwarder.check_held(self._route, self._version)
        if not parts:
            self._enter(None, 0, cursor, missed)
            return
        entry = self._entry(parts, self._destination.last_timestamp)
        if entry.count > 1 and HEADER_BYTES + len(entry.body) > self._room:
            low, high, between = halve(parts)
            self.commit(low, between, missed)
            self.commit(high, cursor, 0)
            return
        self._enter(entry, entry.count, cursor, missed, lambda floor: [self._entry(parts, floor)])

    @property
    def _room(self) -> int:
        """Return the bytes that a frame may hold besides its cursor."""
        return self._destination.batch_bytes_max - 2 * HEADER_BYTES - FORWARD_BYTES

    def _entry(self, parts: list[Part], floor: int) -> Entry:
        topic = self._destination
        block = renumber(parts, topic.codec, floor)
        return Entry(
            FrameType.RECORDS, topic.id, block.body, 0, topic, block.flags, block.count,
            block.base_timestamp, block.max_timestamp,
        )  # fmt: skip

    def _enter(
        self,
        entry: Entry | None,
        count: int,
        cursor: int,
        missed: int,
        remake: Callable[[int], list[Entry]] | None = None,
    ) -> None:
        """Commit a frame; returns when it is as durable as the destination's class promises."""
        forwarder, route, topic = self._forwarder, self._route, self._destination
        data = encode_forward(route.id, route.forwarded + count, route.missed + missed)
        moved = note(FrameType.FORWARD, cursor, data, forwarder.apply)
        commit_noted(forwarder.log, topic, entry, moved, remake)


def halve(parts: list[Part]) -> tuple[list[Part], list[Part], int]:
    """Cut parts of at least two records into two, and say from which offset the second begins."""
    counts = [
        part.end - part.first if part.keep is None else int(part.keep.sum()) for part in parts
    ]
    left = sum(counts) // 2
    low: list[Part] = []
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        if left < count:
            one, other = _cut(part, left)
            rest = [other, *parts[number + 1 :]]
            low += [one] if left else []
            return low, rest, _first_offset(other)
        low.append(part)
        left -= count
    raise AssertionError("half of the records are as many as all")


def _cut(part: Part, count: int) -> tuple[Part, Part]:
    """The first so many records of a part that are kept, and the others."""
    batch, first, end, keep, _ = part
    if keep is None:
        return Part(batch, first, first + count), Part(batch, first + count, end)
    at = int(keep.nonzero()[0][count])
    return Part(batch, first, first + at, keep[:at]), Part(batch, first + at, end, keep[at:])


def _first_offset(part: Part) -> int:
    """The offset of the first record that is kept."""
    skipped = 0 if part.keep is None else int(part.keep.argmax())
    return part.batch.offset_of(part.first + skipped)


def missing(replay: Replay, route: RouteState) -> str | None:
    """Say which topic of a route was dropped, if one was."""
    body = route.body
    assert body is not None
    for id, name, what in (
        (body.source, body.source_name, "source"),
        (body.destination, body.destination_name, "destination"),
    ):
        if id not in replay.topics:
            return (
                f"Topic {name!r}, the {what} of the route from {body.source_name!r} to "
                f"{body.destination_name!r}, was dropped. Drop the route, and make it again if "
                "there is a successor."
            )
    return None

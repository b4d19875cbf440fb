"""One topic: its segments one after the other, and the log after them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from stratalog.format.names import parse_numbered, segment_name
from stratalog.format.segment import State, Summary, decode_summaries
from stratalog.fs import FileSystem
from stratalog.log.index import MEMORY
from stratalog.log.topic import TopicLog
from stratalog.state.missing_offsets import lost
from stratalog.state.recovery import Replay
from stratalog.tools.checks import FrameFound, FramesTask
from stratalog.tools.report import Problem, Tally
from stratalog.tools.segments import SegmentCheck, SegmentTask, check_segment

Range = tuple[int, int]
"""First and last offset."""


@dataclass(slots=True)
class TopicAudit:
    """A topic as it was found."""

    topic: TopicLog
    checks: list[SegmentCheck] = field(default_factory=list)
    orphans: list[SegmentCheck] = field(default_factory=list)
    """Open segments that nothing speaks of any more, and that may have what nothing else has."""
    missing: list[Range] = field(default_factory=list)
    """Offsets that should be in segments, and are in none."""
    holes: list[Range] = field(default_factory=list)
    """Offsets that should be in the log, and are not."""
    tail: Range | None = None
    """Newest offsets, known from damaged frames alone."""
    floor: int = 0
    """The first offset of a topic whose past is unknown."""
    cold: list[Summary] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """Files that are damaged, and that nothing needs."""
    others: list[Problem] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the name to report it by."""
        return self.topic.name or f"recovered-{self.topic.id}"

    def problems(self) -> list[Problem]:
        """All that is wrong with it."""
        found = list(self.others)
        directory = self.topic.history.directory
        for check in self.checks:
            found += self._of_segment(check)
        for check in self.orphans:
            found.append(
                Problem(
                    "segment", check.path, "an open segment that no snapshot speaks of",
                    "it is sealed", None, self.name, check.first, check.end - 1,
                )
            )  # fmt: skip
        for first, last in self.missing:
            found.append(
                Problem(
                    "segment-missing", directory, "no segment holds these offsets",
                    "what the log still has of them is put into a new segment; the rest becomes a "
                    "gap", None, self.name, first, last,
                )
            )  # fmt: skip
        for first, last in [*self.holes, *([self.tail] if self.tail else [])]:
            found.append(
                Problem(
                    "offsets", directory,
                    "the log lacks these offsets", "they become a gap", None, self.name, first,
                    last,
                )
            )  # fmt: skip
        if self.floor:
            found.append(
                Problem(
                    "offsets", directory, "nothing tells what became of the first offsets",
                    "they become a gap", None, self.name, 0, self.floor - 1,
                )
            )  # fmt: skip
        return found

    def _of_segment(self, check: SegmentCheck) -> list[Problem]:
        found = []
        for fault in check.faults:
            repair = "the segment is written again from its batches"
            if fault.kind == "order":
                repair = "nothing: nothing is damaged, please report how this came about"
            found.append(
                Problem(
                    fault.kind, check.path, fault.message, repair, fault.position, self.name,
                    check.first, check.end - 1,
                )
            )  # fmt: skip
        for bad in check.bad:
            has_offsets = bad.first <= bad.last
            found.append(
                Problem(
                    "batch", check.path,
                    f"{bad.reason} (up to position {bad.end_position})",
                    "the file is kept in quarantine and written again without it; what the log "
                    "still has is put in, the rest becomes a gap", bad.position, self.name,
                    bad.first if has_offsets else None, bad.last if has_offsets else None,
                )
            )  # fmt: skip
        return found


@dataclass(slots=True)
class TopicPlan:
    """The reads that are needed before a topic can be judged."""

    topic: TopicLog
    tasks: list[SegmentTask] = field(default_factory=list)
    cold: list[Summary] = field(default_factory=list)
    frames: list[FramesTask] = field(default_factory=list)
    """All that are in the log alone, in the order of their offsets."""
    numbers: list[int] = field(default_factory=list)
    """Their places in the topic's index."""


def plan_topic(fs: FileSystem, replay: Replay, topic: TopicLog) -> TopicPlan:
    """Say what is to be read of a topic."""
    plan = TopicPlan(topic)
    if not topic.is_ephemeral:
        _plan_segments(fs, replay, plan)
        _plan_frames(replay, plan)
    return plan


def _plan_segments(fs: FileSystem, replay: Replay, plan: TopicPlan) -> None:
    topic, history = plan.topic, plan.topic.history
    names = fs.listdir(history.directory)
    sealed = {first for name in names if (first := parse_numbered(name, ".seg")) is not None}
    plan.cold = [one for first, one in sorted(history.cold.items()) if first not in sealed]
    mark = history.mark
    has_open = bool(mark.position) and mark.segment not in sealed
    has_open = has_open and mark.segment not in history.cold
    has_open = has_open and segment_name(mark.segment, ".open") in names
    known = _known_ends(replay, topic)
    for first in sorted({*sealed, *([mark.segment] if has_open else [])}):
        is_sealed = first in sealed
        name = segment_name(first, ".seg" if is_sealed else ".open")
        path = os.path.join(history.directory, name)
        # Where nothing says how far it went, everything after its last batch counts as missing.
        hint = known.get(first, first) if is_sealed else history.checkpointed
        position = None if is_sealed else mark.position
        identity = history.pool.identity
        plan.tasks.append(SegmentTask(path, topic.id, first, hint, position, identity=identity))


def _plan_frames(replay: Replay, plan: TopicPlan) -> None:
    index, reader = plan.topic.index, replay.reader
    file = MEMORY
    for number in range(len(index)):
        place = index.place(number)
        if place.file == MEMORY:
            continue
        if place.file != file:
            file = place.file
            plan.frames.append(FramesTask(reader.path(file), reader.seed(file), []))
        plan.frames[-1].places.append((place.position, place.length))
        plan.numbers.append(number)


def audit_topic(
    fs: FileSystem, replay: Replay, plan: TopicPlan, checks: list[SegmentCheck],
    frames: list[list[FrameFound]], tally: Tally, *, is_orphan: bool,
) -> TopicAudit:  # fmt: skip
    """Judge a topic by what was read; `is_orphan` says that its past is unknown."""
    topic = plan.topic
    found = TopicAudit(topic)
    if topic.is_ephemeral:
        return found
    found.checks = [check for check in _standing(checks) if check.end > topic.earliest]
    found.cold = [
        one for one in plan.cold
        if one.end_offset > topic.earliest and not _is_covered(one, found.checks)
    ]  # fmt: skip
    spans = [(check.first, check.end) for check in found.checks]
    spans = sorted(spans + [(one.first_offset, one.end_offset) for one in found.cold])
    spans += _look_for_orphans(fs, found, tally, spans)
    if is_orphan:
        _find_floor(found, spans)
    _find_missing(found, spans)
    log_start = max([topic.history.checkpointed, found.floor, *(end for _, end in spans)])
    found.holes = [
        (max(first, log_start), last) for first, last in lost(topic) if last >= log_start
    ]
    _judge_log(found, plan, frames)
    _look_at_ahead(fs, found, tally)
    return found


def _standing(checks: list[SegmentCheck]) -> list[SegmentCheck]:
    """Without those inside of the one before: replaced by it, and gone when the store is opened."""
    found: list[SegmentCheck] = []
    for check in checks:
        is_covered = bool(found) and check.end <= found[-1].end
        # One that is damaged may seem to be: where it ends is what nothing tells.
        if check.is_open or not (is_covered and check.is_good):
            found.append(check)
    return found


def _is_covered(cold: Summary, checks: list[SegmentCheck]) -> bool:
    """Whether a segment here answers for a cold one: it came back, was emptied, and joined that."""
    return any(
        check.is_good and check.first <= cold.first_offset and cold.end_offset <= check.end
        for check in checks
    )


def _look_at_ahead(fs: FileSystem, found: TopicAudit, tally: Tally) -> None:
    """Read segments that were adopted and that no checkpoint has reached yet."""
    for segment in found.topic.history.ahead.segments:
        assert segment.placed is not None
        footer = segment.placed.footer
        task = SegmentTask(segment.path, segment.topic_id, segment.first, segment.end, None, footer)
        check = check_segment(fs, task, tally)
        wrong = [(bad.position, bad.reason) for bad in check.bad]
        wrong += [(fault.position, fault.message) for fault in check.faults]
        for position, message in wrong:
            found.others.append(
                Problem(
                    "batch", segment.path, message,
                    "nothing: restore the file from a copy; without the file, its offsets become "
                    "a gap", position, found.name, segment.first, segment.end - 1,
                )
            )  # fmt: skip


def _known_ends(replay: Replay, topic: TopicLog) -> dict[int, int]:
    """Where sealed segments end, as the snapshot says."""
    states = [] if replay.snapshot is None else replay.snapshot.catalog.topics
    return {
        one.first_offset: one.end_offset
        for state in states
        if state.id == topic.id
        for one in decode_summaries(state.segments)
        if one.state != State.OPEN
    }


def _look_for_orphans(
    fs: FileSystem, found: TopicAudit, tally: Tally, known: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Open segments that no checkpoint speaks of, with records that nothing else has.

    A crash before a checkpoint leaves one, too: the log has all of its records.
    """
    topic, history = found.topic, found.topic.history
    names = fs.listdir(history.directory)
    seen = {check.first for check in found.checks}
    spans = []
    for name in names:
        first = parse_numbered(name, ".open")
        if first is None or first in seen or segment_name(first) in names:
            continue
        path = os.path.join(history.directory, name)
        file = fs.open(path, "read")
        size = file.size()
        file.close()
        check = check_segment(fs, SegmentTask(path, topic.id, first, first, size), tally)
        last = check.pieces[-1].position if check.pieces else 0
        check.bad = [bad for bad in check.bad if bad.position < last]  # after it is a torn tail
        start = max([history.checkpointed, *(end for _, end in known)])
        holes = topic.index.holes(start)
        is_covered = topic.next_offset >= check.end and len(topic.index) > 0
        is_covered = is_covered and all(hole[0] >= check.end for hole in holes)
        if check.pieces and check.end > start and not is_covered:
            found.orphans.append(check)
            spans.append((first, check.end))
    return spans


def _find_floor(found: TopicAudit, spans: list[tuple[int, int]]) -> None:
    topic = found.topic
    starts = [first for first, _ in spans]
    if len(topic.index):
        starts.append(topic.index.place(0).base_offset)
    if not topic.earliest and starts:
        found.floor = min(starts)


def _find_missing(found: TopicAudit, spans: list[tuple[int, int]]) -> None:
    topic, history = found.topic, found.topic.history
    end = max(topic.earliest, found.floor)
    missing = []
    for first, following in sorted(spans):
        if first > end:
            missing.append((end, first - 1))
        elif first < end and first >= max(topic.earliest, found.floor):
            message = f"it begins at offset {first}, the one before it ends at {end}"
            path = os.path.join(history.directory, segment_name(first))
            repair = "nothing: nothing is damaged, please report how this came about"
            found.others.append(Problem("order", path, message, repair, 0, found.name, first))
        end = max(end, following)
    if end < history.checkpointed:
        missing.append((end, history.checkpointed - 1))
    found.missing = [
        (first, last) for first, last in missing if not history.is_given_up(first, last)
    ]


def _judge_log(found: TopicAudit, plan: TopicPlan, frames: list[list[FrameFound]]) -> None:
    """Note frames of the log that are damaged, or older than those before them."""
    index = found.topic.index
    pieces = [check.pieces[-1] for check in found.checks if check.pieces]
    newest = pieces[-1].max_timestamp if pieces else 0
    covered = max((check.end for check in found.checks), default=0)
    read = [
        (task.path, one) for task, some in zip(plan.frames, frames, strict=True) for one in some
    ]
    for number, (path, one) in zip(plan.numbers, read, strict=True):
        if one.error is not None:
            repair = "nothing: its checksums are right, please report how this came about"
            message, kind = one.error, "log"
        elif one.base_timestamp >= newest or index.place(number).base_offset < covered:
            # One that begins below the end of a segment has records of it: a checkpoint seals in
            # the middle of a frame, and is not done.
            newest = max(newest, one.max_timestamp)
            continue
        else:
            repair = "nothing: nothing is damaged, please report how this came about"
            message, kind = "its records are older than those before it", "order"
        place = index.place(number)
        last = place.base_offset + place.count - 1
        found.others.append(
            Problem(
                kind, path, message, repair, place.position, found.name, place.base_offset, last
            )
        )

"""Files that are whole, but not where they belong: their own headers say where that is.

A segment's header says its store, topic and first offset, its footer the latter two. A frame of
the log validates in the file it was written to and in no other, so the place of a log file is
found by trying those there are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stratalog.errors import FormatError
from stratalog.format.frame import HEADER_BYTES as FRAME_BYTES
from stratalog.format.frame import log_seed
from stratalog.format.names import (
    ends_path,
    incoming_path,
    log_file_path,
    parse_topic,
    segment_name,
    shard_path,
    snapshots_path,
    store_path,
    topic_path,
    topics_path,
)
from stratalog.format.segment import (
    UNBOUND,
    SegmentFooter,
    SegmentHeader,
)
from stratalog.fs import File, FileSystem
from stratalog.log.scan import frames, is_whole_elsewhere
from stratalog.segments.segment import is_foreign
from stratalog.state.owner import (
    Place,
    is_bound_to,
    log_places,
    log_shards,
    read_ends_of,
    segment_paths,
)
from stratalog.tools.overlay import OverlayFs


class Misplaced(NamedTuple):
    """A file that is not what its name says."""

    path: str
    target: str | None
    """Where it belongs; None if that is nowhere in this store, or if another has that place."""
    message: str

    @property
    def is_log(self) -> bool:
        """Whether it is a log file."""
        return self.path.endswith(".log")


def find_misplaced(
    fs: FileSystem, root: str, identity: bytes, log_identity: bytes, known: Iterable[Place]
) -> list[Misplaced]:
    """All files that are somewhere else than they belong; `known` are places of log files."""
    found = [*_segments(fs, root, identity), *_log_files(fs, root, log_identity, set(known))]
    wrong = {one.path for one in found}
    taken: set[str] = set()
    placed = []
    for one in found:
        target = one.target
        if target is not None and (target in taken or (target not in wrong and _is(fs, target))):
            one = one._replace(target=None, message=f"{one.message}, which is there as well")
        elif target is not None:
            taken.add(target)
        placed.append(one)
    return placed


def put_back(fs: FileSystem, misplaced: list[Misplaced]) -> None:
    """Give files the names that they should have; two may have each other's.

    Crash: one that has a name in between is found by its header again.
    """
    moves = [(one.path, one.target) for one in misplaced if one.target is not None]
    while moves:
        sources = {source for source, _ in moves}
        free = [(source, target) for source, target in moves if target not in sources]
        if not free:  # they go round in a circle: the first waits beside
            source, target = moves[0]
            beside = _beside(fs, source)
            fs.rename(source, beside)
            moves[0] = (beside, target)
            continue
        source, target = free[0]
        moves.remove((source, target))
        fs.makedirs(os.path.dirname(target))
        fs.rename(source, target)
        for directory in sorted({os.path.dirname(source), os.path.dirname(target)}):
            fs.sync_dir(directory)


def _beside(fs: FileSystem, path: str) -> str:
    """A name of the same kind that is free, and that no file of a real store has."""
    directory, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    number = int(stem) | 1 << 62
    while _is(fs, os.path.join(directory, f"{number:020d}{suffix}")):
        number += 1
    return os.path.join(directory, f"{number:020d}{suffix}")


def _is(fs: FileSystem, path: str) -> bool:
    return os.path.basename(path) in fs.listdir(os.path.dirname(path))


# --- directories ------------------------------------------------------------------------------


def without_directories(fs: FileSystem, root: str) -> tuple[FileSystem, list[str]]:
    """A store without the directories that are where files should be, and which those are."""
    found = [path for path in _files_of(fs, root) if is_directory(fs, path)]
    if not found:
        return fs, []
    rest = OverlayFs(fs)
    for path in found:
        rest.unlink(path)
    return rest, found


def is_directory(fs: FileSystem, path: str) -> bool:
    """Whether there is a directory by this name."""
    try:
        fs.listdir(path)
    except OSError:
        return False
    return True


def _files_of(fs: FileSystem, root: str) -> Iterator[str]:
    """Everything in a store that should be a file."""
    yield from (path for path in (store_path(root), ends_path(root)) if _is(fs, path))
    numbered = [snapshots_path(root), incoming_path(root)]
    numbered += [shard_path(root, shard) for shard in log_shards(fs, root)]
    topics = (parse_topic(name) for name in fs.listdir(topics_path(root)))
    numbered += [topic_path(root, topic_id) for topic_id in topics if topic_id is not None]
    suffixes = (".snap", ".log", ".free", ".seg", ".open", ".tmp", ".manifest")
    for directory in numbered:
        for name in fs.listdir(directory):
            if name.endswith(suffixes):
                yield os.path.join(directory, name)


# --- segments ---------------------------------------------------------------------------------


def _segments(fs: FileSystem, root: str, identity: bytes) -> Iterator[Misplaced]:
    for path, named in segment_paths(fs, root).items():
        header, footer = read_ends_of(fs, path)
        if header is not None and is_foreign(header, identity):
            yield Misplaced(path, None, "a segment of another store")
            continue
        if footer is not None and not footer.topic_id:
            yield Misplaced(path, None, "a segment that was staged, and has no place yet")
            continue
        place = _place_of(header, footer)
        if place is not None and place != named:
            suffix = ".seg" if footer is not None else os.path.splitext(path)[1]
            target = os.path.join(topic_path(root, place[0]), segment_name(place[1], suffix))
            what = f"the segment of topic {place[0]} from offset {place[1]} on"
            yield Misplaced(path, target, what)
    for name in fs.listdir(incoming_path(root)):
        path = incoming_path(root, name)
        header, footer = read_ends_of(fs, path) if name.endswith(".seg") else (None, None)
        # One that is staged is not bound to a store yet.
        if header is not None and header.identity == identity != UNBOUND and header.topic_id:
            suffix = ".seg" if footer is not None else ".open"
            place = header.topic_id, header.first_offset
            target = os.path.join(topic_path(root, place[0]), segment_name(place[1], suffix))
            what = f"the segment of topic {place[0]} from offset {place[1]} on"
            yield Misplaced(path, target, what)


def _place_of(header: SegmentHeader | None, footer: SegmentFooter | None) -> tuple[int, int] | None:
    """Topic and first offset of a segment; None if nothing tells, or not the same."""
    places = {
        (part.topic_id, part.first_offset)
        for part in (header, footer)
        if part is not None and part.topic_id  # of one that was staged, the footer alone knows
    }
    return places.pop() if len(places) == 1 else None


# --- the log ----------------------------------------------------------------------------------


def _log_files(
    fs: FileSystem, root: str, identity: bytes, known: set[Place]
) -> Iterator[Misplaced]:
    present = log_places(fs, root)
    places = known | set(present) | {(shard, 0) for shard, _ in present}
    followed = False
    for place in present:
        path = log_file_path(shard_path(root, place[0]), place[1])
        try:
            file = fs.open(path, "read")
        except FileNotFoundError:
            continue
        try:
            if is_bound_to(file, identity, place):
                continue
            home = _find_home(file, identity, places)
            if home is None and not followed and is_whole_elsewhere(file):
                followed = True
                places |= set(_following(fs, root, identity, present))
                home = _find_home(file, identity, places)
            if home is not None:
                target = log_file_path(shard_path(root, home[0]), home[1])
                what = f"the log file of shard {home[0]} from lsn {home[1]} on"
                yield Misplaced(path, target, what)
            elif is_whole_elsewhere(file):
                yield Misplaced(path, None, "a log file of another store or place")
        finally:
            file.close()


def _find_home(file: File, identity: bytes, places: set[Place]) -> Place | None:
    return next((place for place in sorted(places) if is_bound_to(file, identity, place)), None)


def _following(fs: FileSystem, root: str, identity: bytes, present: list[Place]) -> Iterator[Place]:
    """Where log files would go on that are there."""
    for shard, lsn in present:
        file = fs.open(log_file_path(shard_path(root, shard), lsn), "read")
        end = 0
        try:
            with contextlib.suppress(FormatError):
                for position, header, _ in frames(file, log_seed(identity, shard, lsn), 0):
                    end = position + FRAME_BYTES + header.body_length
        finally:
            file.close()
        yield shard, lsn + end

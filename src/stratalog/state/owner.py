"""The owner of a directory: the identity in its files, compared with the store file.

Files of another store may get into a directory, even the store file. The majority of files decides,
and opening a store uses the same votes as `verify` and `repair`.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator

from stratalog.errors import FormatError
from stratalog.format.ends import decode_ends
from stratalog.format.frame import HEADER_BYTES as FRAME_BYTES
from stratalog.format.frame import decode_header, log_seed
from stratalog.format.names import (
    ends_path,
    log_file_path,
    log_path,
    parse_numbered,
    parse_shard,
    parse_topic,
    shard_path,
    snapshots_path,
    topic_path,
    topics_path,
)
from stratalog.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    UNBOUND,
    SegmentFooter,
    SegmentHeader,
    decode_footer,
    decode_segment_header,
)
from stratalog.format.snapshot import decode_snapshot
from stratalog.fs import File, FileSystem

Place = tuple[int, int]
"""A shard and the first lsn of a log file."""


def owner_of(fs: FileSystem, root: str, claimed: bytes | None) -> bytes | None:
    """Return the identity that most files have; `claimed`, the store file's, unless outvoted."""
    votes = Counter(_witnesses(fs, root))
    if claimed is not None:
        votes[claimed] += 1
    for identity in list(votes):
        votes[identity] += has_log(fs, root, identity)
    if not votes:
        return None
    winner, count = votes.most_common(1)[0]
    return winner if claimed is None or votes[claimed] < count else claimed


def _witnesses(fs: FileSystem, root: str) -> Iterator[bytes]:
    """Give the identity in every file except the store file."""
    for name in reversed(fs.listdir(snapshots_path(root))):
        if parse_numbered(name, ".snap") is not None:
            with contextlib.suppress(FormatError, OSError):
                path = os.path.join(snapshots_path(root), name)
                yield decode_snapshot(read_all(fs, path)).identity
    with contextlib.suppress(FormatError, OSError):
        yield decode_ends(read_all(fs, ends_path(root))).identity
    owners: Counter[bytes] = Counter()
    for path in segment_paths(fs, root):
        with contextlib.suppress(OSError):
            header = read_ends_of(fs, path)[0]
            owners[UNBOUND if header is None else header.identity] += 1
    del owners[UNBOUND]
    if owners:  # all of them have one vote: they are many, in few directories
        yield owners.most_common(1)[0][0]


def segment_paths(fs: FileSystem, root: str) -> dict[str, tuple[int, int]]:
    """List all files of segments, with the topic and the first offset of each by its name."""
    found = {}
    for name in fs.listdir(topics_path(root)):
        topic_id = parse_topic(name)
        if topic_id is None:
            continue
        directory = topic_path(root, topic_id)
        for file_name in fs.listdir(directory):
            suffix = os.path.splitext(file_name)[1]
            first = parse_numbered(file_name, suffix)
            if first is not None and suffix in (".seg", ".open"):
                found[os.path.join(directory, file_name)] = (topic_id, first)
    return found


def read_ends_of(fs: FileSystem, path: str) -> tuple[SegmentHeader | None, SegmentFooter | None]:
    """Read the header and the footer of a segment, as far as possible."""
    header: SegmentHeader | None = None
    footer: SegmentFooter | None = None
    try:
        file = fs.open(path, "read")
    except FileNotFoundError:  # a concurrent writer has moved it
        return header, footer
    try:
        size = file.size()
        with contextlib.suppress(FormatError):
            header = decode_segment_header(file.pread(HEADER_BYTES, 0))
        with contextlib.suppress(FormatError):
            length = min(size, FOOTER_BYTES)
            footer = decode_footer(file.pread(length, size - length), size)
    finally:
        file.close()
    return header, footer


def has_log(fs: FileSystem, root: str, identity: bytes) -> bool:
    """Return whether a log file is bound to this identity; to none, if it is empty."""
    for shard, lsn in log_places(fs, root):
        try:
            file = fs.open(log_file_path(shard_path(root, shard), lsn), "read")
        except OSError:  # a directory in its place, or a concurrent writer has removed it
            continue
        try:
            if is_bound_to(file, identity, (shard, lsn)):
                return True
        finally:
            file.close()
    return False


def log_places(fs: FileSystem, root: str) -> list[Place]:
    """List the log files."""
    return [
        (shard, lsn)
        for shard in log_shards(fs, root)
        for file_name in fs.listdir(shard_path(root, shard))
        if (lsn := parse_numbered(file_name)) is not None
    ]


def log_shards(fs: FileSystem, root: str) -> list[int]:
    """List the shards that have a directory."""
    names = fs.listdir(log_path(root))
    return [shard for name in names if (shard := parse_shard(name)) is not None]


def is_bound_to(file: File, identity: bytes, place: Place) -> bool:
    """Return whether a file begins with a frame that was written in this place."""
    try:
        decode_header(file.pread(FRAME_BYTES, 0), seed=log_seed(identity, *place))
    except FormatError:
        return False
    return True


def read_all(fs: FileSystem, path: str) -> bytes:
    """Read a small file whole."""
    file = fs.open(path, "read")
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()

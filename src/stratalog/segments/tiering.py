"""Tiering: old sealed segments move to the cold store, one at a time.

Copy, then flip (a `TIER` frame, durable), then delete the file here. An object is named by what is
in it, so every step may be repeated: after a crash before the flip the copy is found there; after
it the file here is found beside the object, which is read and compared before the file goes.
Until the file is gone it is the one that is read.
"""

from __future__ import annotations

from collections.abc import Callable

from xxhash import xxh3_64

from stratalog.errors import ColdStoreError
from stratalog.format.frame import check_body
from stratalog.format.names import cold_name
from stratalog.format.segment import State, Summary
from stratalog.fs.cold import ColdStore, Source, pieces
from stratalog.log.topic import TopicLog
from stratalog.options import StoreOptions
from stratalog.segments.segment import Segment

# An object is read back in ranges of this size.
_READ_BYTES = 8 << 20

Flip = Callable[[TopicLog, Summary, str], None]
"""Writes down, durably, that a segment is in the cold store under a name."""


def movable(topic: TopicLog, options: StoreOptions) -> list[Segment]:
    """Segments beyond what is to stay here, oldest first.

    A compacted topic stays here as a whole: it is rewritten again and again.
    """
    if topic.options.compact:
        return []
    here = [s for s in topic.history.chain.segments if not s.is_open and not s.is_cold]
    kept = here[max(0, len(here) - options.hot_segments) :]
    if options.hot_bytes:
        while kept and sum(segment.summary.bytes for segment in kept) > options.hot_bytes:
            kept.pop(0)
    return here[: len(here) - len(kept)]


def copy_segment(cold: ColdStore, segment: Segment, file: Source, directory: str) -> str:
    """Make sure that the cold store holds a whole segment; returns its name there.

    Raises `ColdStoreError` if it does not, `CorruptionError` if the segment is damaged, and nothing
    has changed. Needs no lock: a segment that is replaced meanwhile leaves an object that is not
    referred to.
    """
    _check_frames(segment)
    digest = xxh3_64()
    for piece in pieces(file):
        digest.update(piece)
    name = cold_name(directory, segment.topic_id, segment.first, digest.intdigest())
    is_new = cold.put(name, file)
    if (size := cold.size(name)) != segment.summary.bytes:
        raise ColdStoreError(
            f"{name} has {size} bytes in {cold.location}, {segment.summary.bytes} were put there: "
            "the segment stays here. It is put there again once that object is gone; check what "
            "else writes there"
        )
    if not is_new and read_checksum(cold, name, segment.summary.bytes) != digest.intdigest():
        raise ColdStoreError(
            f"{name} in {cold.location} does not hold what its name says: the segment stays here. "
            "It is put there again once that object is gone; check what else writes there"
        )
    return name


def _check_frames(segment: Segment) -> None:
    """Raise `CorruptionError` if a frame is damaged.

    A damaged segment stays here, where repair can mend it: it does not change cold objects.
    """
    loaded = segment.load()
    for number in range(len(loaded.bases)):
        check_body(*loaded.frame(number))


def read_checksum(cold: ColdStore, name: str, size: int) -> int:
    """XXH3-64 of an object, read from its first byte to its last."""
    digest = xxh3_64()
    for position in range(0, size, _READ_BYTES):
        digest.update(cold.read(name, position, min(_READ_BYTES, size - position)))
    return digest.intdigest()


def finish_move(topic: TopicLog, segment: Segment, name: str, flip: Flip) -> None:
    """Switch reads to the cold store, which holds the segment, and remove the local file."""
    history = topic.history
    pool = history.pool
    flip(topic, segment.summary._replace(state=State.COLD), name)
    history.replace(pool.segment(topic.id, history.cold[segment.first], name))
    pool.forget(segment)
    pool.fs.unlink(segment.path)
    pool.fs.sync_dir(history.directory)

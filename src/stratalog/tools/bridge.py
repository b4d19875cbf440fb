"""Damaged places of a log file, made passable: a `SKIP` frame stands where they are.

Only the header is written. The damaged bytes become its body, under a checksum of their own.
"""

from __future__ import annotations

from xxhash import xxh3_64

from stratalog.errors import CorruptionError
from stratalog.format.frame import ALIGNMENT, BODY_BYTES_MAX, HEADER_BYTES, FrameType, encode_header
from stratalog.fs import File, FileSystem
from stratalog.tools.damage import LogDamage

_PIECE_BYTES = 1 << 20


def bridge(fs: FileSystem, damage: LogDamage) -> None:
    """Let a scanner reach the frames after a damaged place; may be repeated."""
    if damage.end - damage.start < HEADER_BYTES or (damage.end - damage.start) % ALIGNMENT:
        raise CorruptionError(
            f"{damage.path} from position {damage.start} to {damage.end} cannot be skipped: that "
            "is less than a frame. Restore the file from a copy."
        )
    file = fs.open(damage.path, "write")
    try:
        _fill(file, damage.end)
        position = damage.start
        while position < damage.end:
            position += _skip(file, damage.seed, position, damage.end)
        file.fdatasync()
    finally:
        file.close()


def extend(fs: FileSystem, damage: LogDamage) -> None:
    """Make a file as long again as it was durable."""
    file = fs.open(damage.path, "write")
    try:
        _fill(file, damage.end)
        file.fdatasync()
    finally:
        file.close()


def _fill(file: File, end: int) -> None:
    size = file.size()
    if size < end:
        file.preallocate(size, end - size)


def _skip(file: File, seed: int, position: int, end: int) -> int:
    """Write one frame; returns its length, which leaves room for another or none."""
    length = min(end - position - HEADER_BYTES, BODY_BYTES_MAX)
    if 0 < end - position - HEADER_BYTES - length < HEADER_BYTES:
        length -= HEADER_BYTES
    digest = xxh3_64()
    start = position + HEADER_BYTES
    for at in range(start, start + length, _PIECE_BYTES):
        digest.update(file.pread(min(_PIECE_BYTES, start + length - at), at))
    header = encode_header(FrameType.SKIP, 0, length, 0, 0, 0, 0, 0, digest.intdigest(), seed)
    file.pwrite([header], position)
    return HEADER_BYTES + length

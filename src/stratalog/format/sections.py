"""The sections of a body: found one after the other, checked, and never past its end."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.errors import CorruptionError
from stratalog.format.frame import FrameHeader

Int32s = npt.NDArray[np.int32]

# A batch spans less than 1 << 32 offsets, so none of them leaves 63 bits.
BASE_OFFSET_MAX = (1 << 63) - (1 << 32) - 1

_END = struct.Struct("<i")
# The newest ends that were seen to rise, if they are not too long to keep.
_risen = b""
_RISEN_BYTES_MAX = 1 << 16
# Fewer items are cut one by one in less time than it takes to see that all have one length.
_EVEN_COUNT_MIN = 32


class Binary(NamedTuple):
    """A column of byte strings inside a body."""

    validity: int
    """Position of the validity bits, or -1 when every item is there."""
    ends_at: int
    """Position of the ends."""
    ends: Int32s
    start: int
    """Position of the bytes."""


class Cursor:
    """Takes sections off a body in order, never past its end."""

    def __init__(self, body: bytes | memoryview, start: int, end: int, count: int) -> None:
        self.body = body
        self.count = count
        self.position = start
        self.end = end

    def take(self, length: int) -> int:
        """Position of the next section, of `length` bytes before padding."""
        start = self.position
        end = start + (length + 7 & ~7)
        if end > self.end:
            raise CorruptionError(
                f"batch of {self.count} records has a body too short by {end - self.end} bytes"
            )
        self.position = end
        return start

    def array(self, dtype: type[np.generic], count: int) -> npt.NDArray[Any]:
        """A section of `count` numbers."""
        start = self.take(count * np.dtype(dtype).itemsize)
        return np.frombuffer(self.body, dtype, count, start)

    def ends(self, count: int) -> tuple[int, Int32s]:
        """A section of ends, which rise from 0: its position and the ends."""
        at = self.position
        ends = self.array(np.int32, count + 1)
        if ends[0] != 0 or not rises(ends):
            raise CorruptionError("batch column ends do not rise from 0")
        return at, ends

    def binary(self, count: int, *, nullable: bool) -> Binary:
        """The sections of a column of byte strings."""
        validity = self.take((count + 7) // 8) if nullable else -1
        at, ends = self.ends(count)
        return Binary(validity, at, ends, self.take(int(ends[-1])))

    def finish(self) -> None:
        """Raise unless every byte of the body was taken."""
        if self.position != self.end:
            raise CorruptionError(
                f"batch body has {self.end - self.position} bytes after its last column"
            )


def rises(ends: Int32s | npt.NDArray[np.uint32]) -> bool:
    """Whether numbers never fall."""
    return not np.count_nonzero(ends[1:] < ends[:-1])  # `any()` takes three times as long


def ends_rise(body: bytes | memoryview, start: int, ends: Int32s) -> bool:
    """Whether the ends at `start` never fall.

    As a rule they are those of the batch before, and that takes a quarter of the time to see.
    """
    global _risen
    if ends.nbytes > _RISEN_BYTES_MAX:
        return rises(ends)
    raw = bytes(body[start : start + ends.nbytes])
    if raw == _risen:
        return True
    if not rises(ends):
        return False
    _risen = raw
    return True


def find_values(
    header: FrameHeader, data: bytes | memoryview, start: int
) -> tuple[int, int] | None:
    """Position and length of the values of a batch that has nothing else; None if it has."""
    _, flags, body_length, count, _, base_offset, base_timestamp, max_timestamp, _, _ = header
    ends_length = 4 * count + 11 & ~7  # one end more than records, padded
    if (
        flags
        or not count
        or base_offset > BASE_OFFSET_MAX
        or base_timestamp != max_timestamp
        or ends_length > body_length
        or _END.unpack_from(data, start)[0]
    ):
        return None
    length: int = _END.unpack_from(data, start + 4 * count)[0]
    if length < 0 or ends_length + (length + 7 & ~7) != body_length:
        return None
    return start + ends_length, length


def find_ends(
    header: FrameHeader, data: bytes | memoryview, start: int, end: int
) -> tuple[int, int] | None:
    """Position and length of the values whose ends are at `start` and which end the body."""
    count = header.count
    values = start + (4 * count + 11 & ~7)
    if (
        not count
        or header.base_offset > BASE_OFFSET_MAX
        or values > end
        or _END.unpack_from(data, start)[0]
    ):
        return None
    length: int = _END.unpack_from(data, start + 4 * count)[0]
    if length < 0 or values + (length + 7 & ~7) != end:
        return None
    return values, length


def cut_evenly(body: bytes, start: int, ends: Int32s) -> list[bytes | None] | None:
    """Items that all have one length, or None if they do not.

    NumPy cuts them in 20 ns each, a slice apiece takes 110.
    """
    count = len(ends) - 1
    if count < _EVEN_COUNT_MIN:
        return None
    low, high = int(ends[0]), int(ends[-1])
    length = (high - low) // count
    # The sum rules out nearly every uneven column, so that those pay next to nothing.
    if not length or length * count != high - low:
        return None
    if not np.array_equal(ends, np.arange(low, high + 1, length, dtype=np.int32)):
        return None
    items: list[bytes | None] = np.frombuffer(body, f"V{length}", count, start + low).tolist()
    return items

"""Frames of records side by side in a log file: verified together, their headers as a table.

One by one it takes 3 us to verify a frame, which is little for a large one and a lot for many that
hold one record each. Here two hashes and two slices are left of that; the rest is done by column.
The fault of a frame is not reported: a caller that wants to know reads that frame by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from stratalog.format.frame import (
    ALIGNMENT,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    FrameHeader,
    FrameType,
)

Int64s = npt.NDArray[np.int64]
Headers = npt.NDArray[np.void]
"""Headers as a table, with the fields below."""

_FIELDS = (
    "magic", "version", "type", "flags", "body_length", "count", "topic_id", "base_offset",
    "base_timestamp", "max_timestamp", "body_checksum", "header_checksum", "unsynced",
)  # fmt: skip
_KINDS = {"B": "u1", "H": "u2", "I": "u4", "Q": "u8", "q": "i8"}
_CODES = HEADER.format.removeprefix("<").replace("4s", "I")  # the magic as a number
HEADERS = np.dtype([(name, _KINDS[code]) for name, code in zip(_FIELDS, _CODES, strict=True)])
assert HEADERS.itemsize == HEADER_BYTES

_MAGIC = int.from_bytes(MAGIC, "little")
_WORDS = HEADER_BYTES // ALIGNMENT


def verify_run(data: bytes, starts: Int64s, lengths: Int64s, seed: int) -> Headers:
    """The headers of the frames that start at these places, up to the first that is not valid.

    `lengths` are those of whole frames. One that is not of records counts as not valid.
    """
    inside = np.count_nonzero(starts + lengths <= len(data))
    starts, lengths = starts[:inside], lengths[:inside]
    words = numbers_of(data, np.uint64)
    table = words[(starts // ALIGNMENT)[:, None] + np.arange(_WORDS)]
    headers: Headers = table.view(HEADERS)[:, 0]
    checksums = headers["header_checksum"].copy()
    headers["header_checksum"] = 0
    zeroed = table.tobytes()
    places = range(0, len(zeroed), HEADER_BYTES)
    digests = [xxh3_64_intdigest(zeroed[at : at + HEADER_BYTES], seed) for at in places]
    bodies = zip((starts + HEADER_BYTES).tolist(), (starts + lengths).tolist(), strict=True)
    body_digests = [xxh3_64_intdigest(data[start:end]) for start, end in bodies]
    is_valid = (
        (starts % ALIGNMENT == 0)
        & (headers["magic"] == _MAGIC)
        & (headers["version"] == VERSION)
        & (headers["type"] == FrameType.RECORDS)
        & (headers["body_length"] == lengths - HEADER_BYTES)
        & (checksums == np.array(digests, np.uint64).astype(np.uint32))
        & (headers["body_checksum"] == np.array(body_digests, np.uint64))
    )
    return headers[: leading(is_valid)]


def numbers_of(data: bytes, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Bytes as numbers, as many as are whole: a file that was cut may end in the middle of one."""
    return np.frombuffer(data, dtype, len(data) // np.dtype(dtype).itemsize)


def leading(mask: npt.NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(mask) if mask.all() else int(mask.argmin())


def as_headers(headers: Headers) -> list[FrameHeader]:
    """Return the headers one by one."""
    columns: list[Any] = [headers[name].tolist() for name in FrameHeader._fields]
    return list(map(FrameHeader, *columns))

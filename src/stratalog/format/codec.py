"""Compression of whole bodies, through Arrow's codecs.

A compressed body, little-endian:

| field | type | meaning |
|---|---|---|
| raw_length | u32 | bytes after decompression |
| stored_length | u32 | bytes of compressed data that follow; zeros fill up to a multiple of 8 |

A body is stored compressed only when that saves at least 5 %.
The decompressed size is checked against its bounds before anything is allocated: the option
`expanded_bytes_max` of the reader (128 MiB by default), and 32768 times the compressed data.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING

from stratalog.errors import CorruptionError, TooLargeError
from stratalog.format.columns import no_memory
from stratalog.format.frame import ALIGNMENT, BODY_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = struct.Struct("<II")
assert PREFIX.size == 8

CODECS = {"none": 0, "zstd": 1, "lz4": 2, "gzip": 3}
_NAMES = {number: name for name, number in CODECS.items()}

# Below this the codec's own overhead eats what it saves.
_BODY_BYTES_MIN = 256

EXPANDED_BYTES_MAX = 128 << 20
"""Largest plain body that is made of a compressed one: four times the largest batch by default."""

# zstd, the densest, has 128 KiB of one byte in 4: a body that claims more is no body, and a few
# damaged bytes cannot ask for a gigabyte.
_RATIO_MAX = 1 << 15


@functools.cache
def _codec(number: int) -> pa.Codec:
    import pyarrow as pa  # 120 ms: only for those who compress

    return pa.Codec(_NAMES[number])


def compress(body: bytes, codec: int) -> bytes | None:
    """The compressed form, or None when it would save less than 5 %."""
    if codec == 0 or len(body) < _BODY_BYTES_MIN:
        return None
    try:
        data: bytes = _codec(codec).compress(body, asbytes=True)
    except MemoryError as error:
        raise no_memory(f"compress {len(body)} bytes") from error
    length = PREFIX.size + len(data)
    padding = -length % ALIGNMENT
    if (length + padding) * 100 > len(body) * 95:
        return None
    return b"".join((PREFIX.pack(len(body), len(data)), data, bytes(padding)))


def decompress(stored: bytes, codec: int, expanded_bytes_max: int = EXPANDED_BYTES_MAX) -> bytes:
    """The plain body; raises `CorruptionError` for anything that is not one.

    `TooLargeError` if it would take more than `expanded_bytes_max`.
    """
    if codec == 0:
        return stored
    if codec not in _NAMES:
        raise CorruptionError(f"compression codec {codec} is not known")
    if len(stored) < PREFIX.size:
        raise CorruptionError("compressed body cut short")
    raw_length, stored_length = PREFIX.unpack_from(stored)
    padding = len(stored) - PREFIX.size - stored_length
    if not 0 <= padding < ALIGNMENT or raw_length > min(BODY_BYTES_MAX, stored_length * _RATIO_MAX):
        raise CorruptionError(
            f"compressed body claims {stored_length} bytes stored, {raw_length} plain"
        )
    if raw_length > expanded_bytes_max:
        # Not a `FormatError`: it may well be whole, and a repair must not give it up.
        raise TooLargeError(
            f"a compressed body of {stored_length} bytes would take {raw_length} bytes, more than "
            f"expanded_bytes_max={expanded_bytes_max}. If the store is yours and its batches are "
            "that large, open it with a larger expanded_bytes_max, or set "
            "STRATALOG_EXPANDED_BYTES_MAX for tools and for Spark."
        )
    data = stored[PREFIX.size : PREFIX.size + stored_length]
    try:
        body = _expand(data, codec, raw_length)
    except (OSError, ValueError) as error:  # Arrow's codecs raise these for damaged input
        raise CorruptionError(f"compressed body does not decompress: {error}") from error
    except MemoryError as error:
        raise no_memory(f"decompress {raw_length} bytes") from error
    if len(body) != raw_length:
        raise CorruptionError(f"compressed body does not have the {raw_length} bytes it claims")
    return body


def _expand(data: bytes, codec: int, raw_length: int) -> bytes:
    """The plain bytes, at most one more than there should be."""
    body: bytes
    if codec == CODECS["zstd"]:  # compares the lengths itself, and raises
        body = _codec(codec).decompress(data, decompressed_size=raw_length, asbytes=True)
        return body
    import pyarrow as pa

    # In one go the others would leave whatever was in memory after data that end too early.
    with pa.CompressedInputStream(pa.py_buffer(data), _NAMES[codec]) as stream:
        body = stream.read(raw_length + 1)
    return body

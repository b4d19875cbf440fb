"""S2 blocks: Snappy blocks with one extension, the repeated offset.

A block is the length of its content (unsigned LEB128), then literals and copies. Snappy has no copy
with a one-byte offset of 0; in S2 it means the offset of the copy before it, and its 3-bit length
is extended by 0 to 3 bytes. Decoding rewrites each such copy as standard ones, and passes the block
to Arrow's Snappy codec: only the tags of the block are parsed here.

Nearly all repeats take as many bytes as the standard copy that they stand for, and are rewritten in
place. Others, of more than 64 bytes or from far back, are replaced by several copies.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

_SNAPPY = pa.Codec("snappy")
# A Snappy copy is at most 64 bytes long.
_COPY_MAX = 64


# The tag of a repeat whose length less 8 is in one byte.
_REPEAT_BYTE = 5 << 2 | 1


def _step(tag: int) -> int:
    """Return the bytes from this tag to the next: negative for a copy, 0 if later bytes decide."""
    kind = tag & 3
    if kind == 0:
        return (tag >> 2) + 2 if tag >> 2 < 60 else 0
    # A one-byte offset has three more bits in the tag: with one of them set it is not 0.
    return (0, -2 if tag & 0xE0 else 0, -3, -5)[kind]


_STEPS = [_step(tag) for tag in range(256)]


def decompress_s2(data: bytes, bytes_max: int) -> bytes:
    """Decode a block of at most `bytes_max` bytes; raises `ValueError`."""
    size, start = _length(data)
    if size > bytes_max:
        raise ValueError(f"the block has {size} bytes, at most {bytes_max} are allowed")
    if size == 0:
        if start != len(data):
            raise ValueError("bytes follow the end of the block")
        return b""
    try:
        plain = _without_repeats(data, start, size)
        content: bytes = _SNAPPY.decompress(
            pa.py_buffer(plain), decompressed_size=size, asbytes=True
        )
    except IndexError:
        raise ValueError("the block is cut short") from None
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"the block does not decode: {error}") from error
    return content


def _length(data: bytes) -> tuple[int, int]:
    """Return the length of the content, and where the tags begin."""
    size = shift = 0
    for position, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, position + 1
        shift += 7
    raise ValueError("the block does not begin with its length")


def _without_repeats(data: bytes, position: int, size: int) -> bytes | bytearray:
    """Rewrite every repeated offset explicitly; raises where that is impossible.

    Only steps from tag to tag: the Snappy codec checks whether copies and literals fit.
    """
    changed = bytearray(data)
    longer: list[tuple[int, int, bytes]] = []  # replaced by more bytes: start, end, copies
    copy = 0  # position of the newest copy that has an offset
    room = size  # bytes that long repeats may still produce
    end = len(data)
    steps = _STEPS
    while position < end:
        tag = data[position]
        step = steps[tag]
        if step > 0:
            position += step
        elif step < 0:
            copy = position
            position -= step
        elif tag == _REPEAT_BYTE and not data[position + 1]:
            source = data[copy]
            if data[position + 2] <= _COPY_MAX - 8 and source & 3 != 3 and copy:
                # Three bytes, as a copy with an offset of two.
                changed[position] = data[position + 2] + 7 << 2 | 2
                changed[position + 1] = data[copy + 1]
                changed[position + 2] = data[copy + 2] if source & 2 else source >> 5
            else:
                room = _replace(data, position, copy, room, longer)
            position += 3
        elif tag & 3 == 0:
            extra = (tag >> 2) - 59
            length = int.from_bytes(data[position + 1 : position + 1 + extra], "little")
            position += 2 + extra + length
        elif data[position + 1]:
            copy = position
            position += 2
        else:
            source = data[copy]
            high = data[copy + 2] if source & 2 else source >> 5
            if tag < _REPEAT_BYTE and high < 8 and source & 3 != 3 and copy:
                # Two bytes, as a copy with an offset of one and three bits.
                changed[position] = tag | high << 5
                changed[position + 1] = data[copy + 1]
            else:
                room = _replace(data, position, copy, room, longer)
            position += 2 + max(0, (tag >> 2) - 4)
    if position != end:
        raise ValueError("the block is cut short")
    if not longer:
        return changed
    parts: list[bytes | bytearray] = []
    kept = 0
    for start, stop, copies in longer:
        parts += (changed[kept:start], copies)
        kept = stop
    parts.append(changed[kept:])
    return b"".join(parts)


def _replace(
    data: bytes, position: int, copy: int, room: int, longer: list[tuple[int, int, bytes]]
) -> int:
    """Note the copies that a repeat stands for; returns how many bytes are left for others."""
    length = data[position] >> 2
    extra = max(0, length - 4)
    more = int.from_bytes(data[position + 2 : position + 2 + extra], "little")
    length = length + 4 if extra == 0 else more + (8, 260, 65540)[extra - 1]
    if length > room:
        raise ValueError("the block has more content than it claims")
    longer.append((position, position + 2 + extra, _copies(_offset(data, copy), length)))
    return room - length


def _offset(data: bytes, position: int) -> int:
    """Return the offset of the copy at a position."""
    if not position:
        raise ValueError("a copy repeats an offset before there was one")
    tag = data[position]
    if tag & 3 == 1:
        return (tag & 0xE0) << 3 | data[position + 1]
    return int.from_bytes(data[position + 1 : position + (3 if tag & 3 == 2 else 5)], "little")


@lru_cache(maxsize=256)
def _copies(offset: int, length: int) -> bytes:
    """Build standard copies for one that repeats an offset."""
    whole, rest = divmod(length, _COPY_MAX)
    if offset < 1 << 16:
        place = offset.to_bytes(2, "little")
        kind = 2
    else:
        place = offset.to_bytes(4, "little")
        kind = 3
    data = (bytes([(_COPY_MAX - 1) << 2 | kind]) + place) * whole
    return data + bytes([(rest - 1) << 2 | kind]) + place if rest else data

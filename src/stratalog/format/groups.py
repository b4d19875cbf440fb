"""The body of a `GROUP` frame: what changed in a consumer group since its frame before.

Its header has the topic's id, and in `base_offset` the number of the frame in its group, from 1:
frames of a group are applied in this order, wherever recovery starts. Everything in it is absolute:
who holds what now, and what was consumed. So a frame may be applied again, to a state that already
has what it says, if the frames after it follow.

Group body, little-endian:

| field | type | meaning |
|---|---|---|
| group | u32 | number of the group in its topic, from 0 |
| entries | u32 | deliveries that are described |
| consumed_length | u32 | bytes of the set of consumed offsets |
| text_length | u32 | bytes of MessagePack |
| deliveries | u64 | how many the group has made so far |
| cursor | u64 | of a group in mode `stream`: the first offset not acknowledged |

Sections follow, each padded with zeros to a multiple of 8 bytes. `n` is `entries`.

| section | content |
|---|---|
| offset | u64 x n, of the record |
| deadline | i64 x n, nanoseconds since 1970 until when it is the consumer's |
| delivered_at | i64 x n, nanoseconds since 1970 |
| serial | u64 x n, number of the delivery |
| delivery_count | u32 x n |
| consumer | u32 x n, index of its name in the text |
| priority | u8 x n, as in the record |
| consumed | a set of offsets in the portable format of 64-bit Roaring bitmaps; empty for none |
| text | MessagePack of a `GroupText` |

An entry without a consumer (its name is empty) was given back: it is delivered again from its
deadline on. A text with a `seek` is applied before the rest: from that offset on, everything is to
be delivered, and nothing below it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import msgspec
import numpy as np
from pyroaring import BitMap64

from stratalog.errors import CorruptionError
from stratalog.format.columns import pad
from stratalog.format.control import Option, decode_offsets
from stratalog.format.sections import Cursor
from stratalog.model import Lease

GROUP = struct.Struct("<IIIIQQ")
GROUP_BYTES = 32
assert GROUP.size == GROUP_BYTES

ENTRY_BYTES = 41
"""Bytes of an entry, padding apart."""

_OFFSET_MAX = (1 << 63) - 1
_COLUMNS = (
    ("offset", np.uint64), ("deadline", np.int64), ("delivered_at", np.int64),
    ("serial", np.uint64), ("delivery_count", np.uint32), ("consumer", np.uint32),
    ("priority", np.uint8),
)  # fmt: skip

# All columns of a single entry, with their padding: in one pack, because that is what a `get` and
# its `ack` write, and arrays of one number each would take a hundred times as long.
_SINGLE = struct.Struct("<QqqQI4xI4xB7x")

# Up to so many, looking for those that share a lease takes longer than writing each.
_FEW_ENTRIES = 64


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The description of a group: written when it is made, and again when that changes."""

    name: str
    """Empty for the group that a queue is."""
    mode: str
    created_at: int
    options: dict[str, Option]


class GroupText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parts that are not numbers."""

    consumers: list[str] = []
    description: Description | None = None
    seek: int | None = None
    is_dropped: bool = False


class Changes(NamedTuple):
    """A decoded `GROUP` body."""

    group: int
    deliveries: int
    cursor: int
    leases: dict[int, Lease]
    """By offset."""
    consumed: BitMap64
    text: GroupText


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GroupText)


def encode_group(
    group: int,
    deliveries: int,
    cursor: int,
    leases: Mapping[int, Lease],
    consumed: Sequence[int] | BitMap64,
    *,
    description: Description | None = None,
    seek: int | None = None,
    is_dropped: bool = False,
) -> bytes:
    """The body of a `GROUP` frame."""
    names: dict[str, int] = {}
    columns = b""
    if leases:
        columns = encode_leases(leases, names)
    chosen = b""
    if consumed:
        bits = consumed if isinstance(consumed, BitMap64) else BitMap64(consumed)
        chosen = bits.serialize()
    text = _encoder.encode(GroupText(list(names), description, seek, is_dropped))
    head = GROUP.pack(group, len(leases), len(chosen), len(text), deliveries, cursor)
    return b"".join((head, columns, pad(chosen), pad(text)))


def encode_leases(leases: Mapping[int, Lease], names: dict[str, int]) -> bytes:
    """The columns of entries; consumers that are not in `names` yet are added to it."""
    count = len(leases)
    if count == 1:
        ((offset, lease),) = leases.items()
        return _SINGLE.pack(
            offset, lease.deadline, lease.delivered_at, lease.serial, lease.delivery_count,
            names.setdefault(lease.consumer, len(names)), lease.priority,
        )  # fmt: skip
    items = list(leases.values())
    lengths = None
    if count > _FEW_ENTRIES:
        # Records that are delivered at once share a lease, and follow each other: by far the most
        # of a million entries. A look at each would take a second.
        ids = np.fromiter(map(id, items), np.int64, count)
        starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        lengths = np.diff(starts, append=count)
        items = [items[start] for start in starts.tolist()]
    lists: list[list[int]] = [
        [lease.deadline for lease in items],
        [lease.delivered_at for lease in items],
        [lease.serial for lease in items],
        [lease.delivery_count for lease in items],
        [names.setdefault(lease.consumer, len(names)) for lease in items],
        [lease.priority for lease in items],
    ]
    columns = [
        np.array(numbers, dtype) for (_, dtype), numbers in zip(_COLUMNS[1:], lists, strict=True)
    ]
    if lengths is not None:
        columns = [np.repeat(column, lengths) for column in columns]
    offsets = np.fromiter(leases, np.uint64, count)
    return b"".join(pad(column.tobytes()) for column in (offsets, *columns))


def decode_group(body: bytes) -> Changes:
    """Read the body of a `GROUP` frame."""
    if len(body) < GROUP_BYTES:
        raise CorruptionError(f"group body cut short: {len(body)} of {GROUP_BYTES} bytes")
    group, entries, consumed_length, text_length, deliveries, cursor = GROUP.unpack_from(body)
    if max(deliveries, cursor) > _OFFSET_MAX:
        raise CorruptionError("group frame has a number that is too large")
    sections = Cursor(body, GROUP_BYTES, len(body), entries)
    columns = {name: sections.array(dtype, entries) for name, dtype in _COLUMNS}
    at = sections.take(consumed_length)
    consumed = decode_offsets(body[at : at + consumed_length]) if consumed_length else BitMap64()
    at = sections.take(text_length)
    text = _decode_text(body[at : at + text_length])
    sections.finish()
    return Changes(group, deliveries, cursor, leases_of(columns, text.consumers), consumed, text)


def decode_leases(data: bytes, count: int, consumers: Sequence[str]) -> dict[int, Lease]:
    """Read the columns of entries alone, as a snapshot has them."""
    sections = Cursor(data, 0, len(data), count)
    columns = {name: sections.array(dtype, count) for name, dtype in _COLUMNS}
    sections.finish()
    return leases_of(columns, consumers)


def leases_of(columns: Mapping[str, np.ndarray], consumers: Sequence[str]) -> dict[int, Lease]:
    """Leases by offset, from their columns; raises `CorruptionError` for impossible ones."""
    if not len(columns["offset"]):
        return {}
    if int(columns["offset"].max()) > _OFFSET_MAX or int(columns["serial"].max()) > _OFFSET_MAX:
        raise CorruptionError("group frame has an offset or a serial that is too large")
    if int(columns["consumer"].max()) >= len(consumers):
        raise CorruptionError("group frame has an entry of a consumer that it does not name")
    count = len(columns["offset"])
    is_first = np.zeros(count, bool)
    is_first[0] = True
    for name, _ in _COLUMNS[1:]:
        is_first[1:] |= columns[name][1:] != columns[name][:-1]
    starts = np.flatnonzero(is_first)
    firsts = {name: columns[name][starts].tolist() for name, _ in _COLUMNS[1:]}
    leases = map(
        Lease, firsts["deadline"], firsts["delivery_count"],
        [consumers[index] for index in firsts["consumer"]], firsts["delivered_at"],
        firsts["serial"], firsts["priority"],
    )  # fmt: skip
    # Records that were delivered at once share a lease again.
    lengths = np.diff(starts, append=count).tolist()
    shared = chain.from_iterable(map(repeat, leases, lengths))
    return dict(zip(columns["offset"].tolist(), shared, strict=True))


def _decode_text(data: bytes) -> GroupText:
    try:
        text = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"group frame does not decode: {error}") from error
    if text.seek is not None and not 0 <= text.seek <= _OFFSET_MAX:
        raise CorruptionError(f"group frame seeks to {text.seek}")
    return text

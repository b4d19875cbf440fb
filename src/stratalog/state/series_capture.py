"""The state of a series topic as bytes of a snapshot, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from stratalog.errors import CorruptionError
from stratalog.format.points import DTYPES, FieldType, Int64s
from stratalog.format.series import (
    VERSION,
    Cursor,
    FieldState,
    SeriesSnapshot,
    decode_series,
    encode_series,
)
from stratalog.state.series_blocks import Block, Blocks
from stratalog.state.series_registry import Newest, Registry

if TYPE_CHECKING:
    from stratalog.state.series_state import SeriesState


def capture_state(state: SeriesState) -> bytes:
    """Encode a state; its lock is held."""
    registry = state.registry
    ids = np.fromiter(registry.ids.values(), np.int64, len(registry.ids))
    # Numbers of forgotten series are not reused: the remaining ones are renumbered here.
    places = np.full(len(registry.keys), -1, np.int64)
    places[ids] = np.arange(len(ids))
    blocks = state.blocks.all()
    sets: dict[bytes | None, int] = {}
    numbers = [sets.setdefault(block.series, len(sets)) for block in blocks]
    rows = np.array([block.numbers for block in blocks], "<i8").reshape(-1, 5)
    cursor = state.cursor
    return encode_series(
        SeriesSnapshot(
            version=VERSION,
            keys=list(registry.ids),
            times=registry.times[ids].astype("<i8").tobytes(),
            offsets=registry.offsets[ids].astype("<i8").tobytes(),
            fields=[_field(name, newest, ids) for name, newest in registry.fields.items()],
            blocks=rows.T.tobytes(),
            block_series=[_moved(series, places) for series in sets],
            block_sets=np.array(numbers, "<u4").tobytes(),
            rules=state.rules,
            cursor=None if cursor is None else (cursor.source_id, cursor.offset),
        )
    )


def _moved(series: bytes | None, places: Int64s) -> bytes | None:
    if series is None:
        return None
    moved = places[np.frombuffer(series, np.uint32)]
    return np.sort(moved[moved >= 0]).astype("<u4").tobytes()


def _field(name: str, newest: Newest, ids: Int64s) -> FieldState:
    # A recent field may have no room for every series yet.
    is_known = ids < len(newest.valid)
    valid = np.zeros(len(ids), np.bool_)
    valid[is_known] = newest.valid[ids[is_known]]
    values: npt.NDArray[Any] = np.zeros(len(ids), DTYPES[newest.type])
    if newest.type == FieldType.TEXT:
        values[:] = ""
    values[valid] = newest.values[ids[valid]]
    if newest.type == FieldType.TEXT:
        data = msgspec.msgpack.encode(values.tolist())
    else:
        data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    return FieldState(name, int(newest.type), data, valid.tobytes())


def restore_state(state: SeriesState, data: bytes) -> None:
    """Restore a state; its lock is held. Invalid bytes change nothing."""
    found = decode_series(data)
    count = len(found.keys)
    registry = Registry()
    try:
        ids = registry.add(found.keys)
        fields = {one.name: _newest(one, count) for one in found.fields}
        sets = np.frombuffer(found.block_sets, "<u4").tolist()
        rows = np.frombuffer(found.blocks, "<i8").reshape(5, len(sets)).T.tolist()
        named = [np.frombuffer(one or b"", "<u4") for one in found.block_series]
        if any(bool((numbers >= count).any()) for numbers in named):
            raise CorruptionError("state of a series: a block names a series that is not there")
        blocks = [
            Block.of(row, found.block_series[place]) for row, place in zip(rows, sets, strict=True)
        ]
    except (ValueError, IndexError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise CorruptionError(f"state of a series does not hold: {error}") from error
    if len(ids) != count:
        raise CorruptionError("state of a series: its series do not hold")
    registry.times = np.frombuffer(found.times, "<i8").astype(np.int64)
    registry.offsets = np.frombuffer(found.offsets, "<i8").astype(np.int64)
    registry.fields = fields
    registry.bytes += sum(9 * count + len(name) + 200 for name in fields)
    state.registry, state.blocks = registry, Blocks.of(blocks)
    state.rules = found.rules
    state.cursor = None if found.cursor is None else Cursor(*found.cursor)


def _newest(field: FieldState, count: int) -> Newest:
    newest = Newest(FieldType(field.type))
    newest.valid = np.frombuffer(field.valid, np.bool_).copy()
    if newest.type == FieldType.TEXT:
        texts = msgspec.msgpack.decode(field.values, type=list[str])
        newest.values = np.array(texts, np.object_)
    else:
        dtype = np.dtype(DTYPES[newest.type]).newbyteorder("<")
        newest.values = np.frombuffer(field.values, dtype).astype(DTYPES[newest.type])
    if len(newest.valid) != count or len(newest.values) != count:
        raise CorruptionError(f"state of a series: field {field.name!r} does not hold")
    return newest

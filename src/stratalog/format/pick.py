"""Records of a batch by index: few out of many, without a look at those in between."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.format.batch import Batch
from stratalog.format.sections import Binary
from stratalog.model import NO_HEADERS


def pick(batch: Batch, indexes: npt.NDArray[np.int64]) -> list[Any]:
    """The fields of these records, in the order `Record` has them, an iterable for each."""
    deltas = batch.timestamp_deltas
    timestamps = repeat(batch.base_timestamp)
    if deltas is not None:
        timestamps = (deltas[indexes].astype(np.int64) + batch.base_timestamp).tolist()
    if batch.offset_deltas is None:
        offsets = (indexes + batch.base_offset).tolist()
    else:
        offsets = (batch.offset_deltas[indexes].astype(np.int64) + batch.base_offset).tolist()
    rest = (
        batch.priority, batch.expires_at, batch.not_before, batch.operation, batch.event_time,
    )  # fmt: skip
    return [
        _items(batch, batch.value, indexes),
        _optional(batch, batch.key, indexes),
        repeat(NO_HEADERS) if batch.headers is None else _header_dicts(batch, indexes),
        _text(batch, batch.tag, indexes),
        _text(batch, batch.node, indexes),
        timestamps,
        offsets,
        *(repeat(0) if column is None else column[indexes].tolist() for column in rest),
    ]


def pick_values(batch: Batch, indexes: npt.NDArray[np.int64]) -> list[bytes | None]:
    """Payloads of these records."""
    return _items(batch, batch.value, indexes)


def _items(batch: Batch, column: Binary, indexes: npt.NDArray[np.int64]) -> list[bytes | None]:
    body = batch.body
    lows = (column.ends[indexes] + column.start).tolist()
    highs = (column.ends[indexes + 1] + column.start).tolist()
    items: list[bytes | None] = [
        bytes(body[low:high]) for low, high in zip(lows, highs, strict=True)
    ]
    if column.validity >= 0:
        for place in np.flatnonzero(~batch.valid(column)[indexes]).tolist():
            items[place] = None
    return items


def _optional(batch: Batch, column: Binary | None, indexes: npt.NDArray[np.int64]) -> Any:
    return repeat(None) if column is None else _items(batch, column, indexes)


def _text(batch: Batch, column: Binary | None, indexes: npt.NDArray[np.int64]) -> Any:
    if column is None:
        return repeat(None)
    return [batch.text(column, index, index + 1)[0] for index in indexes.tolist()]


def _header_dicts(batch: Batch, indexes: npt.NDArray[np.int64]) -> list[Any]:
    return [batch.header_dicts(index, index + 1)[0] for index in indexes.tolist()]

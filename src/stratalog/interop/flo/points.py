"""Points of Flo as points of a series, and back.

The layout of Flo's points is not known, so they are not interpreted: a point has the time of its
entry, the tag `series` with the entry's key, and the field `payload` with the entry's value in
hexadecimal. A key that cannot be a tag becomes the field `key`, in hexadecimal. Points of ours are
entries of many points, with the bytes of their record here; their key is the series' name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from stratalog.errors import StratalogError
from stratalog.format.points import MAGIC, FieldType, decode_points, series_key, series_tags
from stratalog.interop.model import ForeignTopic
from stratalog.state.series_write import encode_point

TAG, FIELD, KEY = "series", "payload", "key"


class Point(NamedTuple):
    """A point as Flo has it."""

    time: int
    key: bytes
    value: bytes


def is_ours(value: bytes) -> bool:
    """Return whether an entry has a record of a series of ours."""
    if not value.startswith(MAGIC):
        return False
    try:
        decode_points(value, check=True)
    except StratalogError:
        return False
    return True


def as_series(topic: ForeignTopic) -> ForeignTopic:
    """Convert points to the records of a series; returns other topics unchanged."""
    if topic.kind != "series":
        return topic

    def batches() -> Iterator[pa.RecordBatch]:
        types = {FIELD: FieldType.TEXT, KEY: FieldType.TEXT}
        for batch in topic.batches():
            names = [batch.schema.get_field_index(name) for name in ("key", "value")]
            stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
            rows = zip(stamps, *(batch.column(at).to_pylist() for at in names), strict=True)
            values = [
                _record(Point(stamp, key or b"", value or b""), types) for stamp, key, value in rows
            ]
            columns = batch.columns
            columns[names[0]] = pa.nulls(len(values), pa.binary())
            columns[names[1]] = pa.array(values, pa.binary())
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    return ForeignTopic(
        topic.name, topic.kind, topic.first, topic.end, batches, topic.gaps, [], topic.options
    )


def _record(point: Point, types: dict[str, FieldType]) -> bytes:
    """Encode the value of a record; `types` are those of the fields so far."""
    if is_ours(point.value):
        own = {name: column.type for name, column in decode_points(point.value).fields.items()}
        if all(types.get(name, type) == type for name, type in own.items()):
            types.update(own)
            return point.value
    fields = {FIELD: (FieldType.TEXT, point.value.hex())}
    try:
        key = series_key({TAG: point.key.decode()}) if point.key else b""
        series_tags(key)
    except (UnicodeDecodeError, StratalogError):
        key, fields[KEY] = b"", (FieldType.TEXT, point.key.hex())
    return encode_point(key, point.time, fields)


def as_point(value: bytes) -> Point | None:
    """Return Flo's point that a record was made from; None if it was written here."""
    points = decode_points(value)
    if len(points) != 1 or not {FIELD} <= points.fields.keys() <= {FIELD, KEY}:
        return None
    tags = series_tags(points.series[0])
    names = {TAG} if KEY not in points.fields else set()
    if not tags.keys() <= names or any(
        column.type != FieldType.TEXT or column.valid is not None
        for column in points.fields.values()
    ):
        return None
    texts = {name: str(column.values[0]) for name, column in points.fields.items()}
    try:
        key = bytes.fromhex(texts[KEY]) if KEY in texts else tags.get(TAG, "").encode()
        return Point(int(points.times[0]), key, bytes.fromhex(texts[FIELD]))
    except ValueError:
        return None


__all__ = ["Point", "as_point", "as_series", "is_ours"]

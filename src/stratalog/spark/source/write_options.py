"""Options of a write, `df.write.format("stratalog")`, and its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stratalog.errors import OptionError
from stratalog.format.codec import CODECS
from stratalog.format.manifest import check_writer
from stratalog.format.names import check_topic_name
from stratalog.options import StoreOptions, check_known
from stratalog.spark.places import absolute, is_remote

OPTIONS = (
    "path", "topic", "table", "compression", "recordBytesMax", "adoptTimeoutSeconds", "writerId",
    "batchId",
)  # fmt: skip
"""All options of a write."""

# Options that Spark adds for the sink of a stream.
_SPARKS = ("checkpointlocation", "queryname")

_NAMES = {name.lower(): name for name in OPTIONS}
_ADOPT_SECONDS = 30.0

_BYTES = (BinaryType, StringType)
_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
_TIMES = (TimestampType, TimestampNTZType)

COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": (ArrayType,),
    "tag": (StringType,),
    "node": (StringType,),
    "timestamp": _TIMES,
    "priority": _NUMBERS,
    "expires_at": _TIMES,
    "not_before": _TIMES,
    "operation": _NUMBERS,
    "event_time": _TIMES,
    "topic": (StringType,),
    "offset": (LongType, IntegerType),
}
"""Every column that can be written, and its types; `offset` is ignored."""

TABLE_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "key": _BYTES,
    "value": _BYTES,
    "timestamp": _TIMES,
    "expires_at": _TIMES,
    "version": (LongType,),
}
"""Columns that can be written to a table; `version` is not looked at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The parsed options of a write."""

    path: str
    topic: str | None
    """None: the column `topic` names it for every record, unless a table is written."""
    table: str | None
    """The table whose keys are changed; None: records are appended to topics."""
    compression: str
    record_bytes_max: int
    adopt_timeout: float
    writer: str | None
    batch: int | None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
        """Parse what Spark passes; raises an `OptionError` that names the mistake."""
        values: dict[str, str] = {}
        for name, value in given.items():
            if is_stream and name.lower() in _SPARKS:
                continue
            if name.lower() not in _NAMES:
                check_known("option", [name], OPTIONS)
            values[_NAMES[name.lower()]] = str(value)
        path = values.get("path", "")
        if not path:
            raise OptionError("which store? give its directory: .save('path/to/store')")
        if is_remote(path):
            raise OptionError(
                f"{path} can be read, but not written: a store is written where its disk is. Give "
                "its directory"
            )
        compression = values.get("compression", "none").lower()
        check_known("compression", [compression], CODECS)
        topic, table = values.get("topic"), values.get("table")
        if topic is not None and table is not None:
            raise OptionError("A write goes to a topic or to a table. Give one of these options.")
        writer, batch = _key(values, is_stream=is_stream)
        return cls(
            path=absolute(path),
            topic=None if topic is None else check_topic_name(topic),
            table=None if table is None else check_topic_name(table),
            compression=compression,
            record_bytes_max=_bytes_max(values.get("recordBytesMax")),
            adopt_timeout=_seconds(values.get("adoptTimeoutSeconds")),
            writer=writer,
            batch=batch,
        )


def _key(values: Mapping[str, str], *, is_stream: bool) -> tuple[str | None, int | None]:
    writer, text = values.get("writerId"), values.get("batchId")
    if writer is None and text is None:
        return None, None
    if is_stream:
        raise OptionError(
            "writerId and batchId are for df.write: a stream is known by its checkpoint"
        )
    if writer is None or text is None:
        raise OptionError("writerId and batchId go together: who writes, and which batch it is")
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"batchId={text!r} must be a whole number, higher with every batch")
    check_writer(writer, int(text))
    return writer, int(text)


def _bytes_max(text: str | None) -> int:
    if text is None:
        return StoreOptions.build({}).record_bytes_max
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"recordBytesMax={text!r} must be a whole number of bytes")
    return StoreOptions(record_bytes_max=int(text)).record_bytes_max


def _seconds(text: str | None) -> float:
    if text is None:
        return _ADOPT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise OptionError(f"adoptTimeoutSeconds={text!r} must be 0 or more seconds")
    return seconds


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise unless every column can be written, and every record has a topic or a key."""
    known = COLUMNS if options.table is None else TABLE_COLUMNS
    check_known("column", schema.names, known)
    for field in schema.fields:
        if not isinstance(field.dataType, known[field.name]):
            wanted = " or ".join(dict.fromkeys(kind.typeName() for kind in known[field.name]))
            raise OptionError(
                f"column {field.name!r} of {field.dataType.simpleString()} cannot be written: "
                f"cast it to {wanted}"
            )
    if options.table is not None:
        for name in ("key", "value"):
            if name not in schema.names:
                raise OptionError(
                    f"A table needs the column {name!r}: it has keys and their values, and a key "
                    "without a value (null) is deleted."
                )
        return
    if options.topic is None and "topic" not in schema.names:
        raise OptionError("which topic? give option 'topic', or a column 'topic' with its name")
    if not set(schema.names) - {"topic", "offset", "timestamp"}:
        raise OptionError("nothing to write: there is no column 'value', nor another of a record")

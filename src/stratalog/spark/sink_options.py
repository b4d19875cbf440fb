"""What may be asked of a write: the options of `df.write.format("stratalog")`, and its columns."""

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
from stratalog.options import check_known
from stratalog.spark.places import absolute, is_remote

OPTIONS = ("path", "topic", "compression", "adoptTimeoutSeconds", "writerId", "batchId")
"""All that a write takes."""

# What Spark hands to the sink of a stream besides.
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
    "topic": (StringType,),
    "offset": (LongType, IntegerType),
}
"""Every column that can be written, and what it may be; `offset` is not looked at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What a write was asked for."""

    path: str
    topic: str | None
    """None: the column `topic` says it for every record."""
    compression: str
    adopt_timeout: float
    writer: str | None
    batch: int | None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
        """From what Spark hands over; everything wrong is an `OptionError` that says what."""
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
        topic = values.get("topic")
        writer, batch = _key(values, is_stream=is_stream)
        return cls(
            path=absolute(path),
            topic=None if topic is None else check_topic_name(topic),
            compression=compression,
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
    """Raise unless every column can be written, and every record has a topic."""
    check_known("column", schema.names, COLUMNS)
    for field in schema.fields:
        if not isinstance(field.dataType, COLUMNS[field.name]):
            wanted = " or ".join(dict.fromkeys(kind.typeName() for kind in COLUMNS[field.name]))
            raise OptionError(
                f"column {field.name!r} of {field.dataType.simpleString()} cannot be written: "
                f"cast it to {wanted}"
            )
    if options.topic is None and "topic" not in schema.names:
        raise OptionError("which topic? give option 'topic', or a column 'topic' with its name")
    if not set(schema.names) - {"topic", "offset", "timestamp"}:
        raise OptionError("nothing to write: there is no column 'value', nor another of a record")

"""Rows of foreign data as records: which column becomes what, and which rows are bad.

A row that cannot become a record as requested is *bad*: it carries its reason and its text in
columns of its own, and is counted by reason. None is ever imported as if it were good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from stratalog.errors import OptionError
from stratalog.options import TIME_MAX, check_known

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CORRUPT = "_stratalog_corrupt"
"""The column in which Spark keeps the text of a row that it could not parse."""

REASON, TEXT, FILE = "_bad_reason", "_bad_text", "_bad_file"
"""Columns of a bad row, besides those of a record: its reason, its text, and its file."""

NOT_PARSED = "could not be parsed"
NO_TIME = "without a time"
NOT_A_TIME = "with a time that cannot be read"
NOT_IN_RANGE = "with a time before 1970 or after 2230"
TOO_LARGE = "too large"

PLACE = ("topic", "partition", "offset")
"""Columns with a record's place in Kafka; together they give its order by partition."""

_TIMES = ("timestamp", "timestamp_ntz", "date")
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_SECONDS_MAX = TIME_MAX // 10**9


class RowMapping(msgspec.Struct, frozen=True):
    """The columns that become the parts of a record."""

    format: str
    value: str | None
    key: str | None
    timestamp: str | None
    headers: tuple[str, ...]

    def apply(self, frame: DataFrame, record_bytes_max: int, *, keep_untimed: bool) -> DataFrame:
        """Convert rows to records, with columns that mark the bad ones.

        A row with an empty time column is bad, unless `keep_untimed`: its time is then null.
        """
        from pyspark.sql import functions as f

        if self.format == "kafka":
            return self._apply_kafka(frame, record_bytes_max, keep_untimed=keep_untimed)
        kinds = dict(frame.dtypes)
        corrupt = f.col(CORRUPT) if kinds.pop(CORRUPT, None) else f.lit(None)
        named = [name for name in (self.value, self.key, self.timestamp) if name is not None]
        check_known("column", [*named, *self.headers], kinds)
        if not kinds:
            raise OptionError(f"no row could be parsed: is this {self.format}?")
        whole = f.to_json(f.struct(*[f.col(f"`{name}`") for name in kinds]))
        chosen = whole.cast("binary") if self.value is None else _bytes(self.value, kinds)
        columns = [chosen.alias("value")]
        sizes = [f.octet_length(chosen)]
        if self.key is not None:
            columns.append(_bytes(self.key, kinds).alias("key"))
            sizes.append(f.octet_length(_bytes(self.key, kinds)))
        reason = f.when(corrupt.isNotNull(), NOT_PARSED)
        if self.timestamp is not None:
            time = _time(self.timestamp, kinds)
            columns.append(time.alias("timestamp"))
            reason = _time_reason(reason, self.timestamp, kinds, time, keep_untimed=keep_untimed)
        if self.headers:
            pairs = [
                f.struct(f.lit(name).alias("key"), _bytes(name, kinds).alias("value"))
                for name in self.headers
            ]
            there = f.filter(f.array(*pairs), lambda pair: pair["value"].isNotNull())
            columns.append(there.alias("headers"))
            sizes += [f.octet_length(_bytes(name, kinds)) + len(name) for name in self.headers]
        size = sum((f.coalesce(one, f.lit(0)) for one in sizes), f.lit(0).cast("bigint"))
        reason = reason.when(size > record_bytes_max, TOO_LARGE)
        text = f.coalesce(corrupt, whole)
        return frame.select(*columns, *_bad(reason, text))

    def _apply_kafka(
        self, frame: DataFrame, record_bytes_max: int, *, keep_untimed: bool
    ) -> DataFrame:
        """Convert Kafka records: key, value, time and headers unchanged, and `PLACE`.

        `headers` may name columns of `PLACE`: they become headers after the record's own.
        """
        from pyspark.sql import functions as f

        named = {"value": self.value, "key": self.key, "timestamp": self.timestamp}
        if given := [name for name, column in named.items() if column is not None]:
            raise OptionError(
                f"{' and '.join(given)} cannot be chosen: a record of Kafka has its own. Only "
                f"headers take columns, of {', '.join(PLACE)}."
            )
        check_known("column of Kafka", self.headers, PLACE)
        headers = _own_headers()
        if self.headers:
            headers = f.concat(f.coalesce(headers, f.array()), _placed(self.headers))
        # Kafka has -1 for a record without a time.
        time = f.when(f.unix_micros(f.col("timestamp")) > 0, f.col("timestamp"))
        reason = f.when(f.lit(False), "")
        if not keep_untimed:
            reason = reason.when(time.isNull(), NO_TIME)
        reason = reason.when(f.unix_micros(time) / 1e6 > _SECONDS_MAX, NOT_IN_RANGE)
        sizes = [f.octet_length(f.col("key")), f.octet_length(f.col("value"))]
        sizes.append(_headers_size(headers))
        size = sum((f.coalesce(one, f.lit(0)) for one in sizes), f.lit(0).cast("bigint"))
        reason = reason.when(size > record_bytes_max, TOO_LARGE)
        where = f.concat_ws("/", *[f.col(name).cast("string") for name in PLACE])
        columns = [f.col("key"), f.col("value"), time.alias("timestamp"), headers.alias("headers")]
        bad = _bad(reason, f.col("value"), where)
        return frame.select(*columns, *bad, *[f.col(name) for name in PLACE])


def in_time_order(batch: DataFrame) -> DataFrame:
    """Merge the partitions of Kafka records by time, keeping the order of each partition."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if batch.rdd.getNumPartitions() > 1:
        before = Window.partitionBy("topic", "partition").orderBy("offset")
        newest = f.max("timestamp").over(before)
        batch = batch.withColumn("_newest", newest).orderBy("_newest", *PLACE).drop("_newest")
    return batch.drop(*PLACE)


def _own_headers() -> Column:
    """Return the headers of Kafka; a null value becomes empty."""
    from pyspark.sql import functions as f

    return f.transform(
        f.col("headers"),
        lambda pair: f.struct(
            pair["key"].alias("key"),
            f.coalesce(pair["value"], f.lit(b"")).alias("value"),
        ),
    )


def _placed(names: tuple[str, ...]) -> Column:
    from pyspark.sql import functions as f

    pairs = [
        f.struct(
            f.lit(f"kafka.{name}").alias("key"),
            f.col(name).cast("string").cast("binary").alias("value"),
        )
        for name in names
    ]
    return f.array(*pairs)


def _headers_size(headers: Column) -> Column:
    from pyspark.sql import functions as f

    return f.aggregate(
        headers,
        f.lit(0),
        lambda total, pair: (
            total
            + f.octet_length(pair["key"])
            + f.coalesce(f.octet_length(pair["value"]), f.lit(0))
        ),
    )


def _bad(reason: Column, text: Column, place: Column | None = None) -> list[Column]:
    from pyspark.sql import functions as f

    is_bad = reason.isNotNull()
    place = f.input_file_name() if place is None else place
    return [
        reason.cast("string").alias(REASON),
        f.when(is_bad, text.cast("string")).alias(TEXT),
        f.when(is_bad, place).alias(FILE),
    ]


def _bytes(name: str, kinds: Mapping[str, str]) -> Column:
    """Convert a column to bytes: unchanged, as text, or as JSON if it is a struct."""
    from pyspark.sql import functions as f

    column = f.col(f"`{name}`")
    if kinds[name] == "binary":
        return column
    if kinds[name].startswith(("struct", "array", "map")):
        return f.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def _time(name: str, kinds: Mapping[str, str]) -> Column:
    """Convert a column to times: times, ISO 8601 text, or seconds or milliseconds since 1970.

    Null where there is no time, or an unreadable one.
    """
    from pyspark.sql import functions as f

    column, kind = f.col(f"`{name}`"), kinds[name].partition("(")[0]
    if kind in _TIMES:
        return column.cast("timestamp")
    if kind not in (*_NUMBERS, "string"):
        raise OptionError(
            f"column {name!r} of {kinds[name]} is no time: give one of times, of text in ISO 8601, "
            "or of seconds or milliseconds since 1970"
        )
    number = column.try_cast("double")
    # Milliseconds are distinguished from seconds by their size, until the year 5138.
    since = f.when(number > 1e11, number / 1000).otherwise(number)
    numbered = since.try_cast("timestamp")
    # A column of numbers is text as soon as one of its rows is no number.
    return f.coalesce(column.try_cast("timestamp"), numbered) if kind == "string" else numbered


def _time_reason(
    reason: Column, name: str, kinds: Mapping[str, str], time: Column, *, keep_untimed: bool
) -> Column:
    from pyspark.sql import functions as f

    column = f.col(f"`{name}`")
    is_empty = column.isNull()
    if kinds[name] == "string":
        is_empty |= f.trim(column) == ""
    if not keep_untimed:
        reason = reason.when(is_empty, NO_TIME)
    reason = reason.when(~is_empty & time.isNull(), NOT_A_TIME)
    seconds = f.unix_micros(time) / 1e6
    # A record without a time is stored as 1970 on its way to a segment.
    return reason.when((seconds <= 0) | (seconds > _SECONDS_MAX), NOT_IN_RANGE)

"""Import: files of Parquet, CSV or JSON lines, or a Kafka topic, into a topic; each row once.

A stream over what is there: Spark's checkpoint knows which files, or which offsets of Kafka, it has
come to. Executors stage what they read, one manifest per batch of files has it adopted, known by
the stream and the number of the batch: one that is done again after a crash is adopted once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from stratalog.errors import NotAStoreError, OptionError
from stratalog.format.manifest import StagedSegment
from stratalog.format.names import check_topic_name, pipeline_path
from stratalog.fs import PosixFileSystem
from stratalog.options import check_known
from stratalog.segments.stage import StageWriter, append_part
from stratalog.spark.session import use
from stratalog.spark.staging import local_root, publish
from stratalog.view import View

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json", "kafka")
_ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json",
    ".ndjson": "json",
}  # fmt: skip

# What is lost of the work when an import is cut short.
_FILES_PER_BATCH = 64
_SEGMENT_BYTES_MAX = 64 << 20

_QUERY = "sql.streaming.queryId"


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run imported."""

    path: str
    source: str
    format: str
    topic: str
    records: int
    batches: int
    duration: float


def import_from(
    path: str | os.PathLike[str],
    source: str | os.PathLike[str],
    topic: str,
    *,
    format: str | None = None,
    value: str | None = None,
    key: str | None = None,
    timestamp: str | None = None,
    headers: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
) -> ImportReport:
    """Append the rows of files to a topic: those that no run before has imported.

    `source` is a file, a directory, a pattern, or `kafka://host:port/topic`; `format` follows from
    its name where it can. `value`, `key`, `timestamp` and `headers` name columns; without `value`
    it is the whole row as JSON. With `timestamp` the rows of a batch are put in order of it first,
    because times never go back within a topic. `options` are those of Spark's reader.
    `checkpoint` is where Spark notes how far it is; in the store, if not given.
    """
    begin = time.perf_counter()
    root = local_root(path)
    check_topic_name(topic)
    place = os.fspath(source)
    kind = _format(place, format)
    if "://" not in place:
        place = os.path.abspath(place)
    _check_store(root)
    mapping = _Mapping(kind, value, key, timestamp, tuple(headers))
    state = os.fspath(checkpoint) if checkpoint else _state(root, place, topic, mapping)
    records = batches = 0
    failures: list[Exception] = []
    with use(spark, master) as session:
        read = _stream(session, place, kind, dict(options or {}))
        rows = mapping.apply(read)

        def take_in(batch: DataFrame, number: int) -> None:
            nonlocal records, batches
            ordered = batch if timestamp is None else batch.orderBy("timestamp")
            try:
                made = stage_rows(ordered, root)
                if made is None:
                    return
                query, staged = made
                if publish(root, f"import-{query}", number, [append_part(topic, staged)]):
                    records += sum(one.records for one in staged)
                    batches += 1
            except Exception as error:
                failures.append(error)  # Spark would make a text of it
                raise

        query = (
            rows.writeStream.foreachBatch(take_in)
            .option("checkpointLocation", state if "://" in state else f"file://{state}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception:
            if failures:
                raise failures[0] from None
            raise
        finally:
            query.stop()
    return ImportReport(
        path=root, source=place, format=kind, topic=topic, records=records, batches=batches,
        duration=time.perf_counter() - begin,
    )  # fmt: skip


def _format(source: str, given: str | None) -> str:
    if given is not None:
        check_known("format", [given], FORMATS)
        return given
    if source.startswith("kafka://"):
        return "kafka"
    ending = os.path.splitext(source.rstrip("/").removesuffix(".gz"))[1].lower()
    if ending not in _ENDINGS:
        raise OptionError(
            f"what is in {source!r} cannot be told from its name: give format, one of "
            f"{', '.join(FORMATS)}"
        )
    return _ENDINGS[ending]


def _check_store(root: str) -> None:
    """Raise unless there is a store: an import creates topics, and nothing else."""
    if "store" not in PosixFileSystem().listdir(root):
        raise NotAStoreError(
            f"{root} is not a Stratalog store: check the path, or create one with "
            "stratalog.open(path)"
        )
    View(PosixFileSystem(), root).close()


def _state(root: str, source: str, topic: str, mapping: _Mapping) -> str:
    """Where Spark notes how far an import is: the same for the same import."""
    text = msgspec.json.encode([source, topic, msgspec.to_builtins(mapping)])
    return pipeline_path(root, f"import-{xxh3_64_hexdigest(text)}")


class _Mapping(msgspec.Struct, frozen=True):
    """Which columns become what of a record."""

    format: str
    value: str | None
    key: str | None
    timestamp: str | None
    headers: tuple[str, ...]

    def apply(self, frame: DataFrame) -> DataFrame:
        """Rows as records."""
        from pyspark.sql import functions as f

        if self.format == "kafka":
            return frame.select("key", "value", "timestamp", "headers")
        named = [name for name in (self.value, self.key, self.timestamp) if name is not None]
        check_known("column", [*named, *self.headers], frame.columns)
        kinds = dict(frame.dtypes)
        whole = f.to_json(f.struct(*[f.col(f"`{name}`") for name in frame.columns]))
        chosen = whole.cast("binary") if self.value is None else _bytes(self.value, kinds)
        columns = [chosen.alias("value")]
        if self.key is not None:
            columns.append(_bytes(self.key, kinds).alias("key"))
        if self.timestamp is not None:
            columns.append(_time(self.timestamp, kinds).alias("timestamp"))
        if self.headers:
            pairs = [
                f.struct(f.lit(name).alias("key"), _bytes(name, kinds).alias("value"))
                for name in self.headers
            ]
            there = f.filter(f.array(*pairs), lambda pair: pair["value"].isNotNull())
            columns.append(there.alias("headers"))
        return frame.select(*columns)


def _bytes(name: str, kinds: Mapping[str, str]) -> Column:
    """A column as bytes: as they are, as text, or as JSON if it has columns of its own."""
    from pyspark.sql import functions as f

    column = f.col(f"`{name}`")
    if kinds[name] == "binary":
        return column
    if kinds[name].startswith(("struct", "array", "map")):
        return f.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def _time(name: str, kinds: Mapping[str, str]) -> Column:
    """A column as a time: one already, text in ISO 8601, or seconds or milliseconds since 1970."""
    from pyspark.sql import functions as f

    column = f.col(f"`{name}`")
    if kinds[name] in ("timestamp", "date", "timestamp_ntz", "string"):
        return column.cast("timestamp")
    number = column.cast("double")
    # Milliseconds are told from seconds by their size, until the year 5138.
    return f.when(number > 1e11, number / 1000).otherwise(number).cast("timestamp")


def _stream(spark: SparkSession, source: str, kind: str, options: dict[str, str]) -> DataFrame:
    """What is to be read, as a stream."""
    if kind == "kafka":
        return _kafka(spark, source, options)
    if kind == "csv":
        options = {"header": "true", "inferSchema": "true"} | options
        if source.endswith(".tsv"):
            options = {"sep": "\t"} | options
    if "://" not in source and _is_file(source):
        source = _pattern(source)
    from pyspark.errors import AnalysisException

    try:
        found = spark.read.format(kind).options(**options).load(source)
    except AnalysisException as error:  # not there, or nothing in it to tell columns from
        raise OptionError(f"cannot read {source}: {str(error).splitlines()[0]}") from error
    reader = spark.readStream.format(kind).schema(found.schema).options(**options)
    reader = reader.option("maxFilesPerTrigger", _FILES_PER_BATCH)
    # However old the files are: by default those older than a week behind the newest are left out.
    return reader.option("maxFileAge", "36500d").load(source)


def _pattern(path: str) -> str:
    """A pattern that one file alone matches: a stream takes a directory or a pattern."""
    directory, name = os.path.split(re.sub(r"([*?{}\[\]\\])", r"\\\1", path))
    return os.path.join(directory, f"[{name[0]}]{name[1:]}" if name[0] != "\\" else name)


def _is_file(path: str) -> bool:
    try:
        PosixFileSystem().listdir(path)
    except NotADirectoryError:
        return True
    return False


def _kafka(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    servers, _, name = source.removeprefix("kafka://").partition("/")
    if not (servers and name):
        raise OptionError(f"{source!r} names no topic: write kafka://host:port/topic")
    defaults = {
        "kafka.bootstrap.servers": servers, "subscribe": name, "startingOffsets": "earliest",
        "includeHeaders": "true",
    }  # fmt: skip
    from pyspark.errors import AnalysisException

    try:
        return spark.readStream.format("kafka").options(**(defaults | options)).load()
    except AnalysisException as error:
        import pyspark

        raise OptionError(
            "this Spark has no Kafka source: start it with --packages org.apache.spark:"
            f"spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        ) from error


def stage_rows(rows: DataFrame, root: str) -> tuple[str, list[StagedSegment]] | None:
    """Have rows staged by executors; returns the id of the stream and the segments, in order."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return stage_batches(batches, root)

    made = rows.mapInArrow(stage, "query string, part long, segment binary").collect()
    if not made:
        return None
    segments = [
        msgspec.msgpack.decode(bytes(row["segment"]), type=StagedSegment)
        for row in sorted(made, key=lambda row: row["part"])
    ]
    (query,) = {row["query"] for row in made}
    return query, segments


def stage_batches(batches: Iterable[pa.RecordBatch], root: str) -> Iterator[pa.RecordBatch]:
    """Stage the rows of one task, in segments that are not too large; on an executor."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    staged: list[StagedSegment] = []
    writer: StageWriter | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            writer = StageWriter(PosixFileSystem(), root) if writer is None else writer
            writer.write(batch)
            if writer.bytes >= _SEGMENT_BYTES_MAX:
                staged += [one for one in [writer.finish()] if one is not None]
                writer = None
        if writer is not None:
            staged += [one for one in [writer.finish()] if one is not None]
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
    rows = [
        {
            "query": context.getLocalProperty(_QUERY),
            "part": (context.partitionId() << 32) + number,
            "segment": msgspec.msgpack.encode(one),
        }
        for number, one in enumerate(staged)
    ]
    kinds = pa.schema([("query", pa.string()), ("part", pa.int64()), ("segment", pa.binary())])
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=kinds)

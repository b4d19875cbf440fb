"""Import: Parquet, CSV or JSON-lines files, or a Kafka topic, into a topic; each row once.

A stream over existing data: Spark's checkpoint knows which files, or which Kafka offsets, it has
processed. Executors stage what they read, and one manifest per batch of files has it adopted,
identified by the stream and the number of the batch: a batch repeated after a crash is adopted
once.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_hexdigest

from stratalog.errors import NotAStoreError, OptionError, StratalogError
from stratalog.format.names import check_topic_name, pipeline_path
from stratalog.fs import PosixFileSystem
from stratalog.options import StoreOptions, check_known
from stratalog.segments.staging import append_part, discard
from stratalog.spark.jobs.row_mapping import CORRUPT, RowMapping, in_time_order
from stratalog.spark.jobs.row_staging import Counts, stage_rows
from stratalog.spark.jobs.stage_segments import local_root, publish
from stratalog.spark.session import use
from stratalog.spark.spark_errors import is_spark_error, spark_sentence
from stratalog.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json", "kafka")
_ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json",
    ".ndjson": "json",
}  # fmt: skip

# The work that is lost when an import is interrupted.
_FILES_PER_BATCH = 64
_OFFSETS_PER_BATCH = 10_000_000
_CONNECT_SECONDS = 10.0

BAD_ROWS = ("refuse", "skip", "aside")
"""Ways to treat rows that cannot become records."""
WITHOUT_TIME = ("bad", "now")
"""Ways to treat rows whose time column is empty."""

_MODES = ("permissive", "dropmalformed", "failfast")
"""Modes of Spark's readers for rows that cannot be parsed; Spark takes any other for the first."""

# What Spark reports when it cannot read a file.
_READ_FAILED = re.compile(
    r"FAILED_READ_FILE|CSV header|Permission denied|PATH_NOT_FOUND|kafka\.common\.errors"
)


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    path: str
    source: str
    format: str
    topic: str
    records: int
    batches: int
    bad: int
    """Rows that could not become records: left out, or set aside in the topic `<topic>.bad`."""
    bad_reasons: dict[str, int]
    """Their number by reason."""
    without_time: int
    """Imported records whose time column was empty: they have the time of the
    import."""
    late: int
    """Imported records that were older than the newest in the topic: they have the time of that
    one, because times never go backwards within a topic."""
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
    bad_rows: str = "refuse",
    without_time: str = "bad",
    spark: SparkSession | None = None,
    master: str | None = None,
) -> ImportReport:
    """Append the rows of files to a topic: those that no earlier run has imported.

    `source` is a file, a directory, a pattern, or `kafka://host:port/topic`; `format` follows from
    its name where possible. `value`, `key`, `timestamp` and `headers` name columns; without `value`
    it is the whole row as JSON. With `timestamp` the rows of a batch are sorted by it first,
    because times never go backwards within a topic. `options` are those of Spark's reader.
    `checkpoint` is where Spark keeps its progress; by default, in the store.

    A row is bad if it cannot be parsed, if it is larger than a record may be, or if its time is
    missing, cannot be read, or lies before 1970 or after 2230. `bad_rows` decides about such rows:
    `refuse` imports nothing of a batch of files that has one, and raises; `skip` leaves them out;
    `aside` appends them to the topic `<topic>.bad`, each with its reason and its file as headers.
    `without_time="now"` gives the time of the import to rows without a time instead. The report
    counts all of them.
    """
    begin = time.perf_counter()
    root = local_root(path)
    check_topic_name(topic)
    check_known("bad_rows", [bad_rows], BAD_ROWS)
    check_known("without_time", [without_time], WITHOUT_TIME)
    aside = check_topic_name(f"{topic}.bad") if bad_rows == "aside" else None
    place = os.fspath(source)
    kind = _format(place, format)
    if "://" not in place:
        place = os.path.abspath(place)
    _check_store(root)
    mapping = RowMapping(kind, value, key, timestamp, tuple(headers))
    state = os.fspath(checkpoint) if checkpoint else _state(root, place, topic, mapping)
    total = Counts()
    batches = 0
    failures: list[Exception] = []
    bytes_max = StoreOptions.build({}).record_bytes_max
    with use(spark, master) as session:
        read = _stream(session, place, kind, dict(options or {}))
        rows = mapping.apply(read, bytes_max, keep_untimed=without_time == "now")

        def take_in(batch: DataFrame, number: int) -> None:
            nonlocal batches
            from pyspark.sql import functions as f

            if kind == "kafka":
                ordered = in_time_order(batch)
            elif timestamp is None:
                ordered = batch
            else:  # rows without a time come last: those that have one keep it
                ordered = batch.orderBy(f.asc_nulls_last("timestamp"))
            floor = _newest_time(root, topic)
            try:
                made = stage_rows(ordered, root, floor, bytes_max, keep_bad=aside is not None)
                if made is None:
                    return
                query, counts, staged, bad = made
                if counts.bad and bad_rows == "refuse":
                    discard(PosixFileSystem(), root, staged)
                    raise _refused(place, counts, total.records)
                parts = [append_part(topic, staged)] if staged else []
                if aside is not None and bad:
                    parts.append(append_part(aside, bad))
                if not parts:
                    total.add(counts)
                elif publish(root, f"import-{query}", number, parts):
                    total.add(counts)
                    batches += bool(staged)
            except Exception as error:
                failures.append(error)  # Spark would turn it into text
                raise

        query = (
            rows.writeStream.foreachBatch(take_in)
            .option("checkpointLocation", state if "://" in state else f"file://{state}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            raise _explained(failures[0] if failures else error, place) from None
        finally:
            query.stop()
    return ImportReport(
        path=root, source=place, format=kind, topic=topic, records=total.records, batches=batches,
        bad=total.bad, bad_reasons=total.reasons, without_time=total.untimed, late=total.late,
        duration=time.perf_counter() - begin,
    )  # fmt: skip


def _refused(source: str, counts: Counts, imported: int) -> OptionError:
    """Build the error with the number of bad rows, the reasons, and an example."""
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in counts.reasons.items())
    before = f"; {imported:,} records of files before it were" if imported else ""
    return OptionError(
        f"{counts.bad:,} of {counts.bad + counts.records:,} rows in {source} cannot become "
        f"records: {reasons}. One of them: {counts.example}. Nothing of this batch of files was "
        f"imported{before}. Mend them, or leave them out with bad_rows='skip' (--bad-rows skip), "
        "or set them aside in a topic with bad_rows='aside'. Rows without a time may have the time "
        "of the import with without_time='now' (--without-time now)."
    )


def _explained(error: Exception, source: str) -> Exception:
    """Reduce a Spark error about reading its input to a sentence; return any other unchanged."""
    if isinstance(error, StratalogError) or not _READ_FAILED.search(str(error)):
        return error
    return OptionError(f"cannot read {source}: {spark_sentence(error)}")


def _newest_time(root: str, topic: str) -> int:
    view = View(PosixFileSystem(), root)
    try:
        found = view.catalog.get(topic)
        return 0 if found is None else found.last_timestamp
    finally:
        view.close()


def _format(source: str, given: str | None) -> str:
    if given is not None:
        check_known("format", [given], FORMATS)
        return given
    if source.startswith("kafka://"):
        return "kafka"
    ending = os.path.splitext(source.rstrip("/").removesuffix(".gz"))[1].lower()
    if ending not in _ENDINGS:
        raise OptionError(
            f"the format of {source!r} does not follow from its name: give format, one of "
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


def _state(root: str, source: str, topic: str, mapping: RowMapping) -> str:
    """Return where Spark keeps the progress of an import: equal for equal imports."""
    text = msgspec.json.encode([source, topic, msgspec.to_builtins(mapping)])
    return pipeline_path(root, f"import-{xxh3_64_hexdigest(text)}")


def _stream(spark: SparkSession, source: str, kind: str, options: dict[str, str]) -> DataFrame:
    """Open the source as a stream."""
    if kind == "kafka":
        return _kafka(spark, source, options)
    if kind == "csv":
        # Without enforceSchema, Spark detects a file whose columns are in another order.
        defaults = {"header": "true", "inferSchema": "true", "enforceSchema": "false"}
        options = defaults | options
        if source.endswith(".tsv"):
            options = {"sep": "\t"} | options
    if "://" not in source and _is_file(source):
        source = _pattern(source)
    modes = [setting.lower() for name, setting in options.items() if name.lower() == "mode"]
    check_known("mode", modes, _MODES)
    is_watched = kind in ("csv", "json") and modes in ([], ["permissive"])
    if is_watched:
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    try:
        found = spark.read.format(kind).options(**options).load(source)
    except Exception as error:  # missing, or nothing in it to infer columns from
        if not is_spark_error(error):
            raise
        raise OptionError(f"cannot read {source}: {spark_sentence(error)}") from error
    schema = found.schema
    if is_watched and CORRUPT not in schema.names:
        schema = schema.add(CORRUPT, "string")
    reader = spark.readStream.format(kind).schema(schema).options(**options)
    reader = reader.option("maxFilesPerTrigger", _FILES_PER_BATCH)
    # However old: by default files more than a week older than the newest are ignored.
    return reader.option("maxFileAge", "36500d").load(source)


def _pattern(path: str) -> str:
    """Build a pattern that matches one file: a stream takes a directory or a pattern."""
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
        "includeHeaders": "true", "maxOffsetsPerTrigger": str(_OFFSETS_PER_BATCH),
        # By default Spark also reads records of aborted transactions.
        "kafka.isolation.level": "read_committed",
    }  # fmt: skip
    from pyspark.errors import AnalysisException

    try:
        found = spark.readStream.format("kafka").options(**(defaults | options)).load()
    except AnalysisException as error:
        import pyspark

        raise OptionError(
            "this Spark has no Kafka source: start it with --packages org.apache.spark:"
            f"spark-sql-kafka-0-10_2.13:{pyspark.__version__}. For the command line, set "
            "PYSPARK_SUBMIT_ARGS='--packages ... pyspark-shell'."
        ) from error
    _check_broker(servers)
    return found


def _check_broker(servers: str) -> None:
    """Raise if no broker answers: Spark would try for minutes."""
    failed = []
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        if not (host and port.isdigit()):
            raise OptionError(f"{server!r} is no server of Kafka: write host:port")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
                return
        except (OSError, OverflowError) as error:
            failed.append(f"{server} ({error})")
    raise OptionError(f"no broker of Kafka answers at {', '.join(failed)}")

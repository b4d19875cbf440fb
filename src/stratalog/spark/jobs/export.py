"""Export: topics as tables of a lake, by topic and day, incrementally with every run.

Executors write Parquet files, each named by its offsets, following a plan that was written before
(see `ledger`). Readers need nothing of ours: simple files, or tables of Delta Lake or Iceberg that
list them.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from stratalog.errors import OptionError
from stratalog.spark.jobs.day_files import (
    COLUMNS,
    REPORT,
    ExportWork,
    export_unit,
    read_unit,
    write_parsed,
)
from stratalog.spark.jobs.destination import Lake, open_lake
from stratalog.spark.jobs.lake_tables import TABLES, Table, open_table
from stratalog.spark.jobs.ledger import Commit, ExportFile, ExportUnit, Ledger, Plan, check_same
from stratalog.spark.jobs.work import cores, run, watch
from stratalog.spark.session import use
from stratalog.spark.source.plan import Range, check_floor, cut_span, open_view, spans_of, task_of
from stratalog.spark.source.read_options import ReadOptions
from stratalog.tools.report import Progress
from stratalog.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMATS = ("parquet", *TABLES)

# A unit becomes a file for each of its days, which is built in memory.
_UNIT_BYTES_MAX = 256 << 20
_UNIT_BYTES_MIN = 4 << 20


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    path: str
    destination: str
    format: str
    rounds: int
    """Rounds of this run: one; two if an earlier run was interrupted; none if nothing was new."""
    records: int
    bytes: int
    files: int
    bad: int
    """Values that the schema could not parse; they are in the column `_corrupt`."""
    topics: dict[str, int]
    """Records by topic."""
    duration: float


def export(
    path: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    topics: str = "*",
    format: str = "parquet",
    schema: str | None = None,
    fail_on_data_loss: bool = True,
    spark: SparkSession | None = None,
    master: str | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Export records that are new since the last run; each once, however runs are interrupted.

    `format` is `parquet`, `delta` or `iceberg`. `schema` describes values that are JSON, such as
    `id long, amount double`: they become columns in place of `value`, and values that cannot be
    parsed go to `_corrupt`. Records that retention evicted before they were exported are an error,
    unless `fail_on_data_loss=False`.
    """
    begin = time.perf_counter()
    if format not in FORMATS:
        raise OptionError(f"format={format!r} is not known: use one of {', '.join(FORMATS)}")
    lake = open_lake(os.fspath(destination))
    options = ReadOptions.parse(
        {
            "path": os.fspath(path), "topic": topics,
            "failOnDataLoss": str(fail_on_data_loss).lower(),
        }
    )  # fmt: skip
    with use(spark, master) as session:
        table = open_table(format, lake.location)
        lock = lake.lock()
        try:
            job = _Export(session, options, lake, table, format, schema, progress)
            commits = list(job.rounds())
        finally:
            if lock is not None:
                lock.close()
    by_topic: dict[str, int] = {}
    files = [file for commit in commits for file in commit.files]
    for file in files:
        by_topic[file.topic] = by_topic.get(file.topic, 0) + file.records
    return ExportReport(
        path=options.path,
        destination=lake.location,
        format=format,
        rounds=len(commits),
        records=sum(by_topic.values()),
        bytes=sum(file.bytes for file in files),
        files=len(files),
        bad=sum(commit.bad for commit in commits),
        topics=dict(sorted(by_topic.items())),
        duration=time.perf_counter() - begin,
    )


class _Export:
    def __init__(
        self, spark: SparkSession, options: ReadOptions, lake: Lake, table: Table | None,
        format: str, schema: str | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._options = options
        self._lake = lake
        self._table = table
        self._format = format
        self._schema = None if schema is None else _check_schema(spark, schema)
        self._progress = progress
        self._ledger = Ledger(lake)

    def rounds(self) -> Iterator[Commit]:
        """Give the rest of an interrupted run, then what is new."""
        last = self._ledger.last()
        with open_view(self._options) as view:
            view.listen()
            store = view.store_file.identity.hex()
            if last is not None:
                check_same(last, store, self._format, self._schema)
            pending = self._ledger.pending(0 if last is None else last.number + 1)
            if pending is not None:
                check_same(pending, store, self._format, self._schema)
                last = self._round(view, pending, last)
                yield last
            plan = self._plan(view, store, last)
            if plan.units:
                self._ledger.plan(plan)
                yield self._round(view, plan, last)

    def _plan(self, view: View, store: str, last: Commit | None) -> Plan:
        ends = {} if last is None else last.ends
        options = self._options
        spans = []
        for name in options.topics.choose(view.catalog, may_miss=True):
            topic = view.catalog.find(name)
            if topic.is_ephemeral:
                continue
            start = ends.get(str(topic.id), topic.earliest)
            start = check_floor(topic, start, topic.committed, options)
            spans += list(spans_of(Range(topic, start, topic.committed)))
        total = sum(span.size for span in spans)
        size = min(max(total // (cores(self._spark) * 3), _UNIT_BYTES_MIN), _UNIT_BYTES_MAX)
        units: list[ExportUnit] = []
        room = 0
        for span in spans:
            rest = span
            while True:
                name, id = rest.topic.name, rest.topic.id
                is_next = bool(units) and units[-1].topic_id == id and units[-1].end == rest.start
                limit = room if is_next and room > size // 16 else size
                one, more = (rest, None) if rest.size <= limit else cut_span(rest, limit)
                if is_next and limit == room:
                    units[-1] = ExportUnit(name, id, units[-1].start, one.end)
                    room -= one.size
                else:
                    units.append(ExportUnit(name, id, one.start, one.end))
                    room = size - one.size
                if more is None:
                    break
                rest = more
        return Plan(
            number=0 if last is None else last.number + 1, store=store, format=self._format,
            schema=self._schema, made_at=time.time_ns(), units=units,
        )  # fmt: skip

    def _round(self, view: View, plan: Plan, last: Commit | None) -> Commit:
        works = self._works(view, plan)
        files, bad = self._write(works)
        ends = {} if last is None else dict(last.ends)
        for unit in plan.units:
            ends[str(unit.topic_id)] = max(unit.end, ends.get(str(unit.topic_id), 0))
        commit = Commit(
            number=plan.number, store=plan.store, format=plan.format, schema=plan.schema, ends=ends,
            files=files, bad=bad,
        )  # fmt: skip
        if self._table is not None and files:
            self._table.add(plan.store, plan.number, files, self._lake)
        self._ledger.commit(commit)
        return commit

    def _works(self, view: View, plan: Plan) -> list[ExportWork]:
        """Plan the reads of each unit; nothing for a topic that was dropped since."""
        works = []
        for unit in plan.units:
            topic = view.replay.topics.get(unit.topic_id)
            if topic is None:
                continue
            start = check_floor(topic, unit.start, unit.end, self._options)
            spans = list(spans_of(Range(topic, start, unit.end))) if start < unit.end else []
            # Expiry is fixed at the time of the plan: all attempts give the same result.
            task = task_of(view, spans, self._options, plan.made_at)
            has_topic = self._table is not None and self._table.has_topic
            works.append(ExportWork(unit, task, self._lake.location, has_topic))
        return works

    def _write(self, works: list[ExportWork]) -> tuple[list[ExportFile], int]:
        sizes = [sum(piece.size for piece in work.task.pieces) for work in works]
        total = sum(sizes)
        progress = self._progress
        if self._schema is None:
            done = None if progress is None else lambda n: progress(n, total, "exporting")
            found = run(self._spark, export_unit, works, sizes, done)
            return [file for files in found for file in files], 0

        def share(part: float) -> None:
            if progress is not None:
                progress(round(total * part), total, "exporting")

        return self._write_parsed(works, share)

    def _write_parsed(
        self, works: list[ExportWork], share: Callable[[float], None]
    ) -> tuple[list[ExportFile], int]:
        """Export with values parsed by Spark, between reading and writing in Python."""
        from pyspark.sql import functions as f

        names = ", ".join(f"{name} {_TYPES[name]}" for name in works[0].columns) if works else ""
        if not works:
            return [], 0
        numbers = self._spark.range(0, len(works), 1, len(works))

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for part in read_unit(works[number]):
                        unit = pa.repeat(pa.scalar(number, pa.int64()), part.num_rows)
                        yield pa.RecordBatch.from_arrays(
                            [unit, *part.columns], names=["unit", *part.schema.names]
                        )

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_parsed(batches, works, msgspec.json.encode)

        rows = numbers.mapInArrow(read, f"unit long, {names}")
        modes = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
        parsed = f.from_json(
            f.col("value").cast("string"), f"{self._schema}, _corrupt string", modes
        )
        kept = [name for name in works[0].columns if name != "value"]
        table = rows.withColumn("_parsed", parsed).select("unit", *kept, "_parsed.*")
        made = table.mapInArrow(write, "unit long, bad long, files binary")
        found = sorted(watch(self._spark, made.collect, share))
        files = [
            file
            for row in found
            for file in msgspec.json.decode(bytes(row["files"]), type=list[ExportFile])
        ]
        return files, sum(row["bad"] for row in found)


_TYPES = {
    "topic": "string", "offset": "long", "timestamp": "timestamp", "key": "binary",
    "value": "binary", "headers": "array<struct<key: string, value: binary>>", "tag": "string",
    "node": "string",
}  # fmt: skip
assert set(COLUMNS) <= set(_TYPES)
assert REPORT.names == ["unit", "bad", "files"]


def _check_schema(spark: SparkSession, schema: str) -> str:
    """Normalise a schema by Spark; raises if its columns clash with ours."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        fields = StructType.fromDDL(schema).fields  # type: ignore[attr-defined]
    except (ParseException, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise OptionError(
            f"schema={schema!r} is not one: write names and types, such as 'id long, amount "
            f"double' ({first})"
        ) from error
    taken = {"topic", "day", "unit", "_corrupt", *COLUMNS} - {"value"}
    clash = sorted(field.name for field in fields if field.name.lower() in taken)
    if clash:
        raise OptionError(
            f"the schema has columns that every export has already: {', '.join(clash)}; read the "
            "values without a schema to have them under other names"
        )
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)

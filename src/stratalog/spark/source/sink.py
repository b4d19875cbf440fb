"""DataFrames into topics: each task stages segments, the driver publishes them as one batch.

Tasks write whole segments beside the store's writer and need no lock. The driver publishes one
manifest, and waits until the store has adopted it: then every record of the DataFrame is in the
store, in all of its topics, or none is.

A stream's batches are identified by the id of its query, which its checkpoint keeps, and their
number: a batch that is written again after a crash is adopted once. A batch write has no identity,
unless it is given one with `writerId` and `batchId`.

A table is written in the same way: each row puts the value of a key, or deletes the key.

Crash: the store's writer removes staged segments that were not published after a day. Published
ones are adopted by the next process that opens the store.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog.errors import OptionError, PressureError
from stratalog.format.manifest import StagedSegment
from stratalog.format.names import check_topic_name
from stratalog.fs import PosixFileSystem
from stratalog.handles.publish import Publisher, ensure_store
from stratalog.options import TopicOptions
from stratalog.segments.staging import StageWriter, append_part, manifest_of, upsert_part
from stratalog.spark.ship import Shipped
from stratalog.spark.source.features import (
    HAS_ARROW_STREAM_WRITER,
    StreamWriterBase,
    rows_to_batches,
)
from stratalog.spark.source.write_options import WriteOptions, check_columns
from stratalog.state.table_projection import BYTES_TAG

_QUERY = "sql.streaming.queryId"
"""Task property with the id of the query, which survives a restart."""


@dataclasses.dataclass
class StagedByTask(WriterCommitMessage):
    """The segments that one task has staged."""

    segments: list[tuple[str, StagedSegment]]
    """Segments with their topics, in order."""
    query: str
    """The id of the streaming query; empty without one."""


def batch_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """Build the writer for `df.write.format("stratalog")`."""
    given = WriteOptions.parse(options)
    if overwrite and given.table is not None:
        raise OptionError(
            "A table is changed key by key: write with mode('append'). To begin again, drop it "
            "with store.drop_table() first."
        )
    if overwrite:
        raise OptionError(
            "a topic can only be appended to: write with mode('append'); to begin again, drop the "
            "topic with store.drop_topic() first"
        )
    check_columns(schema, given)
    ensure_store(given.path)
    return BatchWriter(given)


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> StreamWriterBase:
    """Build the writer for `df.writeStream.format("stratalog")`."""
    given = WriteOptions.parse(options, is_stream=True)
    # A query in complete mode gives all rows each time: to a table that is every key again.
    if overwrite and given.table is None:
        raise OptionError("a topic can only be appended to: write with outputMode('append')")
    check_columns(schema, given)
    ensure_store(given.path)
    return StreamWriter(given, schema)


class BatchWriter(Shipped, DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._writer = options.writer or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return _stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what all tasks have staged, and wait until it is adopted."""
        _commit(self._options, self._writer, self._options.batch, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave everything: published segments may be adopted by now, the rest is removed later."""


class StreamWriter(Shipped, StreamWriterBase):
    """The micro-batches of a query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage what one task has."""
        if not HAS_ARROW_STREAM_WRITER:
            iterator = rows_to_batches(iterator, self._schema)
        return _stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what all tasks have staged, once, and wait until it is adopted."""
        queries = {one.query for one in messages if isinstance(one, StagedByTask)}
        query = next(iter(queries)) if len(queries) == 1 else ""
        if not query:
            raise OptionError(
                "Spark does not say which query this batch is of, so that it could not be told "
                "from another: write with foreachBatch, and options writerId and batchId"
            )
        _commit(self._options, f"spark-query-{query}", batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave everything: published segments may be adopted by now, the rest is removed later."""


def _commit(
    options: WriteOptions,
    writer: str,
    batch: int | None,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    by_topic: dict[str, list[StagedSegment]] = {}
    for message in messages:
        if isinstance(message, StagedByTask):
            for topic, staged in message.segments:
                by_topic.setdefault(topic, []).append(staged)
    if not by_topic:
        return  # an empty batch has nothing to publish
    part = append_part if options.table is None else upsert_part
    parts = [part(topic, segments) for topic, segments in by_topic.items()]
    manifest = manifest_of(writer, batch, parts)
    with Publisher(options.path) as publisher:
        publisher.publish(manifest)  # returns False for a batch that is written again
        if not publisher.adopt_now(writer, manifest.batch, options.adopt_timeout):
            raise PressureError(
                f"{options.path} has not adopted what was written within "
                f"{options.adopt_timeout:g} seconds: is the program that has it open stuck, or is "
                "it an older release? The data is published, and will be adopted as soon as that "
                "program gets to it or the store is opened: do not write it again. To wait longer, "
                "raise adoptTimeoutSeconds."
            )


def _stage(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> StagedByTask:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(_QUERY)
    stage = _TaskStage(options)
    try:
        for batch in batches:
            stage.write(batch)
        return StagedByTask(stage.finish(), query or "")
    except BaseException:
        stage.abandon()
        raise


# Bytes after which writeback is started: the end of a task then waits for at most this much.
_SYNC_BYTES = 16 << 20


class _TaskStage:
    """The segments of one task: one per topic at a time.

    A separate thread syncs and seals them: that takes half as long as writing them, and Spark goes
    on meanwhile.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._fs = PosixFileSystem()
        self._bytes_max = TopicOptions().segment_bytes
        self._writers: dict[str, StageWriter] = {}
        self._done: list[tuple[str, Future[StagedSegment | None]]] = []
        self._syncs: list[Future[None]] = []
        self._sealer = ThreadPoolExecutor(1, "stratalog-seal")

    def write(self, batch: pa.RecordBatch) -> None:
        """Stage a batch, each record for its topic."""
        if self._options.table is not None:
            self._add(self._options.table, _changes(batch))
            return
        if self._options.topic is not None:
            self._add(self._options.topic, batch)
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise OptionError("column 'topic' has nulls: every record needs the name of its topic")
        names = pc.unique(topics).to_pylist()
        for name in names:
            some = batch if len(names) == 1 else batch.filter(pc.equal(topics, name))
            self._add(check_topic_name(name), some)

    def _add(self, topic: str, batch: pa.RecordBatch) -> None:
        writer = self._writers.get(topic)
        if writer is None:
            writer = self._writers[topic] = StageWriter(
                self._fs,
                self._options.path,
                compression=self._options.compression,
                record_bytes_max=self._options.record_bytes_max,
            )
        writer.write(batch)
        if writer.bytes >= self._bytes_max:
            self._finish(topic)
        elif writer.unsynced >= _SYNC_BYTES:
            self._syncs.append(self._sealer.submit(writer.begin_sync()))

    def _finish(self, topic: str) -> None:
        writer = self._writers.pop(topic)
        self._done.append((topic, self._sealer.submit(writer.finish)))

    def finish(self) -> list[tuple[str, StagedSegment]]:
        """Make everything durable; returns the staged segments."""
        for topic in list(self._writers):
            self._finish(topic)
        for sync in self._syncs:
            sync.result()
        found = [(topic, sealed.result()) for topic, sealed in self._done]
        self._sealer.shutdown()
        return [(topic, staged) for topic, staged in found if staged is not None]

    def abandon(self) -> None:
        """Remove everything half-written."""
        self._sealer.shutdown()
        for writer in self._writers.values():
            writer.abandon()


def _changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make records of a table from rows: keys that are not text are marked, as `put` does it."""
    keys, values = batch.column("key"), batch.column("value")
    if keys.null_count:
        raise OptionError("Column 'key' has nulls. Every row of a table needs its key.")
    columns = {name: batch.column(name) for name in batch.schema.names if name != "version"}
    if not pa.types.is_string(keys.type) and not pa.types.is_large_string(keys.type):
        columns["tag"] = pa.repeat(pa.scalar(BYTES_TAG.decode()), batch.num_rows)
    if values.null_count:
        columns["operation"] = values.is_null().cast(pa.uint8())
    return pa.RecordBatch.from_pydict(columns)

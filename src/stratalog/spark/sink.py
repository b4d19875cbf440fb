"""DataFrames into topics: each task stages segments, the driver publishes them as one batch.

Tasks write whole segments beside the store's writer and need no lock. The driver puts one manifest
there, and waits until the store has adopted it: every record of the DataFrame is then in the store,
in all of its topics, or none is.

A stream's batches are known by the id of its query, which its checkpoint keeps, and their number: a
batch that is written again after a crash is adopted once. A batch write is known by nothing, unless
it is told what it is with `writerId` and `batchId`.

Crash: what was staged and not published is removed by the store's writer when it is a day old. What
was published is adopted by whoever opens the store next.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from stratalog.adopting import Publisher, ensure_store
from stratalog.errors import OptionError, PressureError
from stratalog.format.manifest import StagedSegment
from stratalog.format.names import check_topic_name
from stratalog.fs import PosixFileSystem
from stratalog.options import TopicOptions
from stratalog.segments.stage import StageWriter, append_part, manifest_of
from stratalog.spark.ship import Shipped
from stratalog.spark.sink_options import WriteOptions, check_columns

_QUERY = "sql.streaming.queryId"
"""Where Spark tells its tasks which query they are of: the same after a restart."""


@dataclasses.dataclass
class StagedByTask(WriterCommitMessage):
    """What one task has staged."""

    segments: list[tuple[str, StagedSegment]]
    """Each with its topic, in order."""
    query: str
    """The id of the streaming query; empty without one."""


def batch_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """What `df.write.format("stratalog")` writes with."""
    given = WriteOptions.parse(options)
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
) -> DataSourceStreamArrowWriter:
    """What `df.writeStream.format("stratalog")` writes with."""
    given = WriteOptions.parse(options, is_stream=True)
    if overwrite:
        raise OptionError("a topic can only be appended to: write with outputMode('append')")
    check_columns(schema, given)
    ensure_store(given.path)
    return StreamWriter(given)


class BatchWriter(Shipped, DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._writer = options.writer or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage what one task has."""
        return _stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what all tasks have staged, and wait until it is adopted."""
        _commit(self._options, self._writer, self._options.batch, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave everything: what was published may be adopted already, the rest goes by itself."""


class StreamWriter(Shipped, DataSourceStreamArrowWriter):
    """The micro-batches of a query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage what one task has."""
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
        """Leave everything: what was published may be adopted already, the rest goes by itself."""


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
        return  # nothing to be told twice
    parts = [append_part(topic, segments) for topic, segments in by_topic.items()]
    manifest = manifest_of(writer, batch, parts)
    with Publisher(options.path) as publisher:
        publisher.publish(manifest)  # if it is there already, this is a batch that is written again
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


# What is written before the disk is set to work on it: the end of a task then waits for this much.
_SYNC_BYTES = 16 << 20


class _TaskStage:
    """The segments of one task: one per topic at a time.

    They are synced and sealed by a thread of their own: that takes as long as half of what it
    takes to write them, and Spark goes on meanwhile.
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
                self._fs, self._options.path, compression=self._options.compression
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
        """Make everything durable; returns what was staged."""
        for topic in list(self._writers):
            self._finish(topic)
        for sync in self._syncs:
            sync.result()
        found = [(topic, sealed.result()) for topic, sealed in self._done]
        self._sealer.shutdown()
        return [(topic, staged) for topic, staged in found if staged is not None]

    def abandon(self) -> None:
        """Leave nothing half-written."""
        self._sealer.shutdown()
        for writer in self._writers.values():
            writer.abandon()

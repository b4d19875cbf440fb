"""Replay: a range of one topic into another, through a function, once.

Records are processed in chunks: executors apply the function and stage the results, and one
manifest per chunk has them adopted. Its number is the offset where the chunk ends, so the store
itself knows how far a replay has come: running it again continues from there, after a crash or a
week later.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from stratalog.errors import OptionError, WrongTypeError
from stratalog.format.arrow import TYPES, schema, to_arrow
from stratalog.format.names import check_topic_name
from stratalog.fs import PosixFileSystem
from stratalog.log.topic import TopicLog
from stratalog.model import Record
from stratalog.segments.staging import StageWriter, append_part
from stratalog.spark.jobs.stage_segments import local_root, publish
from stratalog.spark.jobs.work import cores, run
from stratalog.spark.session import use
from stratalog.spark.source.plan import Range, Span, cut_span, open_view, resolve, spans_of, task_of
from stratalog.spark.source.read_options import ReadOptions
from stratalog.spark.source.read_task import PieceReader, Task
from stratalog.tools.report import Progress
from stratalog.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Function = Callable[[Any], Any]
"""From a record to a record, bytes (the new value), None (drop it), or a list of these; or from an
Arrow batch to another one, or None."""

# The work that is lost when a replay is interrupted.
_CHUNK_BYTES = 1 << 30
_UNIT_BYTES_MAX = 64 << 20
_UNIT_BYTES_MIN = 1 << 20

_ALL = schema([name for name in TYPES if name != "offset"])


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay."""

    path: str
    source: str
    target: str
    start: int
    """Where this run began: after what earlier runs had done."""
    end: int
    read: int
    written: int
    duration: float


class ReplayUnit(NamedTuple):
    """Records for one executor."""

    root: str
    task: Task
    compression: str
    as_arrow: bool


def replay(
    path: str | os.PathLike[str],
    source: str,
    target: str,
    function: Function | str,
    *,
    start: int | str = "earliest",
    end: int | str = "latest",
    as_arrow: bool = False,
    name: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    progress: Progress | None = None,
) -> ReplayReport:
    """Send records `start` to `end` (exclusive) of one topic through a function into another.

    `function` is a callable or `module:name`. It takes a `Record` and returns one, bytes (a new
    value; all else stays), None (nothing), or a list of these; with `as_arrow=True` it takes and
    returns record batches. Running it again continues where it stopped: a replay is identified by
    `name`, or the function's own name, with both topics and `start`.
    """
    begin = time.perf_counter()
    root = local_root(path)
    check_topic_name(target)
    if source == target:
        raise OptionError(f"topic {source!r} cannot be replayed into itself: it would never end")
    apply = load_function(function) if isinstance(function, str) else function
    options = ReadOptions.parse(
        {
            "path": root, "topic": f'["{source}"]' if "," in source else source,
            "startingOffsets": str(start), "endingOffsets": str(end),
        }
    )  # fmt: skip
    with use(spark, master) as session, open_view(options) as view:
        view.listen()
        (wanted,) = resolve(view, [source], options)
        topic = wanted.topic
        label = name or _name_of(apply)
        writer = _writer(view, topic, target, label, start)
        first = max(wanted.start, view.replay.writers.newest.get(writer, -1))
        goal = view.catalog.get(target)
        compression = "none" if goal is None else goal.options.compression
        read = written = 0
        total = sum(span.size for span in spans_of(Range(topic, first, wanted.end)))
        so_far = 0
        for chunk in _chunks(Range(topic, first, wanted.end), cores(session)):
            units = [
                ReplayUnit(root, task_of(view, [span], options, time.time_ns()), compression,
                           as_arrow)
                for span in chunk
            ]  # fmt: skip
            sizes = [span.size for span in chunk]
            done = _progress(progress, so_far, total, label)
            made = run(session, partial(replay_unit, apply), units, sizes, done)
            so_far += sum(sizes)
            read += sum(one.read for one in made)
            staged = [segment for one in made if (segment := one.staged) is not None]
            if staged:
                publish(root, writer, chunk[-1].end, [append_part(target, staged)])
                written += sum(one.records for one in staged)
    return ReplayReport(
        path=root, source=source, target=target, start=first, end=max(first, wanted.end), read=read,
        written=written, duration=time.perf_counter() - begin,
    )  # fmt: skip


def _progress(
    progress: Progress | None, before: int, total: int, label: str
) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(before + done, total, label)


def load_function(text: str) -> Function:
    """Import the function that `module:name` names, also from the working directory.

    It is sent to executors by value: they need not have the module.
    """
    module_name, separator, name = text.partition(":")
    if not (module_name and separator and name):
        raise OptionError(f"function {text!r} is not of the form module:name")
    here = os.path.abspath("")
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise OptionError(f"function {text!r}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise OptionError(f"function {text!r}: there is no function {name!r} in {module_name}")
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    apply: Function = found
    return apply


def _name_of(function: Function) -> str:
    module = getattr(function, "__module__", "")
    name = getattr(function, "__qualname__", "")
    if not name or "<" in name:
        raise OptionError("a function without a name of its own needs name=, to be known again by")
    return f"{module}:{name}"


def _writer(view: View, topic: TopicLog, target: str, label: str, start: int | str) -> str:
    """Identify a replay: equal whenever it runs, and different once a topic was dropped."""
    epoch = view.replay.epochs.get(target, 0)
    text = f"{topic.id}/{topic.epoch}/{epoch}/{target}/{label}/{start}"
    return f"replay-{xxh3_64_hexdigest(text.encode())}"


def _chunks(wanted: Range, cores: int) -> Iterator[list[Span]]:
    """Give spans of one executor each, as many at a time as are adopted together."""
    spans = list(spans_of(wanted))
    total = sum(span.size for span in spans)
    size = min(max(total // (cores * 3), _UNIT_BYTES_MIN), _UNIT_BYTES_MAX)
    chunk: list[Span] = []
    held = 0
    for span in spans:
        rest: Span | None = span
        while rest is not None:
            one, rest = (rest, None) if rest.size <= size else cut_span(rest, size)
            chunk.append(one)
            held += one.size
            if held >= _CHUNK_BYTES:
                yield chunk
                chunk, held = [], 0
    if chunk:
        yield chunk


class Replayed(NamedTuple):
    """The result of a unit."""

    staged: Any
    """A `StagedSegment`; None if nothing was left."""
    read: int


def replay_unit(function: Function, unit: ReplayUnit) -> Replayed:
    """Apply the function to the records of a unit, and stage the results; on an executor."""
    reader = PieceReader(unit.task)
    stage = StageWriter(PosixFileSystem(), unit.root, compression=unit.compression)
    read = 0
    try:
        for piece in unit.task.pieces:
            for (batch, first, end), keep, _ in reader.read(piece):
                if unit.as_arrow:
                    given = to_arrow(batch, _ALL, first, end)
                    given = given if keep is None else given.filter(pa.array(keep))
                    read += given.num_rows
                    made = function(given)
                else:
                    records = batch.records(first, end)
                    if keep is not None:
                        records = [r for r, stays in zip(records, keep, strict=True) if stays]
                    read += len(records)
                    made = to_batch(_applied(function, records))
                if made is not None and made.num_rows:
                    stage.write(made)
        return Replayed(stage.finish(), read)
    except BaseException:
        stage.abandon()
        raise
    finally:
        reader.close()


def _applied(function: Function, records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        found = function(record)
        for one in found if isinstance(found, list | tuple) else (found,):
            if isinstance(one, Record):
                yield one
            elif isinstance(one, bytes):
                yield msgspec.structs.replace(record, value=one)
            elif one is not None:
                raise WrongTypeError(
                    f"the function returned {type(one).__name__} for offset {record.offset}: "
                    "return a Record, bytes, None, or a list of these"
                )


def to_batch(records: Iterable[Record]) -> pa.RecordBatch | None:
    """Convert records to columns; None if there are none."""
    rows = list(records)
    if not rows:
        return None
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows] for name in _ALL.names if name != "headers"
    }
    columns["headers"] = [
        [{"key": key, "value": value} for key, value in row.headers.items()] for row in rows
    ]
    for name in ("timestamp", "expires_at", "not_before", "event_time"):
        columns[name] = [time or None for time in columns[name]]  # 0 is no time
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], TYPES[name]) for name in _ALL.names], schema=_ALL
    )

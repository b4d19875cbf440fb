"""Declared pipelines, run by Spark's own declarative pipelines as one job.

Sources and steps become views of Spark's dataflow graph, and each sink a flow into it: a streaming
query with its own checkpoint, which processes what is new since the last run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from stratalog.errors import OptionError, StateError, StratalogError
from stratalog.handles.kinds import check_is
from stratalog.handles.publish import check_place
from stratalog.spark.jobs.pipeline_file import Pipeline, Source, Step
from stratalog.spark.queue_dataframe import queue
from stratalog.spark.series_dataframe import series
from stratalog.spark.session import missing_package, running, session
from stratalog.spark.spark_errors import spark_sentence
from stratalog.spark.table_dataframe import table

_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.sql.connect.serverStacktrace.enabled": "false",
}

Event = Callable[[str], None]
"""Receives progress messages, one sentence at a time."""


def run_pipeline(
    pipeline: Pipeline,
    *,
    master: str = "local[*]",
    dry_run: bool = False,
    every: float | None = None,
    rounds: int | None = None,
    on_event: Event = lambda text: None,
) -> int:
    """Run a pipeline over new records, once or repeatedly; returns how often it ran.

    `every` is the number of seconds between the starts of rounds, without end unless `rounds` is
    given. `dry_run` has Spark check everything and moves nothing.
    """
    if every is not None and not every > 0:
        raise OptionError(f"every={every!r} must be more than 0 seconds")
    _check_places(pipeline)
    with _connected(pipeline, master) as spark:
        done = 0
        while True:
            began = time.monotonic()
            _run(spark, pipeline, dry_run, on_event)
            done += 1
            if dry_run or (rounds is None and every is None) or done == (rounds or 0):
                return done
            time.sleep(max(0.0, began + (every or 0.0) - time.monotonic()))


def _check_places(pipeline: Pipeline) -> None:
    """Raise unless every topic to read exists, and every store to write can be written.

    Spark checks them only when a query starts, which a dry run does not reach.
    """
    with _pyspark():
        from stratalog.spark.source.plan import open_view
        from stratalog.spark.source.read_options import ReadOptions
        from stratalog.spark.source.write_options import WriteOptions
    for source in pipeline.sources:
        if source.format == "stratalog":
            with _at(pipeline, source.line, f"source {source.name!r}"):
                given = source.options
                if source.view is not None:
                    name = given[source.view]
                    given = {"path": given["path"], "topic": json.dumps([name])}
                wanted = ReadOptions.parse(given, is_stream=source.is_stream)
                with open_view(wanted) as view:
                    wanted.topics.choose(view.catalog, may_miss=source.is_stream)
                    if source.view is not None:
                        check_is(view.catalog.find(name), source.view)
    for sink in pipeline.sinks:
        if sink.format == "stratalog":
            with _at(pipeline, sink.line, f"sink {sink.name!r}"):
                check_place(WriteOptions.parse(sink.options, is_stream=True).path)


@contextmanager
def _at(pipeline: Pipeline, line: int, what: str) -> Iterator[None]:
    """Add the line of the file to an error."""
    try:
        yield
    except (StratalogError, OSError) as error:
        raise pipeline.error(line, f"{what}: {error}") from error


@contextmanager
def _pyspark() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise missing_package(error) from error


@contextmanager
def _connected(pipeline: Pipeline, master: str) -> Iterator[Any]:
    """Open a Spark Connect session, which declarative pipelines require.

    Spark's own shortcut listens on all interfaces, on a port that only one process can have.
    """
    with _pyspark():
        from pyspark import pipelines as _  # noqa: F401
        from pyspark.sql.connect.session import SparkSession as Connect
    if running() is not None:
        raise StateError(
            "another Spark session runs in this process: run a declared pipeline in a process of "
            "its own, with `stratalog pipeline run`"
        )
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = uuid.uuid4().hex
    warehouse = {"spark.sql.warehouse.dir": os.path.join(pipeline.storage, "warehouse")}
    server = session(master, name=pipeline.name, config=_SERVER | warehouse | pipeline.config)
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # for functions that steps import
    try:
        service = getattr(server._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        # By this name: with any other, a token requires TLS.
        spark = Connect.builder.remote(f"sc://localhost:{port}").getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        del os.environ["SPARK_CONNECT_MODE_ENABLED"]
        server.stop()


def _run(spark: Any, pipeline: Pipeline, dry_run: bool, on_event: Event) -> None:
    from pyspark.errors import PySparkException
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    graph = create_dataflow_graph(spark, None, None, {})
    registry = SparkConnectGraphElementRegistry(spark, graph)
    failures: list[str] = []
    try:
        with (
            graph_element_registration_context(registry),
            add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None),
        ):
            _declare(spark, pipeline)
    except PySparkException as error:
        raise _explain(pipeline, failures, error) from error
    storage = f"file://{pipeline.storage}" if pipeline.storage.startswith("/") else pipeline.storage
    try:
        for result in start_run(spark, graph, None, False, None, dry_run, storage):
            if "pipeline_event_result" in result:
                text = result["pipeline_event_result"].event.message
                if re.search(r"\bfail|\berror", text, re.IGNORECASE):
                    failures.append(text)
                on_event(text.splitlines()[0])
    except PySparkException as error:
        raise _explain(pipeline, failures, error) from error
    if failures:
        raise _explain(pipeline, failures, None)


def _declare(spark: Any, pipeline: Pipeline) -> None:
    """Declare the file's pipeline to Spark."""
    from pyspark import pipelines

    for source in pipeline.sources:
        load = partial(_load, spark, source)
        if source.view is not None:
            # Made here: Spark Connect asks for the columns of what goes through Python, and a
            # function that is called for a view must not ask.
            load = partial(_same, _load_view(spark, source, source.view))
        pipelines.temporary_view(name=source.name)(load)
    for step in pipeline.steps:
        make = partial(_query, spark, pipeline, step)
        if step.python is not None:
            make = partial(_call, spark, pipeline, step, _function(pipeline, step))
        pipelines.temporary_view(name=step.name)(make)
    for sink in pipeline.sinks:
        pipelines.create_sink(sink.name, sink.format, sink.options)
        flow = pipelines.append_flow(target=sink.name, name=f"{sink.name}_flow")
        flow(partial(spark.readStream.table, sink.source))


def _load(spark: Any, source: Source) -> Any:
    reader = (spark.readStream if source.is_stream else spark.read).format(source.format)
    options = dict(source.options)
    path = options.pop("path", None)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    reader = reader.options(**options)
    return reader.load(path) if path is not None else reader.load()


def _same(frame: Any) -> Any:
    return frame


def _load_view(spark: Any, source: Source, kind: str) -> Any:
    """Compute a queue, a table or a series from its records, as of this run."""
    options = dict(source.options)
    name, path = options.pop(kind), options.pop("path")
    loads: dict[str, Callable[..., Any]] = {"queue": queue, "table": table, "series": series}
    return loads[kind](spark, path, name, **options)


def _query(spark: Any, pipeline: Pipeline, step: Step) -> Any:
    from pyspark.errors import PySparkException

    try:
        return spark.sql(step.sql)
    except PySparkException as error:
        raise _located(pipeline, step, str(error)) from error


def _call(spark: Any, pipeline: Pipeline, step: Step, function: Callable[..., Any]) -> Any:
    inputs = [_table(spark, pipeline, name) for name in step.inputs]
    from pyspark.sql.connect.dataframe import DataFrame

    try:
        result = function(*inputs)
    except Exception as error:
        assert step.python is not None
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == step.python[0]]
        where = f"{own[-1].filename}, line {own[-1].lineno}" if own else step.python[0]
        raise pipeline.error(
            step.line, f"step {step.name!r} failed at {where}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(result, DataFrame):
        assert step.python is not None
        what = "nothing" if result is None else f"a value of type {type(result).__name__}"
        raise pipeline.error(
            step.line,
            f"step {step.name!r}: {step.python[1]} in {step.python[0]} returns {what}: a step "
            "returns a DataFrame",
        )
    return result


def _table(spark: Any, pipeline: Pipeline, name: str) -> Any:
    """Read a source or step as an input: as a stream, or as a whole."""
    whole = {source.name for source in pipeline.sources if not source.is_stream}
    return spark.table(name) if name in whole else spark.readStream.table(name)


def _function(pipeline: Pipeline, step: Step) -> Callable[..., Any]:
    assert step.python is not None
    file, name = step.python
    stem = os.path.splitext(os.path.basename(file))[0]
    spec = importlib.util.spec_from_file_location(stem, file)
    if spec is None or spec.loader is None:
        raise pipeline.error(step.line, f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise pipeline.error(step.line, f"there is no file {file}") from None
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else _last_line(error, file)
        raise pipeline.error(
            step.line, f"{file}, line {line}: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise pipeline.error(step.line, f"{file} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _last_line(error: BaseException, file: str) -> int | None:
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)


def _explain(pipeline: Pipeline, failures: list[str], error: Exception | None) -> Exception:
    """Build the error with Spark's message, at the step it concerns."""
    for text in failures:
        found = re.search(r"(?:Failed to resolve flow|Flow): '?(?:\w+\.)*(\w+)'?", text)
        step = pipeline.step(found[1]) if found else None
        if step is not None and "upstream failure" not in text:
            return _located(pipeline, step, text.partition("Error: ")[2] or text)
    reasons = [text for text in failures if "upstream failure" not in text] or [str(error)]
    for source in pipeline.sources:
        if "path" in source.options and source.options["path"] in reasons[0]:
            return pipeline.error(
                source.line, f"source {source.name!r}: {spark_sentence(reasons[0])}"
            )
    return OptionError(f"{pipeline.path}: {spark_sentence(reasons[0])}")


def _located(pipeline: Pipeline, step: Step, text: str) -> Exception:
    """Build an error about a query, with the line of the file instead of the query's."""
    found = re.search(r"\(?line (\d+),? pos \d+\)?", text)
    line = step.line + (int(found[1]) - 1 if found and step.sql else 0)
    return pipeline.error(line, f"step {step.name!r}: {spark_sentence(text)}")

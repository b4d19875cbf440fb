"""`stratalog pipeline verify` and others: what reads or rewrites all of a store, on Spark.

Nothing of Spark is loaded before a command runs: the others do not wait for it, and do without it.
"""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stratalog.cli.care import EXIT_DAMAGED, ColdDepth, ColdUrl, show_report
from stratalog.cli.look import StorePath
from stratalog.cli.output import (
    AsJson,
    bytes_text,
    count_text,
    progress_bar,
    write_json,
    write_line,
    write_table,
)
from stratalog.cli.spark import Master, spark_for

if TYPE_CHECKING:
    from stratalog.spark.jobs.outline import TopicReport

TopicNames = Annotated[
    str, typer.Option(metavar="NAMES", help="Topics: names or patterns, with commas between.")
]


def verify(
    path: StorePath,
    cold: ColdUrl = None,
    cold_depth: ColdDepth = "contents",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a store, on all cores. Damage ends with exit code 6.

    Says what `stratalog verify` says; worth its start of some seconds from tens of gigabytes on.
    """
    from stratalog.spark.jobs import verify

    with (
        progress_bar(is_shown=not as_json) as progress,
        spark_for(master, progress) as spark,
    ):
        report = verify(path, spark=spark, cold=cold, cold_depth=cold_depth, progress=progress)
    show_report(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(EXIT_DAMAGED)


def report(
    path: StorePath,
    topics: TopicNames = "*",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to put the page; <name of the store>-report.html here if not given.",
        ),
    ] = None,
    time_header: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A header with the time of an event, to show latency."),
    ] = None,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page when done.")] = True,
    cold: ColdUrl = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Volume and latency over time, sizes, keys and gaps of every topic, as a page with charts.

    With --json the numbers are printed, and the page is written only where --output says.
    """
    from stratalog.spark.jobs import report

    if output is None and not as_json:
        output = Path(f"{path.resolve().name}-report.html")
    with (
        progress_bar(is_shown=not as_json) as progress,
        spark_for(master, progress) as spark,
    ):
        found = report(
            path, topics=topics, time_header=time_header, output=output, cold=cold, spark=spark,
            progress=progress,
        )  # fmt: skip
    if as_json:
        write_json(msgspec.to_builtins(found))
        return
    assert output is not None
    headings = ("topic", ">records", ">size", ">ratio", ">keys", ">gaps", "most frequent key")
    write_table(headings, [_report_row(topic) for topic in found.topics])
    write_line(f"report: {output.resolve()}")
    if show and sys.stdout.isatty():
        webbrowser.open(output.resolve().as_uri())


def _report_row(topic: TopicReport) -> tuple[str, ...]:
    top = topic.keys.top
    return (
        topic.name,
        f"{topic.records:,}",
        bytes_text(topic.bytes),
        f"{topic.ratio:.2f}",
        f"{topic.keys.distinct:,}",
        f"{len(topic.gaps):,}",
        f"{top[0].key} ({100 * top[0].share:.1f} %)" if top else "-",
    )


def compact(
    path: StorePath,
    topics: TopicNames = "*",
    compression: Annotated[
        str | None,
        typer.Option(metavar="CODEC", help="Write everything again with zstd, lz4, gzip or none."),
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Give back the space of deleted and replaced records, and join small segments.

    Runs beside a live writer: what is new takes the place of what is old in one step per topic.
    """
    from stratalog.spark.jobs import compact

    with (
        progress_bar(is_shown=not as_json) as progress,
        spark_for(master, progress) as spark,
    ):
        report = compact(
            path, topics=topics, compression=compression, spark=spark, progress=progress
        )
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    headings = ("topic", ">segments", ">size", ">records removed")
    rows = [
        (
            one.name,
            f"{one.segments_before:,} to {one.segments_after:,}",
            f"{bytes_text(one.bytes_before)} to {bytes_text(one.bytes_after)}",
            f"{one.records_removed:,}",
        )
        for one in report.topics
    ]
    if rows:
        write_table(headings, rows)
    write_line(f"{bytes_text(max(0, report.bytes_freed))} came back in {report.duration:.1f} s")


def backfill(
    path: StorePath,
    topics: TopicNames = "*",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Put what is in the log alone into segments, on all cores: a checkpoint of a large log."""
    from stratalog.spark.jobs import backfill

    with (
        progress_bar(is_shown=not as_json) as progress,
        spark_for(master, progress) as spark,
    ):
        report = backfill(path, topics=topics, spark=spark, progress=progress)
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    headings = ("topic", ">records", ">log", ">segments", ">size")
    rows = [
        (
            one.name,
            f"{one.records:,}",
            bytes_text(one.log_bytes),
            f"{one.segments:,}",
            bytes_text(one.segment_bytes),
        )
        for one in report.topics
    ]
    if rows:
        write_table(headings, rows)
    records = sum(one.records for one in report.topics)
    write_line(f"{count_text(records, 'record')} put into segments in {report.duration:.1f} s")

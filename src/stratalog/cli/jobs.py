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

from stratalog.cli.care import EXIT_DAMAGED, ColdUrl, show_report
from stratalog.cli.look import StorePath
from stratalog.cli.output import (
    AsJson,
    bytes_text,
    progress_bar,
    write_json,
    write_line,
    write_table,
)
from stratalog.cli.spark import Master, spark_for

if TYPE_CHECKING:
    from stratalog.spark.outline import TopicReport


def verify(
    path: StorePath,
    cold: ColdUrl = None,
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
        report = verify(path, spark=spark, cold=cold, progress=progress)
    show_report(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(EXIT_DAMAGED)


def report(
    path: StorePath,
    topics: Annotated[
        str, typer.Option(metavar="NAMES", help="Topics: names or patterns, with commas between.")
    ] = "*",
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
        typer.Option(
            metavar="NAME", help="A header that says when something happened, to show latency."
        ),
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

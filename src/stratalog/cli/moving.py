"""`stratalog export`, `import` and `pipeline replay`: records on their way out, in and through."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from stratalog.cli.jobs import TopicNames
from stratalog.cli.look import StorePath
from stratalog.cli.output import (
    AsJson,
    bytes_text,
    count_text,
    progress_bar,
    write_facts,
    write_json,
)
from stratalog.cli.spark import Master, spark_for
from stratalog.errors import OptionError


def export(
    path: StorePath,
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="Directory or URL of the files.")
    ],
    topics: TopicNames = "*",
    format: Annotated[
        str, typer.Option(metavar="FORMAT", help="parquet, delta or iceberg.")
    ] = "parquet",
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help='Columns of values that are JSON, such as "id long, amount double".',
        ),
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Go on behind records that retention took.")
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Export what is new since the last run, by topic and day; every record once."""
    from stratalog.spark.jobs import export

    with (
        progress_bar(is_shown=not as_json) as progress,
        spark_for(master, progress) as spark,
    ):
        report = export(
            path, destination, topics=topics, format=format, schema=schema,
            fail_on_data_loss=not allow_gaps, spark=spark, progress=progress,
        )  # fmt: skip
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    facts = [
        ("exported", f"{count_text(report.records, 'record')} to {report.destination}"),
        ("files", f"{count_text(report.files, 'file')}, {bytes_text(report.bytes)}"),
    ]
    facts += [(f"  {name}", f"{count:,}") for name, count in report.topics.items()]
    if report.bad:
        facts.append(("not read", f"{report.bad:,} values, which are in the column _corrupt"))
    write_facts([*facts, ("took", f"{report.duration:.1f} s")])


def import_(
    path: StorePath,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="File, directory or pattern, or kafka://host:port/topic."
        ),
    ],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to append to.")],
    format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="parquet, csv, json or kafka; by name if not given."),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The value; the whole row as JSON if not given."),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="COLUMN", help="The key.")] = None,
    timestamp: Annotated[str | None, typer.Option(metavar="COLUMN", help="The time.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A header; may be repeated.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of Spark's reader; may be repeated."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Where Spark notes how far it is; in the store."),
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Append rows of files to a topic: those that no run before has imported."""
    from stratalog.spark.jobs import import_from

    options = {}
    for text in option or ():
        name, separator, setting = text.partition("=")
        if not (name and separator):
            raise OptionError(f"option {text!r} is not of the form name=value")
        options[name] = setting
    with spark_for(master) as spark:
        report = import_from(
            path, source, topic, format=format, value=value, key=key, timestamp=timestamp,
            headers=header or (), options=options, checkpoint=checkpoint, spark=spark,
        )  # fmt: skip
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    write_facts(
        [
            ("imported", f"{count_text(report.records, 'record')} into {report.topic}"),
            ("from", f"{report.source} ({report.format})"),
            ("took", f"{report.duration:.1f} s"),
        ]
    )


def replay(
    path: StorePath,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Topic to read.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Topic to append to.")],
    function: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="Function over records; None leaves one out."),
    ],
    start: Annotated[str, typer.Option(metavar="OFFSET", help="First offset.")] = "earliest",
    end: Annotated[str, typer.Option(metavar="OFFSET", help="Offset to stop before.")] = "latest",
    arrow: Annotated[
        bool, typer.Option("--arrow", help="The function takes and returns Arrow batches.")
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Send records of one topic through a function into another, each once."""
    from stratalog.spark.jobs import replay

    with (
        progress_bar(is_shown=not as_json) as progress,
        spark_for(master, progress) as spark,
    ):
        report = replay(
            path, source, target, function, start=start, end=end, as_arrow=arrow, spark=spark,
            progress=progress,
        )  # fmt: skip
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    write_facts(
        [
            ("read", f"{count_text(report.read, 'record')} of {source}, from {report.start} on"),
            ("written", f"{count_text(report.written, 'record')} to {target}"),
            ("took", f"{report.duration:.1f} s"),
        ]
    )

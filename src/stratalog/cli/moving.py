"""`stratalog export`, `import` and `pipeline replay`: records on their way out, in and through."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from stratalog.cli.foreign_directories import export_foreign, import_foreign
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
        bool, typer.Option("--allow-gaps", help="Skip records that retention evicted.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="LAYOUT", help="A directory of ledgerq, fluxmq, topics or flo instead."
        ),
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Export what is new since the last run, by topic and day; every record once.

    With --to LAYOUT: write a new directory that another system opens.
    """
    if to is not None:
        export_foreign(to, path, destination, name=topics, as_json=as_json)
        return
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
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Topic to append to.")
    ] = None,
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
        typer.Option(metavar="NAME=VALUE", help="An option of Spark's reader; may be repeated."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Where Spark keeps its progress; default: the store."),
    ] = None,
    bad_rows: Annotated[
        str,
        typer.Option(
            metavar="ACTION",
            help="Rows that cannot become records: refuse, skip, or aside (into TOPIC.bad).",
        ),
    ] = "refuse",
    without_time: Annotated[
        str,
        typer.Option(
            metavar="ACTION",
            help="Rows whose time is empty: bad, or now (they get the time of the import).",
        ),
    ] = "bad",
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="LAYOUT",
            help="A directory of ledgerq, fluxmq, topics or flo: import --from LAYOUT DIR STORE.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --from: name of the queue, or prefix of all names."
        ),
    ] = None,
    cold: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="With --from topics: the server's cold directory."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from: read everything, change nothing.")
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Append rows of files to a topic: those that no run before has imported.

    With --from LAYOUT: bring a directory of another system into a store. Its arguments are then
    that directory and the store.
    """
    if from_ is not None:
        if topic is not None:
            raise OptionError("import --from LAYOUT takes a directory and a store: DIR STORE")
        import_foreign(from_, path, source, name=name, cold=cold, dry_run=dry_run, as_json=as_json)
        return
    if name is not None or cold is not None or dry_run:
        raise OptionError("--name, --cold and --dry-run go with --from")
    if topic is None:
        raise OptionError("import needs a topic to append to: import PATH SOURCE TOPIC")
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
            headers=header or (), options=options, checkpoint=checkpoint, bad_rows=bad_rows,
            without_time=without_time, spark=spark,
        )  # fmt: skip
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    facts = [
        ("imported", f"{count_text(report.records, 'record')} into {report.topic}"),
        ("from", f"{report.source} ({report.format})"),
    ]
    done = f"set aside in {report.topic}.bad" if bad_rows == "aside" else "left out"
    facts += [
        ("bad", f"{count_text(number, 'row')} {reason}, {done}")
        for reason, number in report.bad_reasons.items()
    ]
    if report.without_time:
        facts.append(("no time", f"{count_text(report.without_time, 'record')} with that of now"))
    if report.late:
        facts.append(
            ("late", f"{count_text(report.late, 'record')} with the time of the topic's newest")
        )
    write_facts([*facts, ("took", f"{report.duration:.1f} s")])


def replay(
    path: StorePath,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Topic to read.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Topic to append to.")],
    function: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="Function of a record; None drops it."),
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

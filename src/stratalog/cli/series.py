"""`stratalog series ...`: write points, query windows, look at the newest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import stratalog
from stratalog import OptionError
from stratalog.cli.output import AsJson, write_json, write_line

app = typer.Typer(
    name="series", help="Write points, query windows, show the newest.", no_args_is_help=True
)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the store.")]
SeriesName = Annotated[str, typer.Argument(metavar="SERIES", help="Name of the series.")]
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="NAME=VALUE", show_default=False, help="A tag; may be repeated."),
]

_BAR = 40


@app.command("write")
def write(
    path: StorePath,
    lines: Annotated[
        list[str] | None,
        typer.Argument(metavar="LINE", help="Line protocol; from standard input if left out."),
    ] = None,
    precision: Annotated[str, typer.Option(help="Unit of times: ns, us, ms, s, m or h.")] = "ns",
    as_json: AsJson = False,
) -> None:
    """Write points given as line protocol, all of them or none."""
    text: str | bytes = "\n".join(lines) if lines else sys.stdin.buffer.read()
    with stratalog.open(path) as store:
        count = store.write_lines(text, precision)
    if as_json:
        write_json({"points": count})
    else:
        write_line(f"{count} points")


@app.command("query")
def query(
    path: StorePath,
    series: SeriesName,
    start: Annotated[float | None, typer.Option(help="From this time, in seconds.")] = None,
    end: Annotated[float | None, typer.Option(help="To before this time, in seconds.")] = None,
    window: Annotated[str | None, typer.Option(help="Such as 5m; one for all if left out.")] = None,
    aggregate: Annotated[str, typer.Option(help="avg, sum, count, min, max, p95, ...")] = "avg",
    by: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Group by a tag; may be repeated.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="The field, if there are several.")] = None,
    fill: Annotated[str, typer.Option(help="none, null, previous or zero.")] = "none",
    tag: Tag = None,
    as_json: AsJson = False,
) -> None:
    """Show one value for each window, as a chart."""
    with stratalog.open(path, read_only=True) as store:
        table = store.series(series).query(
            start, end, window=window, aggregate=aggregate, by=by or (), field=field, fill=fill,
            tags=parse_tags(tag),
        )  # fmt: skip
    names = table.column_names[:-2]
    rows = table.set_column(
        len(names), "window_start", table["window_start"].cast("int64")
    ).to_pylist()
    if as_json:
        for row in rows:
            write_json(row)
        return
    for line in chart(rows, names):
        write_line(line)


def chart(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """A line for each window: its time, its group, its value and a bar."""
    numbers = [row["value"] for row in rows if isinstance(row["value"], int | float)]
    least, greatest = min([0, *numbers]), max([0, *numbers])
    lines = []
    for row in rows:
        value = row["value"]
        bar = ""
        if isinstance(value, int | float) and greatest > least:
            bar = "█" * round(_BAR * (value - least) / (greatest - least))
        group = " ".join(str(row[name]) for name in names)
        shown = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else value
        lines.append(f"{_time(row['window_start'])}  {group}  {shown!s:>12}  {bar}".rstrip())
    return lines


def _time(nanoseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(nanoseconds // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")


@app.command("latest")
def latest(path: StorePath, series: SeriesName, tag: Tag = None, as_json: AsJson = False) -> None:
    """Show the newest point of each series that has the tags."""
    with stratalog.open(path, read_only=True) as store:
        found = store.series(series).latest(parse_tags(tag))
    for one in found:
        if as_json:
            write_json(one._asdict())
        else:
            tags = ",".join(f"{name}={value}" for name, value in one.tags.items())
            fields = " ".join(f"{name}={value}" for name, value in one.fields.items())
            write_line(f"{_time(one.timestamp)}  {tags}  {fields}")


def parse_tags(given: list[str] | None) -> dict[str, str]:
    """Tags from `name=value`."""
    tags = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise OptionError(f"--tag {text!r} must be NAME=VALUE")
        tags[name] = value
    return tags

"""`stratalog delete`: records of a topic, by key, tag, offset or age."""

from __future__ import annotations

from typing import Annotated

import typer

import stratalog
from stratalog.cli.look import StorePath
from stratalog.cli.output import AsJson, count_text, write_json, write_line
from stratalog.cli.records import parse_time, to_bytes


def delete(
    path: StorePath,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to delete from.")],
    key: Annotated[str | None, typer.Option(help="Records with this key.")] = None,
    tag: Annotated[str | None, typer.Option(help="Records with this tag.")] = None,
    tag_glob: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Records whose tag matches: user-*.")
    ] = None,
    offset: Annotated[
        list[int] | None,
        typer.Option(show_default=False, help="The record at this offset; may be repeated."),
    ] = None,
    before: Annotated[int | None, typer.Option(metavar="OFFSET", help="Records below it.")] = None,
    before_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Records older than this: ISO 8601 or seconds."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete the records of a topic that meet every condition given.

    They cannot be read from then on. `stratalog compact --purge` removes their bytes as well.
    """
    if before is not None and before_time is not None:
        raise stratalog.OptionError("--before and --before-time are one condition: give one")
    limit = before if before_time is None else parse_time(before_time)
    with stratalog.open(path, read_only=True) as store:
        store.topic(topic)  # raises unless both are there: a delete creates nothing
    with stratalog.open(path) as store:
        count = store.topic(topic).delete(
            before=limit, key=None if key is None else to_bytes(key), tag=tag, tag_glob=tag_glob,
            offsets=offset or None,
        )  # fmt: skip
    if as_json:
        write_json({"topic": topic, "deleted": count})
    else:
        write_line(f"deleted {count_text(count, 'record')} of {topic}")

"""The commands that only look: `read`, `tail`, `topics`, `stats`.

All of them open the store read-only: they take no lock, change nothing, create nothing, and run
beside a live writer.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

import stratalog
from stratalog import OptionError
from stratalog.cli.output import (
    AsJson,
    bytes_text,
    time_text,
    write_facts,
    write_json,
    write_table,
)
from stratalog.cli.records import make_show, parse_time, to_bytes
from stratalog.reports import StoreStats, TopicStats

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the store.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")]
Key = Annotated[str | None, typer.Option(metavar="TEXT", help="Only records with this key.")]
Tag = Annotated[str | None, typer.Option(metavar="TEXT", help="Only records with this tag.")]
Node = Annotated[str | None, typer.Option(metavar="TEXT", help="Only records of this node.")]


def read(
    path: StorePath,
    topic: TopicName,
    start: Annotated[int, typer.Option(help="First offset.")] = 0,
    end: Annotated[
        int | None, typer.Option(help="Offset to stop before; by default the end.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Most records to print.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            "--from-time",
            metavar="TIME",
            help="Skip records older than this: ISO 8601 or seconds.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop before records of this time.")
    ] = None,
    key: Key = None,
    tag: Tag = None,
    node: Node = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Begin with the newest.")] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Print the payloads alone, as they are.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the records of a topic."""
    if values and as_json:
        raise OptionError("--values and --json are two forms of output: give one of them")
    moments = [None if text is None else parse_time(text) for text in (since, until)]
    with stratalog.open(path, read_only=True) as store:
        handle = store.topic(topic)
        width = len(str(handle.next_offset))
        show = make_show(as_json=as_json, as_values=values, offset_width=width)
        for item in handle.read(
            start, end, limit, since=moments[0], until=moments[1],
            key=None if key is None else to_bytes(key), tag=tag, node=node, reverse=reverse,
        ):  # fmt: skip
            show(item)


def tail(
    path: StorePath,
    topic: TopicName,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Records to begin with.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for new records; Ctrl-C ends.")
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End after this long without a record."),
    ] = None,
    key: Key = None,
    tag: Tag = None,
    node: Node = None,
    as_json: AsJson = False,
) -> None:
    """Print the newest records of a topic, then those to come."""
    wanted = None if key is None else to_bytes(key)
    with (
        contextlib.suppress(KeyboardInterrupt),
        stratalog.open(path, read_only=True) as store,
    ):
        handle = store.topic(topic)
        stats = handle.stats()
        show = make_show(as_json=as_json, offset_width=len(str(stats.next_offset)))
        last = handle.records(
            end=stats.next_offset, limit=lines, key=wanted, tag=tag, node=node, reverse=True,
            gaps="skip",
        )  # fmt: skip
        start = min((record.offset for record in last), default=stats.next_offset)
        items = (
            handle.watch(start, timeout, key=wanted, tag=tag, node=node)
            if follow
            else handle.read(start, key=wanted, tag=tag, node=node)
        )
        for item in items:
            show(item)
            sys.stdout.flush()


def topics(path: StorePath, as_json: AsJson = False) -> None:
    """List the topics of a store."""
    with stratalog.open(path, read_only=True) as store:
        found = [_topic_stats(store.topic(name)) for name in store.topics()]
    if as_json:
        for item in found:
            write_json(item)
        return
    headings = ("topic", ">records", ">next", ">size", "newest", "durability")
    write_table(headings, [_topic_row(item) for item in found])


def _topic_row(item: TopicStats) -> tuple[str, ...]:
    return (
        item.name,
        f"{item.records:,}",
        str(item.next_offset),
        bytes_text(item.bytes),
        f"{time_text(item.newest_timestamp)[:19]}Z" if item.newest_timestamp else "-",
        item.durability,
    )


def stats(
    path: StorePath,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Topic; the whole store if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the numbers of a store, or of one of its topics."""
    with stratalog.open(path, read_only=True) as store:
        found = store.stats() if topic is None else _topic_stats(store.topic(topic))
    if as_json:
        write_json(msgspec.to_builtins(found))
    elif isinstance(found, StoreStats):
        _show_store(found)
    else:
        _show_topic(found)


def _topic_stats(topic: stratalog.Topic) -> TopicStats:
    """Numbers about a topic; a class it did not choose is up to the writer, not to us."""
    durability = str(topic.options.durability or "default")
    return msgspec.structs.replace(topic.stats(), durability=durability)


def _show_store(found: StoreStats) -> None:
    # Without what is counted from opening on: this process opened the store a moment ago.
    write_facts(
        [
            ("path", found.path),
            ("identity", found.identity),
            ("format", f"version {found.format_version}"),
            ("topics", f"{found.topics:,}"),
            ("records", f"{found.records:,}"),
            ("size", bytes_text(found.bytes)),
            ("shards", str(found.shards)),
            ("damage", found.damage or "none"),
        ]
    )


def _show_topic(found: TopicStats) -> None:
    newest = found.newest_timestamp
    write_facts(
        [
            ("topic", found.name),
            ("records", f"{found.records:,}"),
            ("earliest", str(found.earliest)),
            ("next", str(found.next_offset)),
            ("newest", time_text(newest) if newest else "-"),
            ("size", f"{bytes_text(found.bytes)} in {found.frames:,} frames"),
            ("durability", found.durability),
            ("compression", found.compression),
        ]
    )

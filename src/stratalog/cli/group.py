"""`stratalog group ...`: consumer groups of a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

import stratalog
from stratalog import Store, UnknownGroupError
from stratalog.cli.output import AsJson, time_text, write_json, write_line, write_table
from stratalog.cli.queue import parse_place, show_seek
from stratalog.reports import GroupStats

app = typer.Typer(name="group", help="Manage consumer groups.", no_args_is_help=True)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the store.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the group.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]


@app.command("list")
def list_groups(
    path: StorePath,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="One topic; all if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the groups of a topic, or of all, with their lag."""
    with stratalog.open(path, read_only=True) as store:
        found = _stats(store, store.topics() if topic is None else [topic])
    if as_json:
        for one in found:
            write_json(msgspec.structs.asdict(one))
    else:
        write_table(
            ("topic", "group", "mode", ">lag", ">pending", ">floor", ">consumers"),
            [
                (o.topic, o.name, o.mode, str(o.lag), str(o.pending), str(o.floor),
                 str(o.consumers))
                for o in found
            ],
        )  # fmt: skip


def _stats(store: Store, topics: list[str]) -> list[GroupStats]:
    found = []
    for name in topics:
        topic = store.topic(name)
        found += [topic.group(group).stats() for group in topic.groups()]
    return found


@app.command("lag")
def lag(path: StorePath, topic: TopicName, group: GroupName, as_json: AsJson = False) -> None:
    """Print how many records a group has yet to acknowledge."""
    with stratalog.open(path, read_only=True) as store:
        count = store.topic(topic).group(group).lag
    if as_json:
        write_json({"topic": topic, "group": group, "lag": count})
    else:
        write_line(str(count))


@app.command("pending")
def pending(path: StorePath, topic: TopicName, group: GroupName, as_json: AsJson = False) -> None:
    """Print what was delivered, to whom, and is not acknowledged."""
    with stratalog.open(path, read_only=True) as store:
        entries = store.topic(topic).group(group).pending()
    if as_json:
        for entry in entries:
            write_json(msgspec.structs.asdict(entry))
    else:
        write_table(
            (">offset", "consumer", ">deliveries", "delivered", "until"),
            [
                (str(e.offset), e.consumer or "(given back)", str(e.delivery_count),
                 time_text(e.delivered_at), time_text(e.deadline))
                for e in entries
            ],
        )  # fmt: skip


@app.command("seek")
def seek(
    path: StorePath,
    topic: TopicName,
    group: GroupName,
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="earliest, latest, an offset, or a time.")
    ],
    as_json: AsJson = False,
) -> None:
    """Deliver everything from an offset or a time on again, and nothing below."""
    with stratalog.open(path) as store:
        handle = store.find_topic(topic)
        if handle is None or group not in handle.groups():
            raise UnknownGroupError(f"topic {topic!r} has no group {group!r}: see group list")
        offset = handle.group(group).seek(parse_place(place))
    show_seek(group, offset, as_json=as_json)

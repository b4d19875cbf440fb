"""`stratalog queue ...`: put, get and look after messages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

import stratalog
from stratalog import OptionError, Put, Queue, Record, Store
from stratalog.cli.append import batches
from stratalog.cli.output import AsJson, count_text, write_facts, write_json, write_line
from stratalog.cli.records import make_show, parse_headers, parse_time, to_json
from stratalog.model import Delivery
from stratalog.state.catalog import unknown

app = typer.Typer(name="queue", help="Put, get and manage messages.", no_args_is_help=True)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the store.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Most messages.")]


@app.command("put")
def put(
    path: StorePath,
    queue: QueueName,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VALUE",
            show_default=False,
            help="Messages; without any, or with - alone, lines of standard input.",
        ),
    ] = None,
    priority: Annotated[int, typer.Option(help="0 to 255; 0 is the most urgent.")] = 0,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time until they expire.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time before they are delivered.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Deduplication id, for a single message.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", show_default=False, help="A header; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put messages into a queue, which is made if there is none."""
    given = None if values == ["-"] else values
    if id is not None and len(given or ()) != 1:
        count = len(given) if given else "lines of standard input"
        raise OptionError(f"--id is for one message: {count} were given")
    headers = parse_headers(header or ())
    with stratalog.open(path) as store:
        handle = store.queue(queue)
        for batch in batches(given, store.options.record_bytes_max):
            for value in batch:
                done = handle.put(
                    value, priority=priority, ttl=ttl, delay=delay, dedup_id=id,
                    headers=headers or None,
                )  # fmt: skip
                _show_put(queue, done, as_json=as_json)


def _show_put(queue: str, put: Put, *, as_json: bool) -> None:
    if as_json:
        write_json({"queue": queue, "offset": put.offset, "duplicate": put.duplicate})
    else:
        what = "duplicate of" if put.duplicate else "put as"
        write_line(f"{queue}: {what} offset {put.offset}")


@app.command("get")
def get(
    path: StorePath,
    queue: QueueName,
    limit: Limit = 1,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time to wait.")] = 0.0,
    ack: Annotated[
        bool, typer.Option(help="Acknowledge printed messages; else they come again.")
    ] = True,
    values: Annotated[
        bool, typer.Option("--values", help="Print the payloads alone, as they are.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Get messages and print them; ends with 7 if there is none."""
    with stratalog.open(path) as store:
        handle = store.queue(_existing(store, queue))
        messages = handle.get_many(limit, timeout=timeout, consumer="command line")
        _show(messages, as_json=as_json, as_values=values)
        sys.stdout.flush()
        if ack:
            handle.ack(*messages)
    if not messages:
        raise stratalog.QueueEmptyError(f"queue {queue!r} has no message that can be got now")


Offsets = Annotated[
    list[int],
    typer.Argument(metavar="OFFSET", help="Messages that `get --no-ack` has printed."),
]


@app.command("ack")
def ack(path: StorePath, queue: QueueName, offsets: Offsets, as_json: AsJson = False) -> None:
    """Acknowledge messages that were got and not acknowledged: they do not come again."""
    with stratalog.open(path) as store:
        _held(store, queue, offsets).ack(offsets)
    _show_settled(queue, offsets, "done", as_json=as_json)


@app.command("nack")
def nack(
    path: StorePath,
    queue: QueueName,
    offsets: Offsets,
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time before they are delivered again.")
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason, kept in a dead letter's headers.")] = "",
    as_json: AsJson = False,
) -> None:
    """Give messages back that were got and not acknowledged: they come again."""
    with stratalog.open(path) as store:
        _held(store, queue, offsets).nack(offsets, delay=delay, reason=reason)
    _show_settled(queue, offsets, "given back", as_json=as_json)


def _held(store: Store, queue: str, offsets: list[int]) -> Queue:
    """Return the queue, if all of these messages are pending."""
    handle = store.queue(_existing(store, queue))
    free = [offset for offset in offsets if offset not in handle.engine.state.pending]
    if free:
        raise stratalog.LeaseLostError(
            f"offset {free[0]} of queue {queue!r} is not held by any consumer. Get it first, with "
            "`stratalog queue get --no-ack`."
        )
    return handle


def _show_settled(queue: str, offsets: list[int], what: str, *, as_json: bool) -> None:
    for offset in offsets:
        if as_json:
            write_json({"queue": queue, "offset": offset, "state": what})
        else:
            write_line(f"{queue}: offset {offset} {what}")


@app.command("peek")
def peek(path: StorePath, queue: QueueName, limit: Limit = 10, as_json: AsJson = False) -> None:
    """Print the messages that would be got next, and leave them there."""
    with stratalog.open(path, read_only=True) as store:
        _show(store.queue(queue).peek(limit), as_json=as_json)


@app.command("stats")
def stats(
    path: StorePath,
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="One queue; all if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print how many messages wait, are delayed, are held, are dead."""
    with stratalog.open(path, read_only=True) as store:
        for number, name in enumerate(store.queues() if queue is None else [queue]):
            found = msgspec.structs.asdict(store.queue(name).stats())
            if as_json:
                write_json(found)
                continue
            if number:
                write_line("")
            write_facts((field, str(item)) for field, item in found.items())


@app.command("dead")
def dead(
    path: StorePath,
    queue: QueueName,
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Most to print.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the dead letters of a queue; their headers say why they are."""
    with stratalog.open(path, read_only=True) as store:
        show = make_show(as_json=as_json)
        for letter in store.queue(queue).dead.read(limit=limit):
            show(letter)


@app.command("requeue")
def requeue(
    path: StorePath,
    queue: QueueName,
    offsets: Annotated[
        list[int] | None,
        typer.Argument(metavar="OFFSET", show_default=False, help="Dead letters; all if none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into their queue."""
    with stratalog.open(path) as store:
        puts = store.queue(_existing(store, queue)).dead.requeue(*(offsets or ()))
    for one in puts:
        _show_put(queue, one, as_json=as_json)
    if not puts and not as_json:
        write_line(f"{queue}: no dead letters")


@app.command("purge")
def purge(
    path: StorePath,
    queue: QueueName,
    dead: Annotated[bool, typer.Option("--dead", help="The dead letters, not the queue.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget all messages of a queue, or all of its dead letters."""
    with stratalog.open(path) as store:
        handle = store.queue(_existing(store, queue))
        count = handle.dead.purge() if dead else handle.purge()
    if as_json:
        write_json({"queue": queue, "dead": dead, "purged": count})
    else:
        what = "dead letter" if dead else "message"
        write_line(f"{queue}: {count_text(count, what)} gone")


@app.command("seek")
def seek(
    path: StorePath,
    queue: QueueName,
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="earliest, latest, an offset, or a time.")
    ],
    as_json: AsJson = False,
) -> None:
    """Deliver everything from an offset or a time on again, and nothing below."""
    with stratalog.open(path) as store:
        offset = store.queue(_existing(store, queue)).seek(parse_place(place))
    show_seek(queue, offset, as_json=as_json)


def show_seek(name: str, offset: int, *, as_json: bool) -> None:
    """Say where delivery goes on."""
    if as_json:
        write_json({"name": name, "offset": offset})
    else:
        write_line(f"{name}: goes on from offset {offset}")


def parse_place(text: str) -> Any:
    """An offset, one of the two ends, or a time: ISO 8601, or seconds with a point."""
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return int(text)
    return parse_time(text)


def _existing(store: Store, queue: str) -> str:
    """A queue that is there: what is mistyped is not made."""
    if queue not in store.queues() and queue not in store.topics():
        raise unknown("queue", queue, store.queues())
    return queue


def _show(messages: list[Any], *, as_json: bool, as_values: bool = False) -> None:
    show = make_show(as_json=False, as_values=as_values)
    for message in messages:
        record = _record(message)
        if as_json:
            write_json(to_json(record) | {"delivery_count": message.delivery_count})
        else:
            show(record)


def _record(message: Delivery) -> Record:
    return Record(
        message.value, message.key, message.headers, message.tag, message.node,
        message.timestamp, message.offset, message.priority, message.expires_at,
        message.not_before, message.operation, message.more[8],
    )  # fmt: skip

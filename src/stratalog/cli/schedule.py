"""`stratalog schedule ...`: messages that come to a queue at set times."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

import stratalog
from stratalog import Store, UnknownScheduleError
from stratalog.cli.output import AsJson, write_json, write_line, write_table
from stratalog.cli.routes import existing
from stratalog.handles.schedule import Schedule
from stratalog.reports import ScheduleStats

app = typer.Typer(
    name="schedule", help="Put messages into queues at set times.", no_args_is_help=True
)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the store.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]


@app.command("list")
def list_schedules(path: StorePath, as_json: AsJson = False) -> None:
    """Print all schedules with their next due times, and why one puts nothing."""
    with stratalog.open(path, read_only=True) as store:
        found = [schedule.stats() for schedule in store.schedules()]
    if as_json:
        for stats in found:
            write_json(msgspec.structs.asdict(stats))
        return
    write_table(
        ("name", "queue", "due", "state", "next", "last", ">fired"),
        [
            (s.name, s.queue, _rule(s), s.state, _moment(s.next_due), _moment(s.last_due),
             str(s.fired))
            for s in found
        ],
    )  # fmt: skip
    for stats in found:
        if stats.error is not None:
            write_line(stats.error)


def _rule(stats: ScheduleStats) -> str:
    if stats.cron is None:
        return f"every {stats.every:g} s"
    return f"{stats.cron} {stats.timezone}"


def _moment(time_ns: int | None) -> str:
    if time_ns is None:
        return ""
    return datetime.fromtimestamp(time_ns // 10**9, UTC).isoformat().removesuffix("+00:00") + "Z"


@app.command("add")
def add(
    path: StorePath,
    name: Name,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Queue that messages go to.")],
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="Payload of messages; - reads standard input.")
    ] = "",
    cron: Annotated[
        str | None, typer.Option(metavar="FIELDS", help="Due times, as '0 3 * * *' or @daily.")
    ] = None,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time between due times.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Time zone of cron; UTC by default.")
    ] = None,
    priority: Annotated[int, typer.Option(help="0, the most urgent, to 255.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a schedule, or give one other settings; it runs while a process has the store open."""
    data = sys.stdin.buffer.read() if value == "-" else value.encode()
    with stratalog.open(path) as store:
        schedule = store.schedule(
            name, queue=queue, value=data, cron=cron, every=every, timezone=timezone,
            priority=priority,
        )  # fmt: skip
        stats = schedule.stats()
        _show(stats, f"next {_moment(stats.next_due) or 'when resumed'}", as_json=as_json)


@app.command("pause")
def pause(path: StorePath, name: Name, as_json: AsJson = False) -> None:
    """Have a schedule put nothing until it is resumed."""
    with existing(path) as store:
        schedule = _find(store, name)
        schedule.pause()
        _show(schedule.stats(), "paused", as_json=as_json)


@app.command("resume")
def resume(path: StorePath, name: Name, as_json: AsJson = False) -> None:
    """Have a schedule that was paused go on with its next due time."""
    with existing(path) as store:
        schedule = _find(store, name)
        schedule.resume()
        _show(schedule.stats(), "resumed", as_json=as_json)


@app.command("drop")
def drop(path: StorePath, name: Name, as_json: AsJson = False) -> None:
    """Remove a schedule for good; messages that it has put stay in the queue."""
    with existing(path) as store:
        schedule = _find(store, name)
        stats = schedule.stats()
        schedule.drop()
        _show(stats, "dropped", as_json=as_json)


@app.command("run")
def run(path: StorePath, as_json: AsJson = False) -> None:
    """Open the store, put what is due now, and end."""
    with existing(path) as store:
        store.run_schedules()
    list_schedules(path, as_json=as_json)


def _find(store: Store, name: str) -> Schedule:
    found = [schedule for schedule in store.schedules() if schedule.name == name]
    if not found:
        raise UnknownScheduleError(f"There is no schedule {name!r}. See `stratalog schedule list`.")
    return found[-1]


def _show(stats: ScheduleStats, what: str, *, as_json: bool) -> None:
    if as_json:
        write_json(msgspec.structs.asdict(stats))
    else:
        write_line(f"{stats.name}: {what}")

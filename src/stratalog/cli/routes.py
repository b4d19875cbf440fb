"""`stratalog routes ...`: forward records from topics to topics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

import stratalog
from stratalog import Store, UnknownRouteError
from stratalog.cli.output import AsJson, write_json, write_line, write_table
from stratalog.handles.route import Route
from stratalog.reports import RouteStats

app = typer.Typer(name="routes", help="Manage routes between topics.", no_args_is_help=True)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the store.")]
Source = Annotated[str, typer.Argument(metavar="SOURCE", help="Topic to read.")]
Destination = Annotated[str, typer.Argument(metavar="DESTINATION", help="Topic to append to.")]


def existing(path: Path) -> Store:
    """Open a store that must be there: none is made."""
    with stratalog.open(path, read_only=True):
        pass
    return stratalog.open(path)


def _row(stats: RouteStats) -> dict[str, object]:
    row = msgspec.structs.asdict(stats)
    prefix = stats.key_prefix
    row["key_prefix"] = None if prefix is None else prefix.decode(errors="backslashreplace")
    return row


@app.command("list")
def list_routes(path: StorePath, as_json: AsJson = False) -> None:
    """Print all routes with their lag, and why one does not forward."""
    with stratalog.open(path, read_only=True) as store:
        found = [route.stats() for route in store.routes()]
    if as_json:
        for stats in found:
            write_json(_row(stats))
        return
    write_table(
        ("source", "destination", "conditions", "state", ">lag", ">forwarded", ">missed"),
        [
            (s.source, s.destination, _conditions(s), s.state, str(s.lag), str(s.forwarded),
             str(s.missed))
            for s in found
        ],
    )  # fmt: skip
    for stats in found:
        if stats.error is not None:
            write_line(stats.error)


def _conditions(stats: RouteStats) -> str:
    row = _row(stats)
    names = ("tag_glob", "key_prefix", "node")
    return ", ".join(f"{name}={row[name]}" for name in names if row[name] is not None)


@app.command("add")
def add(
    path: StorePath,
    source: Source,
    destination: Destination,
    tag_glob: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only records whose tag matches.")
    ] = None,
    key_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only records whose key begins with this.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Only records that this node appended.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a route; records are forwarded while a process has the store open."""
    with stratalog.open(path) as store:
        stats = store.route(source, destination, tag_glob, key_prefix, node).stats()
    _show(stats, "forwards", as_json=as_json)


@app.command("pause")
def pause(
    path: StorePath, source: Source, destination: Destination, as_json: AsJson = False
) -> None:
    """Have a route forward nothing until it is resumed."""
    with existing(path) as store:
        route = _find(store, source, destination)
        route.pause()
        _show(route.stats(), "paused", as_json=as_json)


@app.command("resume")
def resume(
    path: StorePath, source: Source, destination: Destination, as_json: AsJson = False
) -> None:
    """Have a route that was paused go on."""
    with existing(path) as store:
        route = _find(store, source, destination)
        route.resume()
        _show(route.stats(), "resumed", as_json=as_json)


@app.command("drop")
def drop(
    path: StorePath, source: Source, destination: Destination, as_json: AsJson = False
) -> None:
    """Remove a route for good; both topics keep their records."""
    with existing(path) as store:
        route = _find(store, source, destination)
        stats = route.stats()
        route.drop()
        _show(stats, "dropped", as_json=as_json)


@app.command("run")
def run(
    path: StorePath,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Give up after this long.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open the store, forward everything that is there, and end."""
    with existing(path) as store:
        for route in store.routes():
            if not route.is_paused and route.error is None:
                route.wait(timeout)
    list_routes(path, as_json=as_json)


def _find(store: Store, source: str, destination: str) -> Route:
    found = [
        route
        for route in store.routes()
        if (route.source, route.destination) == (source, destination)
    ]
    if not found:
        raise UnknownRouteError(
            f"There is no route from {source!r} to {destination!r}. See `stratalog routes list`."
        )
    # Of several, all but one are between topics that were dropped: those come first.
    return next((route for route in found if route.error is not None), found[0])


def _show(stats: RouteStats, what: str, *, as_json: bool) -> None:
    if as_json:
        write_json(_row(stats))
    else:
        write_line(f"{stats.source} -> {stats.destination}: {what}")

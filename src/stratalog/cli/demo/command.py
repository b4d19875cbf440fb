"""`stratalog demo`: the main job end to end, in front of the user's eyes."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import stratalog
from stratalog import OptionError
from stratalog.cli.demo.rates import VALUE_BYTES, Rate, file_system, measure
from stratalog.cli.demo.scenes import TOPIC, Play, Scene
from stratalog.cli.demo.spark_scenes import SparkPlay, missing
from stratalog.cli.output import (
    AsJson,
    make_console,
    write_json,
    write_line,
    write_table,
)
from stratalog.cli.spark import hidden_errors

if TYPE_CHECKING:
    from rich.console import Console


def demo(
    path: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="New or empty directory, kept at the end; a temporary one if not given.",
        ),
    ] = None,
    with_spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Include the scenes on Spark.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Append from threads, kill a writer, recover, work, query on Spark: in half a minute."""
    begin = time.perf_counter()
    with _directory(path) as directory, _without_warnings():
        kind = file_system(directory)
        console = None if as_json else make_console()
        if console is not None:
            console.print(f"Stratalog {stratalog.__version__}, in {directory} ({kind})\n")
        scenes = list(_perform(console, Play(directory).scenes()))
        lacks = missing() if with_spark else "as you asked"
        if lacks is None:
            with _spark(directory) as play:
                scenes += _perform(console, play.scenes())
        elif console is not None:
            console.print(f"without Spark: {lacks}", soft_wrap=True)
        with _status(console, "measuring rates"):
            rates = measure(directory)
    seconds = time.perf_counter() - begin
    ok = all(scene.ok for scene in scenes)
    if console is None:
        _write_report(None if path is None else directory, kind, scenes, rates, seconds)
    else:
        _show_rates(rates, kind)
        _show_end(console, ok=ok, seconds=seconds, kept=None if path is None else directory)
    if not ok:
        raise typer.Exit(1)


@contextlib.contextmanager
def _directory(path: Path | None) -> Iterator[str]:
    if path is None:
        with tempfile.TemporaryDirectory(prefix="stratalog-demo-") as directory:
            yield directory
        return
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OptionError(f"{path} exists and is not an empty directory: the demo wants a new one")
    yield os.path.abspath(path)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """The log's own word about a torn tail: the demo is about to tell the story itself."""
    logger = logging.getLogger("stratalog")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _perform(
    console: Console | None, scenes: list[tuple[str, Callable[[], Scene]]]
) -> Iterator[Scene]:
    for title, play in scenes:
        with _status(console, title):
            scene = play()
        if console is not None:
            _show_scene(console, scene)
        yield scene


def _status(console: Console | None, title: str) -> AbstractContextManager[object]:
    return contextlib.nullcontext() if console is None else console.status(title)


@contextlib.contextmanager
def _spark(directory: str) -> Iterator[SparkPlay]:
    """The scenes on Spark, whose JVM has nothing to say on our terminal."""
    with tempfile.TemporaryDirectory(prefix="stratalog-demo-") as scratch, hidden_errors():
        play = SparkPlay(directory, scratch)
        try:
            yield play
        finally:
            play.close()


def _show_scene(console: Console, scene: Scene) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if not console.is_terminal:
        mark = "ok" if scene.ok else "FAILED"
        write_line(f"{mark}  {scene.name}: {scene.did}")
        write_line(f"    {scene.proved}")
        return
    row = Table.grid(padding=(0, 1))
    row.add_column(width=1)
    row.add_column(width=8)
    row.add_column(overflow="fold")
    style = "green" if scene.ok else "bold red"
    said = Text.assemble((scene.did, "dim"), "\n", (scene.proved, "" if scene.ok else style))
    row.add_row(Text("✓" if scene.ok else "✗", style), Text(scene.name, "bold"), said)
    console.print(Padding(row, (0, 0, 0, 1)))


def _show_rates(rates: list[Rate], kind: str) -> None:
    write_line("")
    headings = (f"{VALUE_BYTES}-byte records on {kind}", ">records/s", ">each", "")
    write_table(headings, [_rate_row(rate) for rate in rates])


def _rate_row(rate: Rate) -> tuple[str, ...]:
    microseconds = 1e6 / rate.per_second
    each = f"{microseconds:,.1f} us" if microseconds >= 1 else f"{microseconds * 1000:,.0f} ns"
    return rate.name, f"{rate.per_second:,.0f}", each, rate.note


def _show_end(console: Console, *, ok: bool, seconds: float, kept: str | None) -> None:
    from rich.text import Text

    if not console.is_terminal:
        write_line("")
    verdict = "everything held" if ok else "NOT everything held"
    console.print(Text(f"{verdict}, in {seconds:.1f} s", "bold green" if ok else "bold red"))
    if kept is not None:
        console.print(f"look around: stratalog read {kept} {TOPIC} --limit 10", soft_wrap=True)


def _write_report(
    kept: str | None, kind: str, scenes: list[Scene], rates: list[Rate], seconds: float
) -> None:
    write_json(
        {
            "ok": all(scene.ok for scene in scenes),
            "seconds": round(seconds, 3),
            "path": kept,
            "file_system": kind,
            "steps": scenes,
            "rates": [
                {"name": rate.name, "records_per_second": round(rate.per_second), "note": rate.note}
                for rate in rates
            ],
        }
    )

"""How commands speak: tables and colours on a terminal, plain text in a pipe, JSON on demand."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
"""The option that every command has."""

Paint = Callable[[str, str], str]
"""Takes text and the name of a style."""

# Wider than any table: a pipe has no edge to wrap at.
_PIPE_COLUMNS = 10_000


def make_console() -> Console:
    """A console on standard output, for as long as one command runs."""
    from rich.console import Console  # 30 ms that no other output needs

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1; who catches this exits with 0

    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return _Console(width=width, highlight=False, markup=False, emoji=False)


def make_paint() -> Paint:
    """A function that styles text for this terminal, and does nothing in a pipe."""
    if not sys.stdout.isatty():
        return lambda text, _: text
    from rich.color import ColorSystem
    from rich.style import Style

    console = make_console()
    if console.color_system is None or console.no_color:
        return lambda text, _: text
    return lambda text, style: Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def write_json(item: Any) -> None:
    """One JSON object on a line of its own, in UTF-8 whatever the terminal speaks."""
    sys.stdout.buffer.write(msgspec.json.encode(item) + b"\n")


def write_line(text: str) -> None:
    """One line of text; bytes and lines must not be mixed in one command."""
    sys.stdout.write(text + "\n")


def write_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns in line with each other; a heading that starts with `>` is flush right."""
    from rich import box
    from rich.table import Table

    console = make_console()
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        padding=(0, 1, 0, 0) if console.is_terminal else (0, 1),  # tables fit 80 columns
        pad_edge=console.is_terminal,
        header_style="bold",
    )
    for heading in headings:
        table.add_column(
            heading.removeprefix(">"),
            justify="right" if heading.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        write_line(line.rstrip())


def write_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and what they stand for, one to a line."""
    paint = make_paint()
    pairs = list(facts)
    width = max(len(name) for name, _ in pairs)
    for name, text in pairs:
        write_line(paint(name.ljust(width), "dim") + "  " + text)


@contextlib.contextmanager
def progress_bar(*, is_shown: bool = True) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on a terminal, fed with bytes done, bytes in all and a word; nothing in a pipe."""
    if not is_shown or not sys.stdout.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn
    from rich.text import Text

    class Bytes(DownloadColumn):
        def render(self, task: Task) -> Text:
            """Say nothing while it is not known how much there is to do: Spark is starting."""
            return Text("") if task.total is None else super().render(task)

    columns = (TextColumn("{task.description}"), BarColumn(), Bytes(binary_units=True))
    with Progress(*columns, console=make_console(), transient=True) as bars:
        task = bars.add_task("reading", total=None)

        def show(done: int, total: int, what: str) -> None:
            text = what.rpartition("/")[2][-40:]
            bars.update(task, completed=done, total=total or None, description=text)

        yield show


def bytes_text(count: int) -> str:
    """A size as people say it."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def time_text(nanoseconds: int) -> str:
    """A timestamp as ISO 8601 in UTC, cut to microseconds: `--from-time` takes it back."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{_second_text(seconds)}.{rest // 1000:06d}Z"


@functools.lru_cache(maxsize=64)  # records of one second are usually neighbours
def _second_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def count_text(count: int, what: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"

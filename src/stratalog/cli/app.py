"""The commands put together, and what becomes of their errors."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import stratalog
from stratalog.cli import append as write
from stratalog.cli import backup as keep
from stratalog.cli import (
    care,
    compact,
    delete,
    group,
    look,
    moving,
    pipeline,
    queue,
    routes,
    schedule,
    series,
    table,
    topic,
)
from stratalog.cli.demo import command as demo
from stratalog.errors import (
    ConflictError,
    FormatError,
    MissingPackageError,
    PressureError,
    StateError,
    StorageError,
    UsageError,
)

_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (UsageError, 2),
    (ConflictError, 3),
    (StateError, 4),
    (StorageError, 5),
    (FormatError, 6),
    (PressureError, 7),
    (OSError, 5),  # a directory that may not be read, a file where a directory should be
)


_EXTRAS = {
    "pyspark": "spark", "py4j": "spark", "pandas": "spark", "grpc": "spark",
    "deltalake": "delta", "pyiceberg": "iceberg", "obstore": "cold",
}  # fmt: skip
"""Packages that a command may find missing, and the extra of ours that has them."""


def exit_code(error: Exception) -> int:
    """Return the exit code of the process for this error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


class Commands(TyperGroup):
    """All commands, with errors that users can expect turned into a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a reader that went away (`| head`) is no error."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(0) from None
        except (stratalog.StratalogError, OSError) as error:
            _fail(error)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            _fail(MissingPackageError(f"{error}: pip install 'stratalog[{extra}]'"))
        return result


def _fail(error: Exception) -> None:
    try:
        sys.stdout.flush()  # what was found before the error stands before it
    except BrokenPipeError:
        _discard_output()
    print(f"error: {_sentence(error)}", file=sys.stderr)
    raise typer.Exit(exit_code(error)) from None


def _sentence(error: Exception) -> str:
    """Say an error; one of the system's without its number."""
    if isinstance(error, OSError) and not isinstance(error, stratalog.StratalogError):
        reason = error.strerror or str(error)
        return reason if error.filename is None else f"{error.filename}: {reason}"
    return str(error)


def _discard_output() -> None:
    """Send what is still buffered nowhere, or the interpreter complains when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


app = typer.Typer(
    name="stratalog",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    # Boxes and colours are for people; help and usage errors are plain when piped.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"stratalog {stratalog.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A durable append-only log: append, read and follow its topics."""


app.command("demo")(demo.demo)
app.command("append")(write.append)
app.command("create")(topic.create)
app.command("alter")(topic.alter)
app.command("delete")(delete.delete)
app.command("read")(look.read)
app.command("tail")(look.tail)
app.command("topics")(look.topics)
app.command("stats")(look.stats)
app.command("backup")(keep.backup)
app.command("compact")(compact.compact)
app.command("verify")(care.verify)
app.command("repair")(care.repair)
app.command("inspect")(care.inspect)
app.command("export")(moving.export)
app.command("import")(moving.import_)
app.add_typer(queue.app)
app.add_typer(table.app)
app.add_typer(series.app)
app.add_typer(group.app)
app.add_typer(routes.app)
app.add_typer(schedule.app)
app.add_typer(pipeline.app)


def run() -> None:
    """Run the command line of this process."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    logging.getLogger("stratalog").addHandler(handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its escape, not a traceback.
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="stratalog")

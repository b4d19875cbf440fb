"""The commands of the data pipeline on Spark."""

from __future__ import annotations

import typer

from stratalog.cli import declared

app = typer.Typer(name="pipeline", no_args_is_help=True, help="Jobs on Spark.")
app.command("run")(declared.run)


@app.callback()
def _root() -> None:
    """Jobs that read or rewrite history, on Spark."""

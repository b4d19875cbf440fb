"""The commands of the data pipeline on Spark."""

from __future__ import annotations

import sys

import typer

from stratalog.cli import jobs, moving
from stratalog.cli import pipeline_run as declared

app = typer.Typer(
    name="pipeline",
    no_args_is_help=True,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    help="Jobs over all of a store, on Spark: on this machine, or on a cluster.",
)
app.command("run")(declared.run)
app.command("verify")(jobs.verify)
app.command("report")(jobs.report)
app.command("compact")(jobs.compact)
app.command("backfill")(jobs.backfill)
app.command("export")(moving.export)
app.command("import")(moving.import_)
app.command("replay")(moving.replay)

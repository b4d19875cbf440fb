"""`stratalog pipeline verify` and others: what reads or rewrites all of a store, on Spark.

Nothing of Spark is loaded before a command runs: the others do not wait for it, and do without it.
"""

from __future__ import annotations

import typer

from stratalog.cli.care import EXIT_DAMAGED, ColdUrl, show_report
from stratalog.cli.look import StorePath
from stratalog.cli.output import AsJson, progress_bar
from stratalog.cli.spark import Master, spark_for


def verify(
    path: StorePath,
    cold: ColdUrl = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a store, on all cores. Damage ends with exit code 6.

    Says what `stratalog verify` says; worth its start of some seconds from tens of gigabytes on.
    """
    from stratalog.spark.jobs import verify

    with (
        progress_bar(is_shown=not as_json) as progress,
        spark_for(master, progress) as spark,
    ):
        report = verify(path, spark=spark, cold=cold, progress=progress)
    show_report(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(EXIT_DAMAGED)

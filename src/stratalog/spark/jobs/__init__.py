"""Jobs over a whole store, each a function here and a command of `stratalog pipeline`.

All of them take `spark=`, a session to run on, or `master=`, where to start one for the duration of
the job; by default that is all cores of this machine.
"""

from __future__ import annotations

from stratalog.spark.session import missing_package

try:
    from stratalog.spark.jobs.backfill import backfill
    from stratalog.spark.jobs.compact import compact
    from stratalog.spark.jobs.export import export
    from stratalog.spark.jobs.import_rows import import_from
    from stratalog.spark.jobs.replay import replay
    from stratalog.spark.jobs.report import report
    from stratalog.spark.jobs.verify import verify
except ImportError as error:
    raise missing_package(error) from error

__all__ = ["backfill", "compact", "export", "import_from", "replay", "report", "verify"]

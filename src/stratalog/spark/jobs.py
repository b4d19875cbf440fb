"""Jobs over the whole of a store, each a function here and a command of `stratalog pipeline`.

All of them take `spark=`, a session to run on, or `master=`, where to start one for as long as the
job lasts; by default that is all cores of this machine.
"""

from __future__ import annotations

from stratalog.spark.backfill import backfill
from stratalog.spark.compact import compact
from stratalog.spark.export import export
from stratalog.spark.importing import import_from
from stratalog.spark.replay import replay
from stratalog.spark.report import report
from stratalog.spark.verify import verify

__all__ = ["backfill", "compact", "export", "import_from", "replay", "report", "verify"]

"""Runs commands of `stratalog` in one Spark session: a JSON list a line in, [code, text] out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

from stratalog.cli import main
from stratalog.spark import session


def run(arguments: list[str]) -> tuple[int, str]:
    """Run one command; returns its exit code and all that it printed."""
    data = io.BytesIO()
    printed = io.TextIOWrapper(data, write_through=True)
    code = 0
    sys.argv = ["stratalog", *arguments]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    printed.flush()
    return code, data.getvalue().decode()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    made = session("local[2]", config={"spark.sql.shuffle.partitions": "2"})
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)
    made.stop()

"""The command line: `stratalog`, or `python -m stratalog.cli`.

Exit codes: 0 done, 1 a check of `demo` or a job on Spark failed, 2 wrong usage, 3 conflict,
4 state, 5 storage, 6 format or corruption, 7 pressure, 130 interrupted.
"""

from __future__ import annotations


def main() -> None:
    """Run the command that `sys.argv` asks for, and exit."""
    # Imported here: other modules of this package are started on their own, without typer.
    from stratalog.cli.app import run

    run()


__all__ = ["main"]

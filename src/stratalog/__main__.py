"""`python -m stratalog`: the command line."""

from __future__ import annotations

from stratalog.cli import main

if __name__ == "__main__":
    main()

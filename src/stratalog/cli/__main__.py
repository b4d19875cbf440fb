"""`python -m stratalog.cli`."""

from __future__ import annotations

from stratalog.cli import main

if __name__ == "__main__":
    main()

"""A handle as a notebook shows it: its name and its numbers, as a small HTML table."""

from __future__ import annotations

from html import escape
from typing import Protocol

import msgspec

from stratalog.errors import StratalogError


class Described(Protocol):
    """A handle that knows its own numbers."""

    def stats(self) -> msgspec.Struct:
        """Return numbers about the handle's object."""


def html_of(handle: Described) -> str:
    """Render a handle for `_repr_html_`.

    A notebook shows the value of a cell without being asked to, so this never raises: a handle
    whose store is closed or whose topic was dropped is shown with the reason instead of numbers.
    """
    title = escape(repr(handle))
    try:
        numbers = msgspec.structs.asdict(handle.stats())
    except StratalogError as error:
        return f"<p><code>{title}</code><br>{escape(str(error))}</p>"
    rows = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(_shown(name, value))}</td></tr>"
        for name, value in numbers.items()
        if value not in (None, "", {})
    )
    return f"<table><caption><code>{title}</code></caption>{rows}</table>"


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    if name.endswith("timestamp"):
        return f"{value / 1e9:.3f} s since 1970" if value else "none"
    return f"{value:,}"

"""Windows whose points retention has removed, answered from a series that a rule keeps.

A value of a window is computed from values of the smaller windows of the rule:

| aggregate | of the rule's windows and series | where |
|---|---|---|
| sum, count, min, max | sum, sum, min, max | everywhere, exact |
| avg | the average of averages | everywhere, exact where all have as many points |
| delta, rate | the sum | a rule has this very window |
| first, last | the first, the last | a group is one series |
| stddev, percentile | the value itself | a group is one series, and a rule has this very window |

Where no rule fits, there is no value: the points are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stratalog.format.points import Int64s
from stratalog.format.series import Rules, Tier
from stratalog.options import TIME_MAX
from stratalog.state.aggregate import Aggregate, Windows, aggregate_pieces
from stratalog.state.series_scan import Request, ranks, scan
from stratalog.state.series_state import SeriesState

_COMPOSED = {
    "avg": "avg", "sum": "sum", "count": "sum", "min": "min", "max": "max", "first": "first",
    "last": "last", "stddev": "last", "percentile": "last", "delta": "sum", "rate": "sum",
}  # fmt: skip
"""The aggregate that makes a value of several windows or series of a rule, by that of the rule."""
_OF_ONE_WINDOW = ("stddev", "percentile", "delta", "rate")
_OF_ONE_SERIES = ("first", "last", "stddev", "percentile")


class Found(NamedTuple):
    """Values of windows, and the tags of their groups."""

    windows: list[Windows]
    columns: list[list[str | None]]
    """For each tag that makes groups, its value in each group."""


def rule_name(how: Aggregate) -> str:
    """Return an aggregate as rules name it: percentiles as p95 and such."""
    return how.name if how.name != "percentile" else f"p{how.percentile:g}"


def find_rule(rules: Rules, how: Aggregate, width: int) -> Tier | None:
    """Find the rule with the largest windows that windows of this width can be made of."""
    fitting = [
        tier for tier in rules.tiers
        if tier.aggregate == rule_name(how) and not width % tier.window_ns
        and (tier.window_ns == width or how.name not in _OF_ONE_WINDOW)
    ]  # fmt: skip
    return max(fitting, key=lambda tier: tier.window_ns, default=None)


def aggregate(
    state: SeriesState, request: Request, how: Aggregate, width: int, by: Sequence[str]
) -> Found:
    """Compute the values of all windows of a request; 0 is one window for all."""
    registry = request.registry
    codes, columns = registry.group(request.ids, by)
    groups = np.zeros(len(registry.keys), np.int64)
    groups[request.ids] = codes
    order = ranks(request.ids)
    windows = [
        aggregate_pieces(pieces, how, groups, order, width)
        for pieces in scan(state, request, width or TIME_MAX)
    ]
    return Found(windows, columns)


def compose(
    state: SeriesState, request: Request, how: Aggregate, width: int, by: Sequence[str]
) -> Found | None:
    """Compute the values of windows from points that a rule has made; None if they do not tell."""
    if how.name in _OF_ONE_SERIES:
        codes, _ = request.registry.group(request.ids, by)
        if len(np.unique(codes)) < len(codes):
            return None
    return aggregate(state, request, Aggregate(_COMPOSED[how.name]), width, by)


def join(older: Found, newer: Found) -> Found:
    """Put values of two series together; groups are those of both, in the order of their tags."""
    if not older.columns:
        return Found(older.windows + newer.windows, [])
    rows = [list(zip(*found.columns, strict=True)) for found in (older, newer)]
    groups = sorted({*rows[0], *rows[1]}, key=lambda row: tuple(value or "" for value in row))
    place = {row: number for number, row in enumerate(groups)}
    windows = []
    for found, own in zip((older, newer), rows, strict=True):
        codes: Int64s = np.array([place[row] for row in own], np.int64)
        windows += [one._replace(groups=codes[one.groups]) for one in found.windows]
    return Found(windows, [list(column) for column in zip(*groups, strict=True)] or newer.columns)

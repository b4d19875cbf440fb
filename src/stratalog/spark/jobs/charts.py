"""Charts as SVG for a page: bars and lines over time, bars of sizes and of shares.

Colours are variables of the page, so they follow its light or dark theme. Every mark has a title,
which a browser shows as a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 560, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 8, 10, 26

Format = Callable[[float], str]


class Line(NamedTuple):
    """One line of a chart: its name, and a value for each span of time (0 is none)."""

    name: str
    values: Sequence[float]
    style: str


def count_text(value: float) -> str:
    """Format a count, short."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def bytes_text(value: float) -> str:
    """Format a number of bytes, short."""
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"


def duration_text(nanoseconds: float) -> str:
    """Format a duration, short."""
    for size, unit in ((86400e9, "d"), (3600e9, "h"), (60e9, "min"), (1e9, "s"), (1e6, "ms"),
                       (1e3, "us")):  # fmt: skip
        if nanoseconds >= size and (nanoseconds >= 2 * size or nanoseconds % size == 0):
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def time_text(nanoseconds: float, *, precise: bool = True) -> str:
    """Format a time in UTC."""
    moment = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S" if precise else "%Y-%m-%d")


def bars(times: Sequence[int], width: int, values: Sequence[float], text: Format) -> str:
    """Draw amounts over time; `width` is the length of a span."""
    top = _nice(max(values, default=0) or 1, 1024 if text is bytes_text else 1000)
    parts = _frame(
        [(value, _y(value / top), text(value)) for value in (0, top / 2, top)], times, width
    )
    step = _inner() / max(1, len(values))
    for number, value in enumerate(values):
        if value:
            y = _y(value / top)
            about = f"{time_text(times[number])} UTC: {text(value)}"
            parts.append(
                f'<rect class="bar" x="{_LEFT + number * step:.1f}" y="{y:.1f}" '
                f'width="{max(step - min(1, step / 4), 0.5):.1f}" height="{_y(0) - y:.1f}">'
                f"<title>{escape(about)}</title></rect>"
            )
    return _svg(parts)


def lines(times: Sequence[int], width: int, drawn: Sequence[Line], text: Format) -> str:
    """Draw durations over time, on a logarithmic scale."""
    found = [value for line in drawn for value in line.values if value > 0]
    low = math.floor(math.log10(min(found))) if found else 0
    high = max(low + 1, math.ceil(math.log10(max(found)))) if found else 1
    skip = max(1, (high - low) // 4)
    ticks = [
        (10.0**power, _y((power - low) / (high - low)), text(10.0**power))
        for power in range(low, high + 1, skip)
    ]
    parts = _frame(ticks, times, width)
    step = _inner() / max(1, len(times))
    for line in drawn:
        points = [
            (_LEFT + (number + 0.5) * step, _y((math.log10(value) - low) / (high - low)), number)
            for number, value in enumerate(line.values)
            if value > 0
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="line {line.style}" points="{path}"/>')
        for x, y, number in points:
            about = f"{time_text(times[number])} UTC: {line.name} {text(line.values[number])}"
            parts.append(
                f'<circle class="dot {line.style}" cx="{x:.1f}" cy="{y:.1f}" r="2">'
                f"<title>{escape(about)}</title></circle>"
            )
    return _svg(parts)


def histogram(labels: Sequence[str], values: Sequence[int], abouts: Sequence[str]) -> str:
    """Draw amounts by kind, side by side."""
    top = _nice(max(values, default=0) or 1, 1000)
    parts = [_rule(_y(share), count_text(top * share)) for share in (0, 0.5, 1)]
    step = _inner() / max(1, len(values))
    skip = -(-len(labels) // 9)
    for number, value in enumerate(values):
        x, y = _LEFT + number * step, _y(value / top)
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{max(step - 2, 1):.1f}" '
            f'height="{_y(0) - y:.1f}"><title>{escape(abouts[number])}</title></rect>'
        )
        if number % skip == 0:
            parts.append(
                f'<text class="tick" x="{x + step / 2:.1f}" y="{_HEIGHT - 8}" '
                f'text-anchor="middle">{escape(labels[number])}</text>'
            )
    return _svg(parts)


def spark_line(values: Sequence[float]) -> str:
    """Draw a line without labels, as high as a line of text."""
    top = max(values, default=0) or 1
    step = 120 / max(1, len(values))
    path = " ".join(
        f"{(number + 0.5) * step:.1f},{21 - 19 * value / top:.1f}"
        for number, value in enumerate(values)
    )
    return (
        f'<svg class="spark" viewBox="0 0 120 22" aria-hidden="true">'
        f'<polyline class="line one" points="{path}"/></svg>'
    )


def _svg(parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _inner() -> float:
    return float(_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    """Return the y coordinate of a share of the scale."""
    return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)


def _rule(y: float, label: str) -> str:
    return (
        f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
        f"{escape(label)}</text>"
    )


def _frame(
    ticks: Sequence[tuple[float, float, str]], times: Sequence[int], width: int
) -> list[str]:
    """Draw rules across, and times below."""
    parts = [_rule(y, label) for _, y, label in ticks]
    if not times:
        return parts
    length = len(times) * width
    form = _time_form(length)
    count = min(len(times), 4)
    for number in range(count):
        share = (number + 0.5) / count
        moment = datetime.fromtimestamp((times[0] + share * length) / 1e9, UTC)
        parts.append(
            f'<text class="tick" x="{_LEFT + share * _inner():.1f}" y="{_HEIGHT - 8}" '
            f'text-anchor="middle">{moment.strftime(form)}</text>'
        )
    return parts


def _time_form(length: int) -> str:
    """Choose the format of a time for an axis of this length."""
    if length < 5 * 60 * 10**9:
        return "%H:%M:%S"
    if length < 20 * 3600 * 10**9:
        return "%H:%M"
    return "%b %d %H:%M" if length < 10 * 86400 * 10**9 else "%Y-%m-%d"


def _nice(value: float, thousand: int) -> float:
    """Round up to a number that is easy to halve and to read."""
    unit = 1.0
    while value >= unit * thousand:
        unit *= thousand
    steps = (1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 800, thousand)
    return next(step * unit for step in steps if step * unit >= value * 0.9999)

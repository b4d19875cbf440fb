"""Times as text in Go's notation, and descriptions of records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime


def nanoseconds(text: str) -> int:
    """Parse an RFC 3339 time with up to nine digits of a second, to nanoseconds since 1970.

    0 for any other text, and for Go's zero time.
    """
    found = re.fullmatch(r"(.*?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", text)
    if found is None:
        return 0
    try:
        whole = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    except ValueError:
        return 0
    seconds = int(whole.timestamp()) if whole.year > 1 else 0
    return max(0, seconds * 10**9 + int((found[2] or "").ljust(9, "0")[:9]))


def span(noun: str, start: int, end: int) -> str:
    """Describe a range of numbers, as `records 3 to 7`; empty if there are none."""
    if end - start <= 1:
        return f"{noun} {start}" if end > start else ""
    return f"{noun}s {start} to {end - 1}"


def times_of(noun: str, numbers: Sequence[int], what: str = "time") -> str:
    """Describe the times of some records, given by ascending numbers."""
    whats = what.removesuffix("y") + "ies" if what.endswith("y") else what + "s"
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"the {what} of {noun} {first}"
    if last - first + 1 == len(numbers):
        return f"the {whats} of {span(noun, first, last + 1)}"
    return f"the {whats} of {len(numbers)} {noun}s from {first} to {last}"


def rfc3339(time: int) -> str:
    """Format nanoseconds since 1970 as an RFC 3339 time, without trailing zeros."""
    seconds, rest = divmod(time, 10**9)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return text + f".{rest:09d}".rstrip("0").rstrip(".") + "Z"

"""Due times of a schedule: a cron expression in a time zone, or a fixed interval.

Cron is what Debian's cron does, daylight saving included: a job at a fixed time that a change of
clocks skips comes right after the change, and one whose time comes twice comes once; a job that
comes at least every hour follows the clock on the wall both times.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from stratalog.errors import OptionError, WrongTypeError
from stratalog.options import TIME_MAX

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_SECOND = 10**9


class DueTimes(Protocol):
    """Times in nanoseconds since 1970, rising."""

    def after(self, now: int) -> int:
        """Return the first one after a time."""

    def newest(self, now: int) -> int:
        """Return the last one at or before a time."""


class Every:
    """Due times at equal distances from one of them."""

    def __init__(self, step: int, anchor: int) -> None:
        self._step = step
        self._anchor = anchor

    def after(self, now: int) -> int:
        """Return the first one after a time."""
        return self.newest(now) + self._step

    def newest(self, now: int) -> int:
        """Return the last one at or before a time."""
        return now - (now - self._anchor) % self._step


class Cron:
    """Due times of a cron expression."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        self._expression = expression
        self._zone = zone

    def after(self, now: int) -> int:
        """Return the first one after a time."""
        # Down to the second: what is in the second that has begun was due at its beginning.
        return self._first(self._moment(now), is_reverse=False)

    def newest(self, now: int) -> int:
        """Return the last one at or before a time."""
        # One in this very second counts: cronsim looks before the time it is given.
        return self._first(self._moment(now) + timedelta(seconds=1), is_reverse=True)

    def _moment(self, now: int) -> datetime:
        return datetime.fromtimestamp(now // _SECOND, UTC)

    def _first(self, moment: datetime, *, is_reverse: bool) -> int:
        times = CronSim(self._expression, moment.astimezone(self._zone), reverse=is_reverse)
        try:
            found = round(next(times).timestamp()) * _SECOND
        except (StopIteration, OverflowError):
            found = -1
        if not 0 <= found <= TIME_MAX:
            raise OptionError(f"cron={self._expression!r} is never due in the next fifty years")
        return found


def check_cron(expression: Any) -> str:
    """Check a cron expression, and resolve aliases."""
    if not isinstance(expression, str):
        raise WrongTypeError(f"cron={expression!r} must be text such as '0 3 * * *'")
    plain = ALIASES.get(expression.strip().lower(), " ".join(expression.split()))
    try:
        CronSim(plain, datetime(2000, 1, 1, tzinfo=UTC))
    # An empty set of days, and other slips of the parser, are the expression's fault as well.
    except (CronSimError, ValueError, AssertionError, IndexError, TypeError) as error:
        raise OptionError(
            f"cron={expression!r} cannot be read: {error}. Give minute, hour, day of the month, "
            "month and day of the week, as in '0 3 * * *', or a word such as '@daily'."
        ) from None
    return plain


def check_zone(zone: Any) -> str:
    """Check the name of a time zone, which must be known on this machine."""
    name = zone.key if isinstance(zone, ZoneInfo) else "UTC" if zone is UTC else zone
    if not isinstance(name, str):
        raise WrongTypeError(
            f"timezone={zone!r} must be a name such as 'Europe/Berlin' or a ZoneInfo"
        )
    find_zone(name)
    return name


def find_zone(name: str) -> ZoneInfo:
    """Find the time zone of a name."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError) as error:  # what is not found is a KeyError, below
        raise OptionError(f"timezone={name!r} is not the name of a time zone: {error}") from None
    except KeyError:
        raise OptionError(
            f"timezone={name!r} is not known on this machine. Give a name such as 'Europe/Berlin'; "
            "if that is one, install the package tzdata."
        ) from None


def due_times(cron: str | None, every: int, anchor: int, zone: str) -> DueTimes:
    """Build the due times of a schedule with these settings."""
    return Every(every, anchor) if cron is None else Cron(cron, find_zone(zone))

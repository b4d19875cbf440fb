"""Options of a read: those of `spark.read.format("stratalog")`, parsed.

Names are those of Spark's Kafka source where the meaning is the same. Spark passes them in lower
case, and as text.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
from collections.abc import Mapping, Set
from datetime import UTC, datetime
from typing import Any, NamedTuple

from stratalog.errors import OptionError, UnknownTopicError
from stratalog.options import TIME_MAX, check_known
from stratalog.spark.places import absolute
from stratalog.spark.source.columns import COLUMNS
from stratalog.state.catalog import Catalog

OPTIONS = (
    "path", "topic", "columns", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "failOnDataLoss", "includeHeaders", "minPartitions", "maxPartitionBytes",
    "verify", "cold", "lake",
)  # fmt: skip
"""All options of a read."""

_STREAM_ONLY = (
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
)  # fmt: skip
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# As Kafka's source has it.
_TRIGGER_DELAY = "15m"

_NAMES = {name.lower(): name for name in OPTIONS}
_GLOB = re.compile(r"[*?\[]")
_NAMES_LIST = re.compile(r"\s*\[\s*[\"\]]")  # JSON, and not the pattern [ab]
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20,
          "g": 1 << 30, "gb": 1 << 30}  # fmt: skip

EARLIEST, LATEST = -2, -1
"""The numbers that Kafka uses for them."""


class Position(NamedTuple):
    """A place in a topic: an offset, `EARLIEST`, `LATEST`, or a time in nanoseconds."""

    number: int
    is_time: bool = False


class Positions(NamedTuple):
    """Places in several topics."""

    option: str
    """The option's name, for messages."""
    default: Position
    by_topic: dict[str, Position]

    def of(self, topic: str) -> Position:
        """Return the place in one topic."""
        return self.by_topic.get(topic, self.default)

    def check(self, topics: list[str]) -> None:
        """Refuse places in topics that are not read."""
        check_known(f"topic in {self.option}", self.by_topic, topics)


class Topics(NamedTuple):
    """The selected topics: names, and patterns of names."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]

    def choose(
        self, catalog: Catalog, *, may_miss: bool = False, skip: Set[str] = frozenset()
    ) -> list[str]:
        """Return the names of the selected topics that exist, sorted; raises for one that does not.

        Also raises for a pattern without a match, unless it `may_miss` because the read follows
        topics to come. `skip` are names that the caller knows already.
        """
        present = catalog.names()
        chosen = {catalog.find(name).name for name in self.names if name not in skip}
        for pattern in self.patterns:
            # A topic may be named `a*`; a pattern equal to its name selects it.
            matched = [pattern] if pattern in present else fnmatch.filter(present, pattern)
            if not matched and not may_miss:
                raise UnknownTopicError(
                    f"no topic matches {pattern!r}: the store has {_some(present)}"
                )
            chosen.update(matched)
        return sorted(chosen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The parsed options of a read."""

    path: str
    topics: Topics
    columns: tuple[str, ...] | None
    """The selected columns; None for those of the schema."""
    start: Positions
    end: Positions
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay: float
    """Seconds after which a micro-batch comes that is smaller than that."""
    fail_on_data_loss: bool
    include_headers: bool
    partitions_min: int | None
    partition_bytes_max: int | None
    verify: bool
    cold: str | None
    """Location of the cold segments; None for the one in the log."""
    lake: str | None
    """Where the lake is; None is where the log says it is."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
        """Parse what Spark passes; raises an `OptionError` that names the mistake."""
        values = _named(given)
        if not is_stream:
            for name in _STREAM_ONLY:
                if name in values:
                    raise OptionError(f"option {name!r} is for spark.readStream, not spark.read")
        path = values.get("path", "")
        if not path:
            raise OptionError("which store? give its directory or URL: .load('path/to/store')")
        return cls(
            path=absolute(path),
            topics=_topics(values.get("topic")),
            columns=columns_of(given),
            start=_positions(
                values, "startingOffsets", "startingTimestamp", LATEST if is_stream else EARLIEST
            ),
            end=_positions(values, "endingOffsets", "endingTimestamp", LATEST),
            max_offsets_per_trigger=_number(values, "maxOffsetsPerTrigger"),
            max_bytes_per_trigger=_bytes(values, "maxBytesPerTrigger"),
            min_offsets_per_trigger=_min_offsets(values),
            max_trigger_delay=_seconds(values, "maxTriggerDelay", _TRIGGER_DELAY),
            fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
            include_headers=_flag(values, "includeHeaders", default=False),
            partitions_min=_number(values, "minPartitions"),
            partition_bytes_max=_bytes(values, "maxPartitionBytes"),
            verify=_flag(values, "verify", default=True),
            cold=values.get("cold") or None,
            lake=values.get("lake") or None,
        )


def columns_of(given: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the columns that the option selects; None if it was not given."""
    text = _named(given).get("columns")
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError(f"columns={text!r} names no column: write some, such as 'offset,value'")
    check_known("column", names, COLUMNS)
    if len(set(names)) != len(names):
        raise OptionError(f"columns={text!r}: each can be there once only")
    return names


def wants_headers(given: Mapping[str, str]) -> bool:
    """Return whether the column `headers` was requested."""
    return _flag(_named(given), "includeHeaders", default=False)


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Map the options to their proper names."""
    values = {}
    for name, value in given.items():
        if name.lower() not in _NAMES:
            check_known("option", [name], OPTIONS)
        values[_NAMES[name.lower()]] = str(value)
    return values


def _topics(text: str | None) -> Topics:
    if not text or not text.strip():
        raise OptionError(
            "which topic? give option 'topic': a name, several as 'a,b', a pattern as 'orders-*', "
            "or names with such characters as a JSON list, '[\"a,b\"]'"
        )
    if _NAMES_LIST.match(text):
        names = _json("topic", text)
        if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
            raise OptionError(f"topic={text!r} must be a list of names, such as '[\"a,b\"]'")
        return Topics(tuple(names), ())
    items = [item.strip() for item in text.split(",") if item.strip()]
    patterns = tuple(item for item in items if _GLOB.search(item))
    return Topics(tuple(item for item in items if item not in patterns), patterns)


def _positions(values: dict[str, str], offsets: str, timestamp: str, default: int) -> Positions:
    if offsets in values and timestamp in values:
        raise OptionError(f"{offsets} and {timestamp} say the same thing: give one of them")
    option = timestamp if timestamp in values else offsets
    text = values.get(option, "").strip()
    parse = _time if option == timestamp else _offset
    if not text:
        return Positions(option, Position(default), {})
    if not text.startswith("{"):
        return Positions(option, parse(option, text), {})
    by_topic = {}
    for topic, place in _json(option, text).items():
        if isinstance(place, dict):  # by partition, as for Kafka: a topic here has one
            if list(place) != ["0"]:
                raise OptionError(f"{option}: topic {topic!r} has one partition, '0'")
            place = place["0"]
        by_topic[topic] = parse(option, str(place))
    return Positions(option, Position(default), by_topic)


def _offset(option: str, text: str) -> Position:
    number = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if number is None:
        try:
            number = int(text)
        except ValueError:
            number = -3
    if number < EARLIEST:
        raise OptionError(
            f"{option}={text!r} is not a place in a topic: write an offset, 'earliest' or "
            "'latest', or JSON by topic such as '{\"orders\": 100}'"
        )
    return Position(number)


def _time(option: str, text: str) -> Position:
    try:
        nanoseconds = int(text[:-2]) if text.endswith("ns") else int(text) * 10**6
    except ValueError:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            nanoseconds = -1
        else:
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            since = when - datetime.fromtimestamp(0, UTC)
            nanoseconds = ((since.days * 86400 + since.seconds) * 10**6 + since.microseconds) * 1000
    if not 0 <= nanoseconds <= TIME_MAX:
        raise OptionError(
            f"{option}={text!r} is not a time between 1970 and 2230: write milliseconds since "
            "1970, nanoseconds such as '1769860800000000000ns', or ISO text "
            "such as '2026-01-31T12:00:00Z' (UTC unless it says otherwise)"
        )
    return Position(nanoseconds, is_time=True)


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option}={text!r} is not JSON: {error}") from None


def _number(values: dict[str, str], option: str) -> int | None:
    if option not in values:
        return None
    text = values[option]
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise OptionError(f"{option}={text!r} must be a whole number above 0")
    return int(text)


def _min_offsets(values: dict[str, str]) -> int | None:
    least, most = (_number(values, f"{name}OffsetsPerTrigger") for name in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}: no micro-batch "
            "can be both. Lower the first."
        )
    if least is None and "maxTriggerDelay" in values:
        raise OptionError(
            "maxTriggerDelay is how long a query waits for minOffsetsPerTrigger: give that, too"
        )
    return least


def _seconds(values: dict[str, str], option: str, default: str) -> float:
    text = values.get(option, default).strip().lower()
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text, re.ASCII)
    if found is None:
        raise OptionError(f"{option}={text!r} must be a time, such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _SECONDS[found[2]]


def _bytes(values: dict[str, str], option: str) -> int | None:
    if option not in values:
        return None
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", values[option].strip().lower(), re.ASCII)
    if found is None or found[2] not in _UNITS or not int(found[1]):
        raise OptionError(f"{option}={values[option]!r} must be bytes, such as 134217728 or 128m")
    return int(found[1]) * _UNITS[found[2]]


def _flag(values: dict[str, str], option: str, *, default: bool) -> bool:
    if option not in values:
        return default
    text = values[option].lower()
    if text not in ("true", "false"):
        raise OptionError(f"{option}={values[option]!r} must be true or false")
    return text == "true"


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown or "no topic at all"

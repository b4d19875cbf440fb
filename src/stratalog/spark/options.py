"""What may be asked of a read: the options of `spark.read.format("stratalog")`, parsed.

Names are those of Spark's Kafka source where the meaning is the same. Spark hands them over in
lower case, and as text.
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
from stratalog.projections.catalog import Catalog
from stratalog.spark.places import absolute

OPTIONS = (
    "path", "topic", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "maxOffsetsPerTrigger", "failOnDataLoss", "includeHeaders", "minPartitions",
    "maxPartitionBytes", "verify", "cold",
)  # fmt: skip
"""All that a read takes."""

_STREAM_ONLY = ("maxOffsetsPerTrigger",)

_NAMES = {name.lower(): name for name in OPTIONS}
_GLOB = re.compile(r"[*?\[]")
_NAMES_LIST = re.compile(r"\s*\[\s*[\"\]]")  # JSON, and not the pattern [ab]
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20,
          "g": 1 << 30, "gb": 1 << 30}  # fmt: skip

EARLIEST, LATEST = -2, -1
"""As Kafka numbers them."""


class Position(NamedTuple):
    """A place in a topic: an offset, `EARLIEST`, `LATEST`, or a time in nanoseconds."""

    number: int
    is_time: bool = False


class Positions(NamedTuple):
    """Places in several topics."""

    option: str
    """Where it was said, for messages."""
    default: Position
    by_topic: dict[str, Position]

    def of(self, topic: str) -> Position:
        """The place in one topic."""
        return self.by_topic.get(topic, self.default)

    def check(self, topics: list[str]) -> None:
        """Refuse places in topics that are not read."""
        check_known(f"topic in {self.option}", self.by_topic, topics)


class Topics(NamedTuple):
    """Which topics: names, and patterns of names."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]

    def choose(
        self, catalog: Catalog, *, may_miss: bool = False, skip: Set[str] = frozenset()
    ) -> list[str]:
        """Names of the topics that are there, sorted; a name that is not there is an error.

        So is a pattern that nothing matches, unless it `may_miss`: somebody follows what comes.
        Whoever knows a name already may `skip` looking for it.
        """
        present = catalog.names()
        chosen = {catalog.find(name).name for name in self.names if name not in skip}
        for pattern in self.patterns:
            # A topic may well be called `a*`; whoever writes that means that one.
            matched = [pattern] if pattern in present else fnmatch.filter(present, pattern)
            if not matched and not may_miss:
                raise UnknownTopicError(
                    f"no topic matches {pattern!r}: the store has {_some(present)}"
                )
            chosen.update(matched)
        return sorted(chosen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a read was asked for."""

    path: str
    topics: Topics
    start: Positions
    end: Positions
    max_offsets_per_trigger: int | None
    fail_on_data_loss: bool
    include_headers: bool
    partitions_min: int | None
    partition_bytes_max: int | None
    verify: bool
    cold: str | None
    """Where the cold segments are; None is where the log says they are."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
        """From what Spark hands over; everything wrong is an `OptionError` that says what."""
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
            start=_positions(
                values, "startingOffsets", "startingTimestamp", LATEST if is_stream else EARLIEST
            ),
            end=_positions(values, "endingOffsets", "endingTimestamp", LATEST),
            max_offsets_per_trigger=_number(values, "maxOffsetsPerTrigger"),
            fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
            include_headers=_flag(values, "includeHeaders", default=False),
            partitions_min=_number(values, "minPartitions"),
            partition_bytes_max=_bytes(values, "maxPartitionBytes"),
            verify=_flag(values, "verify", default=True),
            cold=values.get("cold") or None,
        )


def wants_headers(given: Mapping[str, str]) -> bool:
    """Whether the column `headers` was asked for."""
    return _flag(_named(given), "includeHeaders", default=False)


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """The options by their proper names."""
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
        if isinstance(place, dict):  # Kafka's, by partition: a topic here has one
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
        nanoseconds = int(text) * 10**6
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
            "1970, or ISO text such as '2026-01-31T12:00:00Z' (UTC unless it says otherwise)"
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

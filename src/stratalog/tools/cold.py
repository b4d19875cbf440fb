"""The cold store: are its objects whole, and does it have what is missing here?"""

from __future__ import annotations

from typing import Literal, get_args

from stratalog.errors import ColdStoreError, CorruptionError, FormatError, OptionError
from stratalog.format.names import cold_prefix, old_cold_name, parse_cold_name
from stratalog.format.segment import State, Summary
from stratalog.fs.cold import ColdStore
from stratalog.segments.pool import summary_of
from stratalog.segments.segment import check_segment_header, read_footer
from stratalog.segments.tiering import read_checksum
from stratalog.tools.audit import Audit
from stratalog.tools.report import Tally
from stratalog.tools.segments import SegmentTask, check_file
from stratalog.tools.topics import TopicAudit

ColdDepth = Literal["sizes", "contents"]
"""How objects are checked: that each is there with its size, or every byte of it."""

_AHEAD_BYTES = 4 << 20

_REPAIR_COLD = "nothing: bring the object back, or wait until its store can be reached"


def check_depth(depth: str) -> None:
    """Raise `OptionError` unless objects can be checked so."""
    if depth not in get_args(ColdDepth):
        raise OptionError(f"cold_depth={depth!r}: it is 'sizes' or 'contents'")


def look_at_cold(found: Audit, cold: ColdStore | None, depth: ColdDepth) -> None:
    """See that cold segments are where they should be, and hold what they should."""
    wanted = [(one, summary) for one in found.topics for summary in one.cold]
    if not wanted:
        return
    location = found.replay.pool.cold_location
    if cold is None:
        found.notes.append(
            f"{len(wanted)} segments in the cold store {location!r} were not checked: give cold=..."
        )
        return
    for number, (one, summary) in enumerate(wanted):
        name = name_of(one, summary)
        try:
            message = _judge(cold, name, one.topic.id, summary, depth, found.tally)
        except ColdStoreError as error:
            found.notes.append(
                f"{len(wanted) - number} segments in the cold store were not checked: {error}"
            )
            return
        if message:
            found.problem(
                "cold", name, message, _REPAIR_COLD, topic=one.name,
                first_offset=summary.first_offset, last_offset=summary.end_offset - 1,
            )  # fmt: skip


def name_of(one: TopicAudit, summary: Summary) -> str:
    """The name of a cold segment."""
    first = summary.first_offset
    return one.topic.history.objects.get(first) or old_cold_name(one.topic.id, first)


def _judge(
    cold: ColdStore, name: str, topic_id: int, summary: Summary, depth: ColdDepth, tally: Tally
) -> str:
    """Return what is wrong with an object; empty if nothing is. Raises `ColdStoreError`."""
    size = cold.size(name)
    if size != summary.bytes:
        found = "is missing" if size is None else f"has {size} bytes"
        return f"the object {found}, {summary.bytes} bytes should be in {cold.location}"
    if depth == "sizes":
        return ""
    try:
        kept = _summarise(cold, name, topic_id, summary.first_offset, size)
    except FormatError as error:
        return f"the object in {cold.location} is damaged: {error}"
    if kept != summary:
        return f"the object in {cold.location} is another segment than the one that was moved there"
    task = SegmentTask(name, topic_id, summary.first_offset, summary.end_offset)
    check = check_file(_ColdFile(cold, name, size), task, tally)
    faults = [*(bad.reason for bad in check.bad), *(fault.message for fault in check.faults)]
    if faults:
        return f"the object in {cold.location} is damaged: {'; '.join(faults)}"
    told = parse_cold_name(name)
    if told is not None and read_checksum(cold, name, size) != told.checksum:
        return f"the object in {cold.location} does not hold what its name says"
    return ""


def _summarise(cold: ColdStore, name: str, topic_id: int, first: int, size: int) -> Summary:
    """Summarise an object by its own word; raises a `FormatError` if its ends are damaged."""

    def fetch(position: int, length: int) -> bytes:
        if position < 0 or position + length > size:
            raise CorruptionError(f"cut short: {size} bytes")
        return cold.read(name, position, length)

    created_at = check_segment_header(fetch, topic_id, first)
    footer = read_footer(fetch, size, topic_id, first)
    return summary_of(footer, created_at, size)._replace(state=State.COLD)


class _ColdFile:
    """An object, read as a file is; a few megabytes at a time."""

    def __init__(self, cold: ColdStore, name: str, size: int) -> None:
        self._cold = cold
        self._size = size
        self._start, self._data = 0, b""
        self.path = name

    def size(self) -> int:
        return self._size

    def pread(self, length: int, position: int) -> bytes:
        length = max(0, min(length, self._size - position))
        at = position - self._start
        if not 0 <= at <= at + length <= len(self._data):
            ahead = min(max(length, _AHEAD_BYTES), self._size - position)
            self._start, self._data = position, self._cold.read(self.path, position, ahead)
            at = 0
        return self._data[at : at + length]


def find_in_cold(
    cold: ColdStore, identity: bytes | None, topic_id: int, first: int, last: int
) -> list[tuple[Summary, str]]:
    """Segments that follow each other from an offset on, and that only the cold store knows of.

    Only those that say that they are of this store: a place may hold objects of others. Raises
    `ColdStoreError` when it cannot be asked: nothing is to be given up on a guess.
    """
    if identity is None:
        return []
    known: dict[int, list[str]] = {}
    directories = {name.partition("/")[0] for name in cold.names(f"{identity.hex()}-")}
    for directory in sorted(directories):
        for name in cold.names(cold_prefix(directory, topic_id)):
            if (told := parse_cold_name(name)) is not None:
                known.setdefault(told.first_offset, []).append(name)
    found: list[tuple[Summary, str]] = []
    while first <= last:
        best = max(
            (one for name in known.get(first, []) if (one := _whole(cold, name, last)) is not None),
            key=lambda one: one[0].records, default=None,
        )  # fmt: skip
        if best is None:
            break
        found.append(best)
        first = best[0].end_offset
    return found


def _whole(cold: ColdStore, name: str, last: int) -> tuple[Summary, str] | None:
    """A segment in the cold store, if it is whole and ends in time."""
    told, size = parse_cold_name(name), cold.size(name)
    if told is None or size is None:
        return None
    try:
        summary = _summarise(cold, name, told.topic_id, told.first_offset, size)
    except FormatError:
        return None
    if not told.first_offset < summary.end_offset <= last + 1:
        return None
    return (summary, name) if read_checksum(cold, name, size) == told.checksum else None

"""The cold store: are its objects there, and does it have what is missing here?"""

from __future__ import annotations

from stratalog.errors import ColdStoreError, FormatError
from stratalog.format.names import cold_name
from stratalog.format.segment import State, Summary
from stratalog.fs.cold import ColdStore
from stratalog.segments.pool import summary_of
from stratalog.segments.segment import check_segment_header, read_footer
from stratalog.tools.audit import Audit

_REPAIR_COLD = "nothing: bring the object back, or wait until its store can be reached"


def look_at_cold(found: Audit, cold: ColdStore | None) -> None:
    """See that cold segments are where they should be, with the size they should have."""
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
        name = cold_name(one.topic.id, summary.first_offset)
        try:
            size = cold.size(name)
        except ColdStoreError as error:
            found.notes.append(
                f"{len(wanted) - number} segments in the cold store were not checked: {error}"
            )
            return
        if size == summary.bytes:
            continue
        message = "is missing" if size is None else f"has {size} bytes"
        found.problem(
            "cold", name, f"the object {message}, {summary.bytes} bytes should be in "
            f"{cold.location}", _REPAIR_COLD, topic=one.name, first_offset=summary.first_offset,
            last_offset=summary.end_offset - 1,
        )  # fmt: skip


def find_in_cold(cold: ColdStore, topic_id: int, first: int, last: int) -> list[Summary]:
    """Segments that follow each other from an offset on, and that only the cold store knows of.

    Raises `ColdStoreError` when it cannot be asked: nothing is to be given up on a guess.
    """
    found: list[Summary] = []
    while first <= last:
        name = cold_name(topic_id, first)
        size = cold.size(name)
        if size is None:
            break

        def fetch(position: int, length: int, name: str = name) -> bytes:
            return cold.read(name, position, length)

        try:
            created_at = check_segment_header(fetch, topic_id, first)
            footer = read_footer(fetch, size, topic_id, first)
        except FormatError:
            break
        if not first < footer.end_offset <= last + 1:
            break
        found.append(summary_of(footer, created_at, size)._replace(state=State.COLD))
        first = footer.end_offset
    return found

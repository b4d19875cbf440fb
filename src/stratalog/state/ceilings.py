"""Skipping offsets that an earlier writer may have given out, and whose records a crash took.

Crash: the gap is durable in the log before the file that requires it is removed; until then the gap
is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyroaring import BitMap64

from stratalog.format.control import LOST_CRASH, encode_delete
from stratalog.format.frame import FrameType
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.state.router import control

logger = logging.getLogger("stratalog.recovery")


def skip_given(log: Log, topics: Iterable[TopicLog], root: str) -> None:
    """Leave an explicit gap over offsets that may have been given out and are not in the log."""
    found = log.ceilings.found()
    controls = []
    for topic in topics:
        ceiling = found.get(topic.id, 0)
        if ceiling > topic.next_offset and not topic.is_ephemeral:
            offsets = BitMap64()
            offsets.add_range(topic.next_offset, ceiling)
            controls.append(control(topic, FrameType.LOST, LOST_CRASH, encode_delete(offsets)))
            logger.warning(
                "%s: topic %r goes on from offset %d: a crash may have taken records of a class "
                "below fsync from offset %d on", root, topic.name, ceiling, topic.next_offset,
                extra={"store": root, "topic": topic.name, "offset": ceiling},
            )  # fmt: skip
    log.write(controls)
    log.ceilings.clear()

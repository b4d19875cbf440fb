"""Frames that speak for several topics at once: all of what they say is there, or none of it.

`Multi` is one made of others, each of its own topic. Whoever has another kind of frame that gives
out offsets in several topics derives from `Joint`, and commits it through `log/crossing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from stratalog.format.frame import HEADER_BYTES, FrameType, body_checksum, encode_header
from stratalog.format.multi import inner_seed
from stratalog.log.group import Entry

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog


class Late(Protocol):
    """A part of a frame that can be made only when the frame is about to be written."""

    def encode(self) -> Entry:
        """The part; the commit lock of its topic is held. May be called again."""

    def failed(self) -> None:
        """The frame is not in the log; may be called again."""


class Joint(Entry):
    """One frame of several topics, in which it has given out offsets."""

    __slots__ = ("_topics",)

    def __init__(
        self,
        type: int,
        body: bytes,
        topics: Sequence[TopicLog],
        *,
        topic_id: int = 0,
        base_offset: int = 0,
        count: int = 0,
        on_commit: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(type, topic_id, body, base_offset, count=count, on_commit=on_commit)
        self._topics = topics

    @property
    def topics(self) -> Sequence[TopicLog]:
        """Those whose offsets it has given out; given back together if it fails."""
        return self._topics

    def prepare(self) -> None:
        """Make what had to wait until now; the commit locks of all topics are held."""

    def assemble(self, seed: int) -> None:
        """Make the body for a log file; called before it is written, perhaps more than once."""

    def publish(self, file: int, position: int) -> None:
        """Make everything readable that the frame has; may be called again.

        `file` is the number that inner frames of the log file have, `position` that of the frame.
        """
        if self.on_commit is not None:
            self.on_commit()


class Multi(Joint):
    """Several frames in one. Their offsets and times are known once it enters a group."""

    __slots__ = ("_entries", "_late", "parts")

    def __init__(
        self, entries: Sequence[Entry], topics: Sequence[TopicLog], late: Sequence[Late] = ()
    ) -> None:
        super().__init__(FrameType.MULTI, b"", topics)
        self._entries = entries
        self._late = late
        self.on_fail = self._failed
        self.parts: Sequence[Entry] = ()
        self._take(entries)

    def _take(self, parts: Sequence[Entry]) -> None:
        # Zeros as long as the body will be: it is made for the file it is written to.
        self.body = bytes(sum(HEADER_BYTES + len(part.body) for part in parts))
        self.count = len(parts)
        self.parts = parts

    def prepare(self) -> None:
        """Have the rest of the parts made."""
        if self._late:
            self._take([*self._entries, *(part.encode() for part in self._late)])

    def _failed(self) -> None:
        for part in self._late:
            part.failed()

    def assemble(self, seed: int) -> None:
        """Put the frames one behind the other: their headers depend on the file they are in."""
        seed = inner_seed(seed)
        buffers: list[bytes] = []
        for part in self.parts:
            buffers.append(
                encode_header(
                    part.type, part.flags, len(part.body), part.count, part.topic_id,
                    part.base_offset, part.base_timestamp, part.max_timestamp,
                    part.body_checksum, seed,
                )
            )  # fmt: skip
            buffers.append(part.body)
        self.body = b"".join(buffers)
        self.body_checksum = body_checksum(self.body)

    def publish(self, file: int, position: int) -> None:
        """Make all parts readable, or state, one right behind the other."""
        position += HEADER_BYTES
        for part in self.parts:
            if part.topic is not None:
                part.topic.publish(part, file, position)
            elif part.on_commit is not None:
                part.on_commit()
            position += HEADER_BYTES + len(part.body)

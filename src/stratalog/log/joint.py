"""Frames that belong to several topics: everything in such a frame is there, or nothing.

`MultiFrame` is composed of other frames, each of one topic. Another kind of frame with offsets of
several topics derives from `JointFrame`, and is committed through `log/cross_shard.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from stratalog.format.frame import HEADER_BYTES, FrameType, body_checksum, encode_header
from stratalog.format.multi import inner_seed
from stratalog.log.commit_group import Entry

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog


class Late(Protocol):
    """A part of a frame that can be encoded only when the frame is about to be written."""

    def encode(self) -> Entry:
        """Encode the part; the commit lock of its topic is held. Idempotent."""

    def failed(self) -> None:
        """Undo: the frame is not in the log; idempotent."""


class JointFrame(Entry):
    """One frame of several topics, with offsets of each."""

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
        """The topics whose offsets it has; given back together if it fails."""
        return self._topics

    def prepare(self) -> None:
        """Encode the parts that had to wait until now; the commit locks of all topics are held."""

    def assemble(self, seed: int) -> None:
        """Encode the body for a log file; called before it is written, perhaps more than once."""

    def publish(self, file: int, position: int) -> None:
        """Make everything in the frame readable; idempotent.

        `file` is the number of the log file for inner frames, `position` that of the frame.
        """
        if self.on_commit is not None:
            self.on_commit()


class MultiFrame(JointFrame):
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
        # Zeros as long as the body will be: its bytes depend on the file it is written to.
        self.body = bytes(sum(HEADER_BYTES + len(part.body) for part in parts))
        self.count = len(parts)
        self.parts = parts

    def prepare(self) -> None:
        """Encode the remaining parts."""
        if self._late:
            self._take([*self._entries, *(part.encode() for part in self._late)])

    def _failed(self) -> None:
        for part in self._late:
            part.failed()

    def assemble(self, seed: int) -> None:
        """Concatenate the frames: their headers depend on the file they are in."""
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
        """Publish or apply all parts, one right after the other."""
        position += HEADER_BYTES
        for part in self.parts:
            if part.topic is not None:
                part.topic.publish(part, file, position)
            elif part.on_commit is not None:
                part.on_commit()
            position += HEADER_BYTES + len(part.body)

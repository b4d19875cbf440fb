"""Whether a copy holds what the store held: files, segments, topics.

Everything here is checked before the copy becomes a store.
"""

from __future__ import annotations

import os

from xxhash import xxh3_64

from stratalog.backup.files import opened, read_pieces
from stratalog.backup.plan import Piece, Plan, Sealed, Source
from stratalog.errors import CorruptionError, FormatError
from stratalog.format.segment import Summary
from stratalog.fs import File
from stratalog.segments.pool import summary_of
from stratalog.segments.segment import check_segment_header, read_footer, read_index
from stratalog.view import View


class Verifier:
    """Compares one copy with what was captured."""

    def __init__(self, source: Source, target: str, plan: Plan, digests: dict[str, int]) -> None:
        self._source = source
        self._fs = source.fs
        self._target = target
        self._plan = plan
        self._digests = digests
        """Digests of copied files, as they were read."""
        self.topics = self.records = 0

    def run(self) -> None:
        """Raise `CorruptionError` unless everything is there."""
        for piece in self._plan.pieces:
            with opened(self._fs, os.path.join(self._target, piece.path), "read") as file:
                self._fs.promise(file, piece.bytes)
                self._verify(piece, file)
        self._verify_view()

    def _verify(self, piece: Piece, file: File) -> None:
        """Read back what was copied, and the ends of what was linked."""
        if piece.path in self._digests:
            digest = xxh3_64()
            for data in read_pieces(file, piece.bytes):
                digest.update(data)
            if digest.intdigest() != self._digests[piece.path]:
                raise self._differs(f"{piece.path} does not hold what was written to it")
        if piece.sealed is not None:
            try:
                summary = _summarise(piece.sealed, file)
            except FormatError as error:
                raise self._differs(f"{piece.path}: {error}") from error
            if summary != piece.sealed.summary:
                raise self._differs(f"{piece.path} is another segment than it was")

    def _verify_view(self) -> None:
        """Open the copy as a reader would, and compare."""
        view = View(self._fs, self._target, self._source.store_file)
        try:
            damage = view.replay.damage()
            if damage is not None:
                raise self._differs(str(damage))
            positions = {n: s.first_lsn + s.position for n, s in view.replay.scanners.items()}
            if positions != self._plan.positions:
                raise self._differs(f"its log ends at {positions}, not at {self._plan.positions}")
            self._verify_topics(view)
        finally:
            view.replay.reader.close()
            view.replay.pool.close()

    def _verify_topics(self, view: View) -> None:
        found = {topic.id: topic for topic in view.catalog.topics()}
        for id, topic in self._plan.topics.items():
            copy = found.pop(id, None)
            if copy is None or copy.name != topic.name:
                raise self._differs(f"topic {topic.name!r} is not there")
            is_whole = (copy.earliest, copy.committed) == (topic.earliest, topic.end)
            if topic.is_ephemeral:  # its records are nowhere, and its offsets are not reused
                is_whole = copy.committed >= topic.end
            if not is_whole:
                raise self._differs(
                    f"topic {topic.name!r} has offsets {copy.earliest} to {copy.committed}, not "
                    f"{topic.earliest} to {topic.end}"
                )
            for segment in copy.history.chain.segments:
                if segment.is_open:
                    segment.load()  # goes through all of its headers
        # A topic whose creation was about to return when its shard was captured.
        for extra in found.values():
            if extra.committed and not extra.is_ephemeral:
                raise self._differs(f"topic {extra.name!r} has {extra.committed} records, not 0")
        topics = view.catalog.topics()
        self.topics = len(topics)
        self.records = sum(topic.history.count(topic.earliest, topic.committed) for topic in topics)

    def _differs(self, what: str) -> CorruptionError:
        return CorruptionError(
            f"the backup of {self._source.root} to {self._target} was given up, because it does "
            f"not hold the same: {what}. Nothing was changed in the store itself: verify it, see "
            "to the target's disk, and back up again."
        )


def _summarise(sealed: Sealed, file: File) -> Summary:
    """Summarise a sealed segment by its ends; raises a `FormatError` if its ends are damaged."""

    def fetch(position: int, length: int) -> bytes:
        return file.pread(length, position)

    topic_id, first, size = sealed.topic_id, sealed.summary.first_offset, file.size()
    created_at = check_segment_header(fetch, topic_id, first)
    footer = read_footer(fetch, size, topic_id, first)
    read_index(fetch, footer)
    return summary_of(footer, created_at, size)

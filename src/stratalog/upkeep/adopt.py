"""Adoption: published segments of other processes become part of the store, in one frame.

Owns: the manifests in `incoming/`, and the staged segments there.

A manifest is looked at, then one `ADOPT` frame gives all of it offsets and makes it readable where
it was staged; the next checkpoint takes it into the topics' segments. A manifest that cannot be
adopted is set aside, with the reason.

Concurrency: the store's upkeep adopts, one manifest at a time. Nothing else changes a table while
it adopts: a condition is judged by all that has entered the log before.
Crash: before the frame is durable nothing has happened; after it, the manifest is known to be
adopted, and what is left of it is removed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from stratalog.clock import Clock
from stratalog.errors import FormatError, UnknownTopicError
from stratalog.format.frame import FrameType
from stratalog.format.manifest import (
    NEW,
    AdoptedPart,
    Adoption,
    Manifest,
    Part,
    StagedSegment,
    decode_manifest,
    encode_adoption,
)
from stratalog.format.names import incoming_path, is_staged_name, manifest_key
from stratalog.format.segment import HEADER_BYTES, State, decode_segment_header, decode_summaries
from stratalog.fs import FileSystem
from stratalog.log.append import place_end
from stratalog.log.interrupts import holding
from stratalog.log.joint import JointFrame
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.segments.segment import read_footer, read_index
from stratalog.state.recovery import Replay
from stratalog.state.table_projection import TableProjection

logger = logging.getLogger("stratalog.adopt")

# Files without a manifest may still get one: a job never stages for longer than this.
_ORPHAN_NS = 24 * 3600 * 10**9

# Longest reason that is kept of a manifest that was set aside.
_REASON_BYTES_MAX = 4000


class _RefusedError(Exception):
    """A manifest cannot be adopted, now or later."""


class Adopter:
    """Takes in what is in `incoming/`."""

    def __init__(
        self, fs: FileSystem, log: Log, replay: Replay, clock: Clock,
        topic: Callable[[str, str], TopicLog],
    ) -> None:  # fmt: skip
        self._fs = fs
        self._log = log
        self._replay = replay
        self._clock = clock
        self._topic = topic
        self._root = replay.pool.root
        self.adopted = 0
        """Manifests adopted since the store was opened."""

    def is_due(self) -> bool:
        """Return whether there is a manifest; lists one directory."""
        names = self._fs.listdir(incoming_path(self._root))
        return any(name.endswith(".manifest") for name in names)

    def adopt(self) -> int:
        """Adopt every manifest there is, those of one writer in order; returns how many."""
        before = self.adopted
        for name in self._fs.listdir(incoming_path(self._root)):
            if name.endswith(".manifest"):
                self._adopt(name)
        return self.adopted - before

    def _adopt(self, name: str) -> None:
        path = incoming_path(self._root, name)
        try:
            data = read_file(self._fs, path)
        except FileNotFoundError:
            return
        try:
            manifest = decode_manifest(data)
            if f"{manifest_key(manifest.writer, manifest.batch)}.manifest" != name:
                raise _RefusedError("it is of another writer or batch than its name says")
            if not self._replay.writers.is_adopted(manifest.writer, manifest.batch):
                self._take_in(manifest)
        except (FormatError, UnknownTopicError, _RefusedError) as error:
            self._set_aside(name, data, str(error))
            return
        self._fs.unlink(path)
        self._fs.sync_dir(incoming_path(self._root))

    def _take_in(self, manifest: Manifest) -> None:
        found = [(part, self._look_at(part)) for part in manifest.parts]
        topics = list(dict.fromkeys(topic for _, topic in found))

        def make() -> JointFrame:
            parts = [_place(part, topic) for part, topic in found]
            adoption = Adoption(manifest.writer, manifest.batch, manifest.once, parts)
            return JointFrame(
                FrameType.ADOPT, encode_adoption(adoption), topics,
                on_commit=lambda: self._replay.take_in(adoption, publish=True),
            )  # fmt: skip

        # Nothing is refused from here on: it is adopted, or the log has failed.
        tables = [one.projection for one in topics if isinstance(one.projection, TableProjection)]
        tables.sort(key=lambda table: table.topic.id)
        holding([table.writing for table in tables], lambda: self._commit(topics, make, tables))
        self._replay.finish_replacements()
        self.adopted += 1
        logger.info(
            "%s: adopted batch %d of %s",
            self._root,
            manifest.batch,
            manifest.writer,
            extra={"store": self._root, "batch": manifest.batch, "writer": manifest.writer},
        )

    def _commit(
        self, topics: list[TopicLog], make: Callable[[], JointFrame], tables: list[TableProjection]
    ) -> None:
        self._log.cross_shard.commit(topics, make)
        for table in tables:
            table.take_adopted()

    # --- whether it can be ----------------------------------------------------------------

    def _look_at(self, part: Part) -> TopicLog:
        """Raise unless a part can be adopted; returns its topic, created if necessary."""
        if part.kind in NEW:
            for staged in part.segments:
                self._look_at_file(staged, 0)
            wanted = "table" if part.kind == "upsert" else "topic"
            topic = self._topic(part.topic, wanted)
            if topic.kind != wanted and "table" in (topic.kind, wanted):
                raise _RefusedError(
                    f"{part.topic!r} is a {topic.kind}, not a {wanted}. Write to it as one, or "
                    "give another name"
                )
            if topic.kind == "series":
                raise _RefusedError(f"{part.topic!r} is a series, and takes points alone")
            if topic.is_ephemeral:
                raise _RefusedError(f"topic {part.topic!r} is ephemeral: it has no segments")
            return topic
        known = self._replay.topics.get(part.topic_id)
        if known is None or known.epoch != part.epoch:
            raise _RefusedError(f"topic {part.topic_id} of epoch {part.epoch} was dropped")
        for staged in part.segments:
            self._look_at_file(staged, part.topic_id)
        if part.kind == "replace":
            self._replay.finish_replacements()  # one before it may not have come to its end
            _check_replaced(known, part)
        else:
            _check_backlog(known, part)
        return known

    def _look_at_file(self, staged: StagedSegment, topic_id: int) -> None:
        """Check everything but the batches, each of which is verified whenever it is read."""
        path = incoming_path(self._root, f"{staged.name}.seg")
        try:
            file = self._fs.open(path, "read")
        except FileNotFoundError:
            raise _RefusedError(f"{path} is missing") from None

        def fetch(position: int, length: int) -> bytes:
            return file.pread(length, position)

        first = staged.first_offset
        try:
            header = decode_segment_header(fetch(0, HEADER_BYTES))
            footer = read_footer(fetch, file.size(), topic_id, first)
            read_index(fetch, footer)
            is_same = footer == staged.footer(topic_id, first, 0)
            if not is_same or header[:3] != (topic_id, first, staged.created_at):
                raise _RefusedError(f"{path} is not the segment that was published")
        except FormatError as error:
            raise _RefusedError(f"{path}: {error}") from error
        finally:
            file.close()

    # --- what is left over ----------------------------------------------------------------

    def _set_aside(self, name: str, data: bytes, reason: str) -> None:
        """Keep a manifest that cannot be adopted out of the way, with the reason."""
        key = name.removesuffix(".manifest")
        path = incoming_path(self._root, f"{key}.rejected")
        temp = incoming_path(self._root, f"{key}.tmp")
        why = reason.encode()[:_REASON_BYTES_MAX].replace(b"\n", b" ")
        self._fs.unlink(temp)
        file = self._fs.open(temp, "create")
        try:
            file.pwrite([why + b"\n" + data], 0)
            file.fdatasync()
        finally:
            file.close()
        self._fs.rename(temp, path)
        self._fs.unlink(incoming_path(self._root, name))
        self._fs.sync_dir(incoming_path(self._root))
        logger.warning(
            "%s: not adopted, and set aside: %s",
            path,
            reason,
            extra={"file": path, "error": reason},
        )

    def clean_up(self) -> None:
        """Remove staged files without use: adopted and copied, or left over for a day."""
        directory = incoming_path(self._root)
        names = self._fs.listdir(directory)
        if not names:
            return
        needed = {staged.name for staged in self._published(names)}
        for topic in self._replay.topics.values():
            needed |= topic.history.staged_names()
        limit = f"{max(0, self._clock.time_ns() - _ORPHAN_NS):020d}"
        for name in names:
            stem, _, suffix = name.rpartition(".")
            path = incoming_path(self._root, name)
            if suffix == "tmp" and not is_staged_name(stem):
                self._fs.unlink(path)  # of a manifest that was being set aside
            if suffix not in ("seg", "tmp") or not is_staged_name(stem):
                continue
            is_done = stem in self._replay.finished
            if stem not in needed and (is_done or name[:20] < limit):
                self._fs.unlink(path)
        self._replay.finished.clear()

    def remove_copies(self) -> tuple[int, int]:
        """Remove staged copies of the store's own records that nothing waits for.

        A job that was to replace segments with them fails, and has to be run again. Returns how
        many were removed, and how many staged files are left that were never part of the store.
        """
        names = self._fs.listdir(incoming_path(self._root))
        needed = {staged.name for staged in self._published(names)}
        for topic in self._replay.topics.values():
            needed |= topic.history.staged_names()
        removed = left = 0
        for name in names:
            stem, _, suffix = name.rpartition(".")
            if suffix not in ("seg", "tmp") or not is_staged_name(stem) or stem in needed:
                continue
            path = incoming_path(self._root, name)
            if self._is_copy(path):
                self._fs.unlink(path)
                removed += 1
            else:
                left += 1
        return removed, left

    def _is_copy(self, path: str) -> bool:
        """Return whether a staged segment copies records of a topic, instead of adding new ones."""
        try:
            return decode_segment_header(read_file(self._fs, path, HEADER_BYTES)).topic_id != 0
        except (FormatError, FileNotFoundError):
            return False

    def _published(self, names: list[str]) -> list[StagedSegment]:
        found = []
        for name in names:
            if name.endswith(".manifest"):
                try:
                    manifest = decode_manifest(read_file(self._fs, incoming_path(self._root, name)))
                except (FormatError, FileNotFoundError):
                    continue
                if not self._replay.writers.is_adopted(manifest.writer, manifest.batch):
                    found += [staged for part in manifest.parts for staged in part.segments]
        return found


def _place(part: Part, topic: TopicLog) -> AdoptedPart:
    """Give a part its offsets; called with the lock of the topic's shard held."""
    kind = part.adopted_kind
    if kind != "append":
        return AdoptedPart(kind, topic.id, part.segments[0].first_offset, 0, part.segments)
    placed = AdoptedPart(kind, topic.id, topic.next_offset, topic.last_timestamp, part.segments)
    newest = placed.placed()[-1].footer
    place_end(topic, newest.end_offset, newest.max_timestamp)
    return placed


def _check_replaced(topic: TopicLog, part: Part) -> None:
    """Raise unless each segment replaces whole ones that did not change."""
    expected = decode_summaries(part.expected)
    chain = topic.history.chain.segments
    for staged in part.segments:
        old = [s for s in chain if staged.first_offset <= s.first and s.end <= staged.end_offset]
        wanted = [
            one for one in expected
            if staged.first_offset <= one.first_offset < staged.end_offset
        ]  # fmt: skip
        is_whole = (
            bool(old)
            and (old[0].first, old[-1].end) == (staged.first_offset, staged.end_offset)
            and all(one.summary.state == State.SEALED for one in old)
        )
        if not is_whole or [one.summary for one in old] != wanted:
            raise _RefusedError(
                f"offsets {staged.first_offset} to {staged.end_offset - 1} of topic {topic.name!r} "
                "are no longer in the segments that were to be replaced"
            )


def _check_backlog(topic: TopicLog, part: Part) -> None:
    """Raise unless the segments hold the records of the log from its first one on."""
    end = topic.history.checkpointed
    for staged in part.segments:
        if staged.first_offset != end:
            raise _RefusedError(
                f"topic {topic.name!r} is in segments up to offset {end}, not up to "
                f"{staged.first_offset}"
            )
        end = staged.end_offset
    if end > topic.committed or topic.history.ahead.segments:
        raise _RefusedError(f"topic {topic.name!r} has no log from there to offset {end - 1}")


def rejected(fs: FileSystem, root: str) -> dict[str, str]:
    """List manifests that were set aside, with the reasons."""
    found = {}
    for name in fs.listdir(incoming_path(root)):
        if name.endswith(".rejected"):
            with contextlib.suppress(FileNotFoundError):
                data = read_file(fs, incoming_path(root, name))
                found[name] = data.partition(b"\n")[0].decode(errors="replace")
    return found


def read_file(fs: FileSystem, path: str, length: int | None = None) -> bytes:
    """Read a small file, or that many bytes of its beginning."""
    file = fs.open(path, "read")
    try:
        return file.pread(file.size() if length is None else length, 0)
    finally:
        file.close()

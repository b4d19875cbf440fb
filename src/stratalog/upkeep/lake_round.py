"""One topic's share of a round of the lake: its files made, joined, rewritten and left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.format.lake import LakeFile, LakeSource
from stratalog.fs.cold import ColdStore
from stratalog.lake import policy
from stratalog.lake.manifests import put, read_file
from stratalog.lake.parquet import Living, ParquetFile, rows_in, rows_of
from stratalog.log.topic import TopicLog
from stratalog.segments.segment import Segment

if TYPE_CHECKING:
    from stratalog.upkeep.lake import LakeKeeper

# A commit after so many files: what a crash makes superfluous is a minute's work at most.
_FILES_PER_COMMIT = 8


class LakeRound:
    """One topic's share of a round."""

    def __init__(
        self, keeper: LakeKeeper, lake: ColdStore, topic: TopicLog, ratio: float, *, is_purge: bool
    ) -> None:
        self._keeper = keeper
        self._lake = lake
        self._topic = topic
        self._ratio = ratio
        self._is_purge = is_purge
        self._now = now = keeper.now()
        ttl = topic.options.ttl
        self._living = Living(
            policy.floor_of(topic), topic.history.deleted,
            0 if ttl is None else round(ttl * 10**9), now,
        )  # fmt: skip
        self._manifest = keeper.manifest(lake, topic, now)
        self._files = list(self._manifest.content.files)
        self._end = self._manifest.content.end
        self._made = 0
        self._uncommitted = 0

    def run(self) -> int:
        """Do all of it; returns how many files were made."""
        before = list(self._files)
        if not self._topic.options.lake:
            self._files, self._end = [], self._topic.earliest
        self._files = [
            file for file in self._files if not policy.is_over(self._topic, file, self._now)
        ]
        self._rewrite()
        if self._topic.options.lake:
            self._add()
            self._join()
        if self._files != before or self._uncommitted:
            self._commit()
        return self._made

    def _commit(self) -> None:
        self._manifest = self._keeper.commit(
            self._lake, self._topic, self._manifest, list(self._files), self._end, self._now
        )
        self._uncommitted = 0

    def _rewrite(self) -> None:
        for place in reversed(range(len(self._files))):
            file = self._files[place]
            start = max(file.first_offset, self._living.start)
            if policy.is_replaced(self._topic, file):
                segments = policy.segments_of(self._topic, file)
                rows = self._rows_of(segments, start, file.end_offset)
                sources = list(map(policy.source_of, segments))
            elif self._is_stale(file):
                rows, sources = self._rows_in([file]), file.sources
            else:
                continue
            try:
                made = self._write(rows, start, file.end_offset, sources)
            except FileNotFoundError:
                continue  # a segment was rewritten meanwhile
            self._files[place : place + 1] = made

    def _is_stale(self, file: LakeFile) -> bool:
        """Whether enough of a file is gone that it is to be rewritten."""
        pending = policy.pending_deletes(file, self._living.deleted)
        if pending and pending >= self._ratio * file.records:
            return True
        living = self._living
        if not self._ratio and file.records and file.first_offset < living.start:
            return True
        if not self._is_purge or not file.records:
            return False
        return 0 < file.expires_at <= living.now or bool(
            living.ttl_ns and file.min_timestamp + living.ttl_ns <= living.now
        )

    def _add(self) -> None:
        for group in policy.additions(self._topic, self._end):
            start = max(group[0].first, self._end, self._topic.earliest)
            end = group[-1].end
            rows = self._rows_of(group, start, end)
            try:
                self._files += self._write(rows, start, end, list(map(policy.source_of, group)))
            except FileNotFoundError:
                return  # rewritten, removed or dropped meanwhile: the next round sees what is there
            self._end = end
            if self._uncommitted >= _FILES_PER_COMMIT:
                self._commit()

    def _join(self) -> None:
        while found := policy.joins(self._files):
            for places in reversed(found):
                files = self._files[places.start : places.stop]
                sources = list(chain.from_iterable(file.sources for file in files))
                first, end = files[0].first_offset, files[-1].end_offset
                made = self._write(self._rows_in(files), first, end, sources)
                self._files[places.start : places.stop] = made
            if self._uncommitted >= _FILES_PER_COMMIT:
                self._commit()

    # --- files ----------------------------------------------------------------------------

    def _rows_of(self, segments: list[Segment], start: int, end: int) -> Iterator[pa.RecordBatch]:
        slices = (
            part
            for segment in segments
            for part in segment.batches(max(start, segment.first), min(end, segment.end))
        )
        return rows_of(slices, self._living)

    def _rows_in(self, files: Iterable[LakeFile]) -> Iterator[pa.RecordBatch]:
        for file in files:
            what = f"read {file.name} in {self._lake.location}"
            data = self._keeper.asked(what, partial(read_file, self._lake, file))
            yield from rows_in(data, self._living)

    def _write(
        self, pieces: Iterable[pa.RecordBatch], start: int, end: int, sources: list[LakeSource]
    ) -> list[LakeFile]:
        """Put rows into as many files as it takes, which answer for all offsets between the two."""
        made: list[LakeFile] = []
        parquet = self._begin()
        for rows in pieces:
            if parquet.size >= policy.FILE_BYTES_MAX and rows.num_rows:
                stop = rows.column("offset")[0].as_py()
                made.append(self._put(parquet, start, stop, sources))
                parquet, start = self._begin(), stop
            parquet.add(rows)
        made.append(self._put(parquet, start, end, sources))
        return made

    def _begin(self) -> ParquetFile:
        topic = self._topic
        return ParquetFile(
            {
                "stratalog.store": self._manifest.identity.hex(),
                "stratalog.topic": topic.name,
                "stratalog.epoch": str(topic.epoch),
            }
        )

    def _put(
        self, parquet: ParquetFile, start: int, end: int, sources: list[LakeSource]
    ) -> LakeFile:
        content = parquet.finish()
        name = self._keeper.asked(
            f"put offsets {start} to {end - 1} of topic {self._topic.name!r} into "
            f"{self._lake.location}",
            partial(put, self._lake, self._keeper.own, self._topic, start, content.data),
        )
        self._made += 1
        self._uncommitted += 1
        return LakeFile(
            name, start, end, content.records, content.data.size, content.min_timestamp,
            content.max_timestamp, content.expires_at,
            self._living.deleted.range_cardinality(start, end),
            [one for one in sources if one.end_offset > start and one.first_offset < end],
        )  # fmt: skip

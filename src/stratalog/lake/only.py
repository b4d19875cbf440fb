"""Records that the lake alone has: the topic has evicted them, and `lake_retention` keeps them.

A delete means these, too. They are looked for in the files that hold them, which may take a while
where the lake is far away; a lake that cannot be read makes the delete fail, so that nothing is
taken for deleted that is still there.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from stratalog.format.lake import LakeFile
from stratalog.fs import FileSystem
from stratalog.fs.cold import ColdStore, open_known
from stratalog.lake.manifests import read_file, read_manifest
from stratalog.lake.policy import floor_of, is_over
from stratalog.log.topic import TopicLog
from stratalog.segments.delete import Conditions
from stratalog.segments.read import offset_at

if TYPE_CHECKING:
    import pyarrow as pa


class LakeOnly:
    """The records of one topic that its log no longer has, and its lake has."""

    def __init__(self, fs: FileSystem, identity: bytes, topic: TopicLog, given: str | None) -> None:
        self._fs = fs
        self._given = given
        """Where the lake is, as the store was told."""
        self._identity = identity
        self._topic = topic

    def is_empty(self) -> bool:
        """Whether there can be none; nothing is read for it."""
        topic, lake = self._topic, self._topic.history.lake
        if lake is None or not lake.files or topic.options.lake_retention is None:
            return True
        return max(lake.start, floor_of(topic)) >= min(lake.end, topic.earliest)

    def find(self, end: int, conditions: Conditions, now: int) -> BitMap64:
        """Offsets of those below `end` that can be read and meet every condition given."""
        found = BitMap64()
        for rows in self._rows(0, end, now):
            found |= BitMap64(rows.filter(_meant(rows, conditions)).column("offset").to_pylist())
        return found if conditions.offsets is None else found & BitMap64(conditions.offsets)

    def offset_before(self, timestamp: int, now: int) -> int:
        """The first offset of this time or a later one, of these records and of the log's."""
        found = offset_at(self._topic, timestamp)
        if found > self._topic.earliest or self.is_empty():
            return found
        from stratalog.lake.parquet import nanoseconds

        for rows in self._rows(timestamp, self._topic.earliest, now):
            times = nanoseconds(rows)
            if times[-1] >= timestamp:
                return int(rows.column("offset")[int(times.searchsorted(timestamp))].as_py())
        return found

    def _rows(self, since: int, end: int, now: int) -> Iterator[pa.RecordBatch]:
        """Those that can be read, below an offset, of files that go on at a time or later."""
        from stratalog.lake.parquet import Living, rows_in

        topic, lake = self._topic, self._topic.history.lake
        end = min(end, topic.earliest)
        if lake is None or self.is_empty():
            return
        ttl = topic.options.ttl
        living = Living(
            floor_of(topic), topic.history.deleted, 0 if ttl is None else round(ttl * 10**9), now
        )
        place = open_known(lake.location, self._given, self._fs)
        try:
            for file in self._files(place):
                if (
                    file.records and file.first_offset < end and file.max_timestamp >= since
                    and file.end_offset > living.start and not is_over(topic, file, now)
                ):  # fmt: skip
                    for rows in rows_in(read_file(place, file), living):
                        count = int(rows.column("offset").to_numpy().searchsorted(end))
                        if count:
                            yield rows.slice(0, count)
        finally:
            place.close()

    def _files(self, place: ColdStore) -> list[LakeFile]:
        lake = self._topic.history.lake
        assert lake is not None
        return read_manifest(place, lake, self._topic, self._identity).content.files


def _meant(rows: pa.RecordBatch, conditions: Conditions) -> pa.BooleanArray:
    """Which rows meet the conditions on key and tag."""
    import pyarrow as pa
    import pyarrow.compute as pc

    meant = pa.repeat(pa.scalar(True), rows.num_rows)
    if conditions.key is not None:
        keys = rows.column("key")
        meant = pc.and_(meant, pc.equal(keys, pa.scalar(conditions.key, keys.type)))
    if conditions.tag is not None or conditions.tag_glob is not None:
        tags = rows.column("tag")
        chosen = [
            tag
            for tag in tags.unique().to_pylist()
            if tag is not None
            and (conditions.tag is None or tag == conditions.tag)
            and (conditions.tag_glob is None or fnmatchcase(tag, conditions.tag_glob))
        ]
        meant = pc.and_(meant, pc.is_in(tags, pa.array(chosen, pa.string())))
    return meant.fill_null(False)

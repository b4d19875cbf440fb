"""From log files to topics: the one way in which frames become state, live, again or read-only.

`Replay` starts from nothing and `advance` takes in whatever was not seen yet: once for the writer
that opens a directory, again and again for a reader beside a live one.

Concurrency: one thread at a time calls `advance`.
"""

from __future__ import annotations

from stratalog.errors import CorruptionError, DamagedError
from stratalog.format.control import decode_reserve, decode_topic
from stratalog.format.frame import HEADER_BYTES, FrameHeader, FrameType
from stratalog.format.names import log_file_path, log_path, parse_shard, shard_path
from stratalog.fs import FileSystem
from stratalog.log.reader import LogReader
from stratalog.log.scan import Damage, ShardScanner
from stratalog.log.topic import TopicLog


class Replay:
    """What the log files say, so far."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._touched: set[TopicLog] = set()
        self._unordered: set[TopicLog] = set()
        self.reader = LogReader(fs)
        self.scanners: dict[int, ShardScanner] = {}
        self.topics: dict[int, TopicLog] = {}
        self.frames = 0
        self._file = ("", -1)
        self._file_number = -1

    def advance(self) -> None:
        """Take in every frame that was not seen yet."""
        for name in self._fs.listdir(log_path(self._root)):
            number = parse_shard(name)
            if number is not None and number not in self.scanners:
                self.scanners[number] = ShardScanner(self._fs, shard_path(self._root, number))
        for scanner in self.scanners.values():
            scanner.advance(self._apply)
        for topic in self._touched:
            self._finish(topic)
        self._touched.clear()

    def damages(self) -> list[Damage]:
        """Places that were durable once and do not validate now."""
        return [damage for scanner in self.scanners.values() for damage in scanner.damages]

    def damage(self) -> DamagedError | None:
        """What a write to this directory must be answered with, if anything."""
        places = [str(damage) for damage in self.damages()]
        lost = [
            f"topic {topic.name!r} lacks offsets {first} to {last}"
            for topic in self.topics.values()
            for first, last in topic.index.holes(topic.earliest)
        ]
        unnamed = [f"topic {t.id} lost its name" for t in self.topics.values() if t.version < 0]
        if not (places or lost or unnamed):
            return None
        return DamagedError(
            f"the log of {self._root} is damaged: {'; '.join(places + lost + unnamed)}. "
            "Nothing was changed, and everything else can be read, but nothing can be written: "
            "restore the damaged file from a copy, or copy what can be read to a new store."
        )

    def _apply(
        self, directory: str, first_lsn: int, position: int, header: FrameHeader, body: bytes
    ) -> None:
        self.frames += 1
        topic = self.topics.get(header.topic_id)
        if topic is None:
            topic = self.topics[header.topic_id] = TopicLog(header.topic_id, self.reader)
        if header.type == FrameType.RECORDS:
            if header.base_offset < topic.replayed:
                self._unordered.add(topic)  # its frames are in several shards
            topic.replayed = header.base_offset + header.count
            topic.index.add(
                header.base_offset, header.count, self._number(directory, first_lsn),
                position, HEADER_BYTES + header.body_length, header.max_timestamp,
            )  # fmt: skip
            self._touched.add(topic)
        elif header.type == FrameType.TOPIC:
            if header.base_offset > topic.version or topic.version < 0:
                topic.version = header.base_offset
                topic.define(decode_topic(body))
        elif header.type == FrameType.RESERVE:
            topic.skip(decode_reserve(body), header.base_offset)
        else:
            path = log_file_path(directory, first_lsn)
            raise CorruptionError(f"{path} at position {position}: unexpected frame {header.type}")

    def _number(self, directory: str, first_lsn: int) -> int:
        """The file's number; asked for every frame, and nearly always the one before."""
        if self._file != (directory, first_lsn):
            self._file = (directory, first_lsn)
            self._file_number = self.reader.number(directory, first_lsn)
        return self._file_number

    def _finish(self, topic: TopicLog) -> None:
        """Put the frames of a topic in order, and let readers see them."""
        if topic in self._unordered:
            topic.index = topic.index.sorted()
            self._unordered.discard(topic)
        place = topic.index.place(len(topic.index) - 1)
        timestamp = topic.index.max_timestamp(len(topic.index) - 1)
        topic.resume(place.base_offset + place.count, timestamp)

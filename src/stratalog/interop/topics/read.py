"""Read a directory of topics: live records, leases and routers.

The newest valid snapshot has every live record up to a place in each log; later frames change that.
Sealed segments add one thing: a record whose segment frame is marked as deleted is deleted, even if
no frame of the log says so. A hole in the numbers of a topic is no loss where the server deleted
records, or skipped numbers after a crash; where frames are missing it is a gap.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from stratalog.errors import LockedError, NotAStoreError
from stratalog.fs import FileSystem
from stratalog.interop.codecs.columns import headers_column
from stratalog.interop.codecs.text import span
from stratalog.interop.files import is_directory, join, read_file
from stratalog.interop.model import SCHEMA, Foreign, ForeignTopic, Problem
from stratalog.interop.topics import format as topics
from stratalog.interop.topics.forward import forward
from stratalog.interop.topics.replay import FILE_BYTES_MAX, UNTIMED, Replay
from stratalog.interop.topics.segment import read_marks
from stratalog.interop.topics.state import META, State, StoredRecord, TopicState

_SNAPSHOT_NAME = re.compile(r"snapshot-\d{16}\.bin")
_SEGMENT_NAME = re.compile(r"seg-\d{16}\.data")
_TOPIC_NAME = re.compile(r"[0-9A-F]{8,16}")
_ROWS = 4096
_CLASSES = ("ephemeral", "memory", "disk", "fsync")


def read(fs: FileSystem, path: str, name: str | None = None, cold: str | None = None) -> Foreign:
    """Read all topics; `cold` is the server's cold directory, `name` a prefix of each name."""
    if not fs.listdir(join(path, "wal")) and not fs.listdir(join(path, "meta")):
        raise NotAStoreError(
            f"{path} is not a directory of topics: it has neither wal/ nor meta/. Give the "
            "server's data directory."
        )
    if cold is not None and not is_directory(fs, cold):
        raise NotAStoreError(
            f"{cold} is not there. Give the server's cold directory (TOPICS_COLD_DIR), or none if "
            "it has none."
        )
    _check_unused(fs, path)
    foreign = Foreign("topics", path)
    reader = _Reader(fs, foreign, path)
    reader.load_snapshot()
    reader.replay_logs()
    for root in (path, cold):
        if root is not None:
            reader.apply_marks(root)
    for topic in sorted(reader.state.topics.values(), key=lambda topic: topic.id):
        title = f"{name}.{topic.name}" if name else topic.name
        foreign.contents[title] = _topic(topic, title)
    foreign.routes = list(reader.state.routes.values())
    return foreign


def _check_unused(fs: FileSystem, path: str) -> None:
    """Raise if the server is running, which holds a lock."""
    if topics.LOCK_NAME not in fs.listdir(path):
        return
    try:
        fs.lock(join(path, topics.LOCK_NAME), "").close()
    except LockedError:
        raise LockedError(
            f"{path} is in use: a server of topics has it open. Stop the server, then import."
        ) from None
    except OSError:
        pass  # a directory that cannot be written is not in use by a writer


class _Reader:
    """Reads the files of one directory."""

    def __init__(self, fs: FileSystem, foreign: Foreign, root: str) -> None:
        self._fs = fs
        self._foreign = foreign
        self._root = root
        self.state = State()

    def _problem(self, path: str, position: int, what: str, lost: str = "") -> None:
        place = os.path.relpath(path, self._root)
        self._foreign.problems.append(Problem(place, position, what, lost))

    def load_snapshot(self) -> None:
        """Load the newest valid snapshot."""
        directory = join(self._root, "meta")
        names = filter(_SNAPSHOT_NAME.fullmatch, self._fs.listdir(directory))
        for name in sorted(names, reverse=True):
            path = join(directory, name)
            state = State()
            try:
                state.load(read_file(self._fs, path, FILE_BYTES_MAX) or b"")
            except ValueError as error:
                self._problem(path, -1, f"The snapshot cannot be used: {error}.", "what it has")
                continue
            self.state = state
            for seq in state.untimed:
                self._problem(path, -1, UNTIMED, f"the time of record {seq}")
            return

    def replay_logs(self) -> None:
        """Apply the frames after the snapshot, and forward their records."""
        Replay(self._fs, self._root, self.state, self._problem).run()
        for name in forward(self.state):
            route = self.state.routes[name]
            self._problem(
                join(self._root, "wal"), -1,
                f"Router {name!r} forwarded records to {route.destination!r}, which has others, "
                "too: the server keeps no record that a router made.",
                f"records of {route.source!r} after {route.cursor}, in {route.destination!r} only",
            )  # fmt: skip
        for topic in self.state.topics.values():
            for gap in topic.gaps:
                what = f"No frame has numbers of {topic.name!r} that were given out."
                lost = span("record", gap.first, gap.last + 1)
                self._problem(join(self._root, "wal"), -1, what, lost)

    def apply_marks(self, root: str) -> None:
        """Remove records that sealed segments mark as deleted."""
        for name in filter(_TOPIC_NAME.fullmatch, self._fs.listdir(join(root, "topics"))):
            topic = self.state.topics.get(int(name, 16))
            directory = join(root, "topics", name)
            for file in filter(_SEGMENT_NAME.fullmatch, self._fs.listdir(directory)):
                path = join(directory, file)
                data = read_file(self._fs, path, FILE_BYTES_MAX) or b""
                index = read_file(self._fs, path.removesuffix(".data") + ".idx", FILE_BYTES_MAX)
                marks = read_marks(data, index or b"")
                if topic is None:
                    continue
                for seq in marks.deleted:
                    topic.records.pop(seq, None)
                for position in marks.broken:
                    self._problem(
                        path, position, "A frame of a sealed segment does not match its checksum.",
                        "whether records there are marked as deleted",
                    )  # fmt: skip


def _topic(topic: TopicState, title: str) -> ForeignTopic:
    kind = "queue" if topic.config.get("type") == "queue" else "topic"
    end = max(topic.head + 1, topic.reserved + 1, topic.first)
    # As the server does: a topic begins with its first record that was not deleted.
    first = min(topic.records, default=end)
    lost = [gap for gap in topic.gaps if gap.first > first]
    found = ForeignTopic(title, kind, first, end, lambda: _batches(topic), lost)
    durability = topic.config.get("durability")
    if durability in _CLASSES:
        found.options["durability"] = durability
    if kind == "queue":
        found.cursor = first
        found.pending = [topic.leases[seq] for seq in sorted(topic.leases) if seq in topic.records]
        lease, most = topic.config.get("lease_ms"), topic.config.get("max_deliveries")
        if isinstance(lease, int) and lease > 0:
            found.options["lease"] = lease / 1000
        if isinstance(most, int):
            found.options["max_deliveries"] = most
    return found


def _batches(topic: TopicState) -> Iterator[pa.RecordBatch]:
    records = [topic.records[seq] for seq in sorted(topic.records)]
    for start in range(0, len(records), _ROWS):
        yield _batch(records[start : start + _ROWS])


def _batch(records: list[StoredRecord]) -> pa.RecordBatch:
    rows = len(records)
    owners = np.array([row for row in range(rows) if records[row].meta is not None], np.int64)
    metas = [record.meta for record in records if record.meta is not None]
    stamps = np.array([record.timestamp for record in records], np.int64) * 10**6
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.seq for record in records], pa.int64()),
            pa.array(stamps).cast(SCHEMA.field("timestamp").type),
            pa.nulls(rows, pa.binary()),
            pa.array([record.data for record in records], pa.binary()),
            headers_column(rows, owners, [META] * len(metas), metas),
            pa.array([record.tag for record in records], pa.string()),
            pa.array([record.node for record in records], pa.string()),
            pa.nulls(rows, pa.uint8()),
            pa.nulls(rows, SCHEMA.field("expires_at").type),
            pa.nulls(rows, SCHEMA.field("not_before").type),
            pa.array(np.zeros(rows, np.uint8)),
        ],
        schema=SCHEMA,
    )


__all__ = ["read"]

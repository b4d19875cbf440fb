"""Read a directory of Flo: keys as a table, streams as topics, queues with consumed messages.

Offsets are indexes of Flo's log. Entries of all kinds share them, so holes in the offsets of one
stream are no loss. A damaged entry is reported by its place; its kind is not known.

Entries after the newest commit index may never have been committed: Flo holds them back until
consensus confirms them, and so does this reader.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from crc32c import crc32c

from stratalog.errors import CorruptionError, NotAStoreError, UnsupportedVersionError
from stratalog.fs import FileSystem
from stratalog.interop.codecs.zstd import decompress_zstd
from stratalog.interop.files import join, read_file, read_head
from stratalog.interop.flo import format as flo
from stratalog.interop.flo.collect import Collector, Entry
from stratalog.interop.flo.snapshot import decode_snapshot
from stratalog.interop.flo.state import NAME, OurState, read_state
from stratalog.interop.model import OFFSET_MAX, Foreign, Problem
from stratalog.options import TIME_MAX

_SEGMENT_NAME = re.compile(r"(\d{10,20})\.flseg")
_SNAPSHOT_NAME = re.compile(r"\d{10,20}-\d{1,20}\.fsnap")
_SHARD_NAME = re.compile(r"\d{5}")
_SEGMENT_BYTES_MAX = 1 << 32
_PAYLOAD_BYTES_MAX = 100 << 20
_DIGITS_MAX = 20


def read(fs: FileSystem, path: str, name: str | None = None) -> Foreign:
    """Read all shards; `name` is a prefix of every name, with a dot."""
    shards = [join(path, one) for one in fs.listdir(path) if _SHARD_NAME.fullmatch(one)]
    if fs.listdir(join(path, "segs")):
        shards = [path]
    if not any(fs.listdir(join(shard, "segs")) or _snapshots(fs, shard) for shard in shards):
        raise NotAStoreError(
            f"{path} is not a directory of Flo: it has no shards (directories named by five "
            "digits) with segments in segs/. Give Flo's data directory."
        )
    foreign = Foreign("flo", path)
    state = read_state(fs, path)
    if isinstance(state, str):
        lost = "the names of tables, and when their keys expire"
        foreign.problems.append(Problem(NAME, 0, state, lost))
        state = OurState()
    collector = Collector(foreign, name, state)
    for number, shard in enumerate(shards):
        for entry in _ShardReader(fs, foreign, path, shard).entries():
            collector.take(entry, number)
    collector.finish()
    return foreign


def _snapshots(fs: FileSystem, shard: str) -> list[str]:
    """List the paths of a shard's snapshots, the newest last."""
    found = [
        (int(name.partition("-")[0]), join(directory, name))
        for directory in (shard, join(shard, "snaps"))
        for name in fs.listdir(directory)
        if _SNAPSHOT_NAME.fullmatch(name)
    ]
    return [path for _, path in sorted(found)]


class _ShardReader:
    """Reads the segments of one shard."""

    def __init__(self, fs: FileSystem, foreign: Foreign, root: str, shard: str) -> None:
        self._fs = fs
        self._foreign = foreign
        self._root = root
        self._shard = shard
        self._path = join(shard, "segs")

    def _problem(self, name: str, position: int, what: str, lost: str = "") -> None:
        place = os.path.relpath(join(self._path, name) if name else self._shard, self._root)
        self._foreign.problems.append(Problem(place, position, what, lost))

    def entries(self) -> Iterator[Entry]:
        """Give all valid entries, in order."""
        names = list(filter(_SEGMENT_NAME.fullmatch, self._fs.listdir(self._path)))
        names.sort(key=lambda name: int(name.partition(".")[0]))
        heads = {name: self._head(name) for name in names}
        limit = self._limit()
        committed = max((head[10] for head in heads.values() if head), default=0)
        last = held = 0
        self._note_missing(heads)
        for name in names:
            data = read_file(self._fs, join(self._path, name), _SEGMENT_BYTES_MAX) or b""
            for entry in self._segment(name, data):
                if entry.index > limit:
                    continue
                if entry.index <= last:
                    raise CorruptionError(
                        f"{join(self._path, name)} has entry {entry.index} again, which an "
                        "earlier segment has: a cut was begun and not finished. Let Flo open the "
                        "directory first."
                    )
                last = entry.index
                if committed and entry.index > committed:
                    held += 1
                else:
                    yield entry
        if held:
            self._problem(
                names[-1], -1, f"{held} entries after index {committed} may not be committed.",
                f"entries {last - held + 1} to {last}: let Flo open the directory to keep them",
            )  # fmt: skip

    def _head(self, name: str) -> tuple[Any, ...]:
        """Read the fields of a segment's header; empty if it has none."""
        data = read_head(self._fs, join(self._path, name), flo.SEGMENT_BYTES)
        if len(data) < flo.SEGMENT_BYTES or not data.startswith(flo.SEGMENT_MAGIC):
            return ()
        return flo.SEGMENT.unpack(data)

    def _note_missing(self, heads: dict[str, tuple[Any, ...]]) -> None:
        """Report entries that no segment has: Flo drops segments that a snapshot covers."""
        covered = self._covered()
        expected = 1
        for name, head in heads.items():
            if not head:
                expected = 0  # how far it went is not known
                continue
            first, last, count = head[3], head[4], head[7]
            if not count:
                continue
            if 0 < expected < first:
                self._note_range(name, expected, first - 1, covered)
            expected = last + 1
        if 0 < expected <= covered:
            self._note_range("", expected, covered, covered)

    def _note_range(self, name: str, first: int, last: int, covered: int) -> None:
        where = "their state is in a snapshot" if last <= covered else "a snapshot may have it"
        self._problem(
            name, 0 if name else -1, f"No segment has the entries {first} to {last}.",
            f"entries {first} to {last}: {where}, in an encoding that is not known",
        )  # fmt: skip

    def _covered(self) -> int:
        """Return the index up to which a snapshot has the state; 0 if there is no whole one."""
        for path in reversed(_snapshots(self._fs, self._shard)):
            try:
                return decode_snapshot(read_file(self._fs, path, _SEGMENT_BYTES_MAX) or b"").last
            except ValueError as error:
                place = os.path.relpath(path, self._root)
                self._foreign.problems.append(Problem(place, 0, str(error), ""))
        return 0

    def _limit(self) -> int:
        """Return the highest index that is not void."""
        data = read_file(self._fs, join(self._path, flo.TRUNCATE_NAME))
        if data is None:
            return 1 << 63
        if not data.strip().isdigit():
            self._problem(flo.TRUNCATE_NAME, 0, "The mark of a cut is no number.")
            return 1 << 63
        return int(data.strip()[:_DIGITS_MAX])

    def _segment(self, name: str, data: bytes) -> Iterator[Entry]:
        if len(data) < flo.SEGMENT_BYTES + flo.FOOTER_BYTES:
            self._problem(name, 0, "The segment is cut short.", "its entries")
            return
        magic, version, *_ = flo.SEGMENT.unpack_from(data)
        if magic != flo.SEGMENT_MAGIC:
            self._problem(name, 0, "The file does not begin as a segment does.", "its entries")
            return
        if version != flo.VERSION:
            raise UnsupportedVersionError(
                f"{join(self._path, name)} is of version {version} of Flo's format. This release "
                f"reads version {flo.VERSION}: upgrade stratalog."
            )
        size = flo.SEGMENT.unpack_from(data)[8]
        footer = flo.FOOTER.unpack_from(data, len(data) - flo.FOOTER_BYTES)
        if footer[6] != flo.FOOTER_MAGIC or footer[4] != crc32c(data[: -flo.FOOTER_BYTES]):
            self._problem(
                name, len(data) - flo.FOOTER_BYTES,
                "The segment does not match its checksum: each of its entries is checked.",
            )  # fmt: skip
            size = len(data) - flo.SEGMENT_BYTES
        yield from self._walk(name, data, flo.SEGMENT_BYTES, flo.SEGMENT_BYTES + size)

    def _walk(self, name: str, data: bytes, position: int, end: int) -> Iterator[Entry]:
        end = min(end, len(data))
        magic = flo.ENTRY_MAGIC.to_bytes(4, "little")
        while position < end:
            found = _entry(data, position, end)
            if found is None:
                is_expected = data.startswith(magic, position)
                following = data.find(magic, position + 1, end)
                while following >= 0 and _entry(data, following, end) is None:
                    following = data.find(magic, following + 1, end)
                if is_expected or following >= 0:
                    self._problem(
                        name, position, "An entry does not match its checksum.", "that entry"
                    )
                if following < 0:
                    return
                position = following
                continue
            start = position
            header, payload, position = found
            _, _, type, flags, _, index, timestamp, _, _ = header
            if type >= flo.COMMANDS_END:
                continue
            if index > OFFSET_MAX:
                self._problem(name, start, f"Entry {index} has a number that cannot be.", "it")
                continue
            if not 0 <= timestamp <= TIME_MAX:
                what = f"Entry {index} has a time that cannot be."
                self._problem(name, start, what, f"the time of entry {index}")
                timestamp = 0
            try:
                yield Entry(type, flags, index, timestamp, *_command(payload, flags))
            except ValueError as error:
                self._problem(name, start, f"Entry {index} does not decode: {error}.", "it")


def _entry(data: bytes, position: int, end: int) -> tuple[tuple[int, ...], bytes, int] | None:
    """Read the header and payload of the entry at a position, and where it ends."""
    if end - position < flo.ENTRY_BYTES:
        return None
    header = flo.ENTRY.unpack_from(data, position)
    stop = position + flo.ENTRY_BYTES + header[7]
    if header[0] != flo.ENTRY_MAGIC or stop > end or header[1] != flo.VERSION:
        return None
    payload = data[position + flo.ENTRY_BYTES : stop]
    if crc32c(payload, crc32c(data[position : position + 36])) != header[8]:
        return None
    return header, payload, stop


def _command(payload: bytes, flags: int) -> tuple[int, bytes, bytes]:
    """Decode namespace, key and value."""
    if flags & flo.ZSTD:
        payload = decompress_zstd(payload, _PAYLOAD_BYTES_MAX)
    elif flags & flo.LZ4:
        raise ValueError("its payload is compressed with LZ4, whose framing is not known")
    if len(payload) < flo.COMMAND_BYTES:
        raise ValueError("its command is cut short")
    namespace, key, value = flo.COMMAND.unpack_from(payload)
    middle = flo.COMMAND_BYTES + key
    if middle + value > len(payload):
        raise ValueError("its command is cut short")
    return namespace, payload[flo.COMMAND_BYTES : middle], payload[middle : middle + value]


__all__ = ["read"]

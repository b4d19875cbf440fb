"""Reading the logs of topics: which frames count, and in which order.

The server writes a log per shard, and each topic to one of them. After a change of its number of
shards, the older frames of a topic are in one log and the newer ones in another, until a snapshot
covers them all. Numbers of a topic only increase: the log with its lower numbers comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from stratalog.fs import FileSystem
from stratalog.interop.codecs.text import span
from stratalog.interop.files import join, read_file
from stratalog.interop.topics import format as topics
from stratalog.interop.topics.state import TIME_MAX_MS, Frame, State

UNTIMED = "A record has a time that cannot be."
FILE_BYTES_MAX = 1 << 31
_CHUNK_BYTES = 1 << 20
Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_WAL_NAME = re.compile(r"wal-(\d{16})\.log")
_SHARD_NAME = re.compile(r"shard-\d+")

Report = Callable[[str, int, str, str], None]
"""Takes file, position, the problem, and what is lost."""


class _File(NamedTuple):
    """A file of a log, and where its valid frames begin."""

    path: str
    start: int
    is_last: bool


class _Placed(NamedTuple):
    """A frame and its place."""

    path: str
    position: int
    frame: Frame


class Replay:
    """Applies every log of a directory to a state."""

    def __init__(self, fs: FileSystem, root: str, state: State, report: Report) -> None:
        self._fs = fs
        self._root = join(root, "wal")
        self._state = state
        self._report = report

    def run(self) -> None:
        """Apply the frames after the snapshot, of every log."""
        names = ["", *filter(_SHARD_NAME.fullmatch, self._fs.listdir(self._root))]
        logs = [files for files in map(self._files, names) if files]
        firsts = [self._first_numbers(files) for files in logs]
        shared = {id for at, log in enumerate(firsts) for id in log if _count(firsts[at:], id) > 1}
        waiting: dict[int, list[tuple[float, int, list[_Placed]]]] = {id: [] for id in shared}
        for place, files in enumerate(logs):
            for id in shared & firsts[place].keys():
                waiting[id].append((firsts[place][id], place, []))
            for file in files:
                for placed in self._frames(file):
                    if placed.frame.topic_id in shared:
                        waiting[placed.frame.topic_id][-1][2].append(placed)
                    else:
                        self._apply(placed)
        for _, parts in sorted(waiting.items()):
            for _, _, frames_of_log in sorted(parts, key=lambda part: part[:2]):
                for placed in frames_of_log:
                    self._apply(placed)

    def _files(self, name: str) -> list[_File]:
        """List the files of a log that count, in order."""
        directory = join(self._root, name) if name else self._root
        numbers = {
            int(found[1]): join(directory, found[0])
            for found in map(_WAL_NAME.fullmatch, self._fs.listdir(directory))
            if found
        }
        index, position = self._state.places.get(name, (0, 0))
        last = max(numbers, default=0)
        return [
            _File(numbers[number], position if number == index else 0, number == last)
            for number in sorted(numbers)
            if number >= index
        ]

    def _first_numbers(self, files: list[_File]) -> dict[int, float]:
        """Return the topics with frames in a log, each with its lowest record number there."""
        found: dict[int, float] = {}
        for file in files:
            data = read_file(self._fs, file.path, FILE_BYTES_MAX) or b""
            position, size = file.start, len(data)
            while size - position >= topics.FRAME_BYTES:
                length, type, _, id, seq, *_ = topics.FRAME.unpack_from(data, position)
                if length < topics.LENGTH_MIN:
                    break
                if id:
                    number = seq if type == topics.APPEND else float("inf")
                    found[id] = min(found.get(id, number), number)
                position += 4 + length
        return found

    def _frames(self, file: _File) -> Iterator[_Placed]:
        """Give the whole frames of a file; reports anything else after them."""
        data = read_file(self._fs, file.path, FILE_BYTES_MAX) or b""
        end = file.start
        for position, end, frame in frames(data, file.start):  # noqa: B007  # used after the loop
            yield _Placed(file.path, position, frame)
        if any(data[end:]):
            following = next(_search(data, end + 1), None)
            if following is not None:
                what = "A frame is broken, and whole ones follow it: the server ends its log there."
                lost = f"what that frame and those after it did: {_numbers(data, following)}"
            elif file.is_last:
                what, lost = "The last frame is cut short: a torn write.", "what that frame did"
            else:
                what, lost = "A frame is broken.", "what that frame and those after it did"
            self._report(file.path, end, what, lost)

    def _apply(self, placed: _Placed) -> None:
        path, position, frame = placed
        if not 0 <= frame.timestamp <= TIME_MAX_MS:
            if frame.type == topics.APPEND:
                self._report(path, position, UNTIMED, f"the time of record {frame.seq}")
            frame = frame._replace(timestamp=0)
        try:
            self._state.apply(frame)
        except (ValueError, UnicodeDecodeError) as error:
            self._report(path, position, f"A frame does not decode: {error}.", "its effect")


def _count(logs: list[dict[int, float]], id: int) -> int:
    return sum(id in log for log in logs)


def frames(data: bytes, position: int) -> Iterator[tuple[int, int, Frame]]:
    """Give whole frames from a position on, each with its place and where it ends."""
    while (found := _frame(data, position)) is not None:
        end, frame = found
        yield position, end, frame
        position = end


def _frame(data: bytes, position: int) -> tuple[int, Frame] | None:
    """Return where the frame at a position ends, and the frame; None if it is not whole."""
    if len(data) - position < topics.FRAME_BYTES:
        return None
    fields = topics.FRAME.unpack_from(data, position)
    length, type, flags, topic_id, seq, timestamp, node, tag, payload = fields
    end = position + 4 + length
    if length != topics.LENGTH_MIN + node + tag + payload or end > len(data):
        return None
    stored = int.from_bytes(data[end - 8 : end], "little")
    is_known = topics.APPEND <= type <= topics.HEAD
    if not is_known or xxh3_64_intdigest(data[position + 4 : end - 8]) != stored:
        return None
    at = position + topics.FRAME_BYTES
    return end, Frame(
        type, topic_id, seq, timestamp,
        data[at : at + node].decode("utf-8", "replace") if flags & topics.HAS_NODE else None,
        data[at + node : at + node + tag].decode("utf-8", "replace")
        if flags & topics.HAS_TAG
        else None,
        data[at + node + tag : end - 8],
    )  # fmt: skip


def _search(data: bytes, position: int) -> Iterator[int]:
    """Give every position from one on where a whole frame begins."""
    for start in range(position, len(data), _CHUNK_BYTES):
        raw = np.frombuffer(data, np.uint8)[start : start + _CHUNK_BYTES + topics.FRAME_BYTES]
        count = min(_CHUNK_BYTES, len(raw) - topics.FRAME_BYTES + 1)
        if count <= 0:
            return

        def numbers(at: int, size: int, raw: Bytes = raw, count: int = count) -> Numbers:
            parts = (raw[at + byte : at + byte + count] for byte in range(size))
            shifted = (part.astype(np.int64) << 8 * place for place, part in enumerate(parts))
            return sum(shifted, np.zeros(count, np.int64))

        inner = numbers(30, 2) + numbers(32, 2) + numbers(34, 4)
        is_possible = numbers(0, 4) == topics.LENGTH_MIN + inner
        for place in (np.flatnonzero(is_possible) + start).tolist():
            if _frame(data, place) is not None:
                yield place


def _numbers(data: bytes, position: int) -> str:
    """Describe the records that frames from a position on append."""
    found: dict[int, list[int]] = {}
    others = 0
    for _, _, frame in frames(data, position):
        if frame.type == topics.APPEND:
            found.setdefault(frame.topic_id, []).append(frame.seq)
        else:
            others += 1
    parts = [
        f"{span('record', min(seqs), max(seqs) + 1)} of topic {id}"
        for id, seqs in sorted(found.items())
    ]
    return ", ".join([*parts, f"{others} other frames"] if others else parts)


__all__ = ["FILE_BYTES_MAX", "UNTIMED", "Replay", "frames"]

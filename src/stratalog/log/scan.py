"""Scanning log files frame by frame, and classifying where and why the frames end.

A shard's files follow each other without a gap: the name of the next one is the lsn at which the
frames of this one end. So a file with a successor must hold valid frames exactly up to there, and
anything else is damage. Only the newest file may end in a torn tail.

Concurrency: one thread per scanner. A live writer may be adding frames meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from stratalog.errors import CorruptionError, FormatError, UnsupportedVersionError
from stratalog.format.frame import (
    ALIGNMENT,
    BODY_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    FrameHeader,
    FrameType,
    check_body,
    decode_header,
    log_seed,
)
from stratalog.format.names import log_file_path, parse_numbered, shard_number
from stratalog.fs import File, FileSystem

# Large enough for few reads, small enough to stay in the processor's cache.
_CHUNK_BYTES = 1 << 20

Apply = Callable[[str, int, int, FrameHeader, bytes], None]
"""Takes directory, first lsn of the file, position, header, and the body of a control frame."""


class Damage(NamedTuple):
    """A place in the log that was durable once and is not valid now."""

    path: str
    start: int
    end: int
    """Position of the next valid frame, or -1 when nothing valid follows in this file."""
    reason: str

    def __str__(self) -> str:
        until = f"to {self.end}" if self.end >= 0 else "on"
        return f"{self.path} from position {self.start} {until}: {self.reason}"


class TornTail(NamedTuple):
    """Bytes after the last whole frame that a crash left unfinished."""

    path: str
    position: int
    bytes: int
    is_past: bool
    """Whether these bytes follow an end mark, and are old content of a recycled file."""


def frames(file: File, seed: int, position: int) -> Iterator[tuple[int, FrameHeader, bytes]]:
    """Give valid frames from `position` on, each with its place; ends at the first that is not.

    The body is given for control frames only: a batch is verified here and read later.
    """
    data, origin = b"", position
    while True:
        at = position - origin
        if len(data) - at < HEADER_BYTES:
            data, origin, at = file.pread(_CHUNK_BYTES, position), position, 0
            if len(data) < HEADER_BYTES:
                return
        if data[at : at + 4] != MAGIC:  # the usual end: not an error
            return
        header = decode_header(data, at, seed=seed)
        length = HEADER_BYTES + header.body_length
        if len(data) - at < length:
            data, origin, at = file.pread(max(length, _CHUNK_BYTES), position), position, 0
        check_body(header, data, at + HEADER_BYTES)
        is_control = header.type != FrameType.RECORDS
        yield position, header, data[at + HEADER_BYTES : at + length] if is_control else b""
        position += length


def find_frame(file: File, seed: int, position: int) -> tuple[int, FrameHeader] | None:
    """Find the first whole valid frame at or after `position`."""
    for found in _magics(file, position):
        with contextlib.suppress(FormatError):
            for at, header, _ in frames(file, seed, found):
                return at, header
    return None


def is_whole_elsewhere(file: File) -> bool:
    """Return whether a file begins with a whole frame that is not one of this file.

    A body's checksum has no seed. No crash leaves such a frame: the place of its header was empty
    before.
    """
    data = file.pread(HEADER_BYTES, 0)
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        return False
    fields = HEADER.unpack(data)
    length, checksum = fields[4], fields[10]
    if length > min(BODY_BYTES_MAX, file.size() - HEADER_BYTES):
        return False
    return bool(xxh3_64_intdigest(file.pread(length, HEADER_BYTES)) == checksum)


def _magics(file: File, position: int) -> Iterator[int]:
    while chunk := file.pread(_CHUNK_BYTES, position):
        at = chunk.find(MAGIC)
        while at >= 0:
            if (position + at) % ALIGNMENT == 0:
                yield position + at
            at = chunk.find(MAGIC, at + 1)
        position += len(chunk)  # chunks are a multiple of 8: an aligned magic is never cut in two


class ReleasedError(Exception):
    """The writer released a log file before a concurrent reader had read it: start again."""


class ShardScanner:
    """Walks the files of one shard in order, again and again, from where it stopped."""

    def __init__(
        self, fs: FileSystem, directory: str, start_lsn: int = 0, identity: bytes = b""
    ) -> None:
        self._fs = fs
        self._identity = identity
        self._file: File | None = None
        self._start_lsn = start_lsn
        self.directory = directory
        self.end_lsn = 0
        """The log was durable below this, whatever the files hold; 0 if unknown."""
        self.first_lsn = -1
        """First lsn of the current file; -1 before the first."""
        self.position = 0
        """Position of the next frame to read."""
        self.damages: list[Damage] = []
        self._seen_whole = False
        self._newest: tuple[int, FrameHeader] | None = None
        """The last frame read in this file, and its place."""

    @property
    def seed(self) -> int:
        """The seed of the checksums in the current file."""
        return log_seed(self._identity, shard_number(self.directory), self.first_lsn)

    def advance(self, apply: Apply) -> None:
        """Pass every new frame to `apply`."""
        lsns = self._files()
        if self._file is None and lsns:
            self._begin(lsns)
        elif self._file is None and self._start_lsn and not self.damages:
            reason = f"its log files, which went on from lsn {self._start_lsn}, are missing"
            self.damages.append(Damage(self.directory, 0, 0, reason))
        elif self._file is not None and self.first_lsn not in lsns:
            raise ReleasedError(self._file.path)
        if self._newest is not None and not self._is_there(*self._newest):
            raise ReleasedError(log_file_path(self.directory, self.first_lsn))
        for lsn in lsns:
            if lsn > self.first_lsn:
                self._leave(apply, lsn)
                self._file = self._open(lsn)
                self.first_lsn, self.position, self._newest = lsn, 0, None
            if lsn == self.first_lsn:
                self._scan(apply)
        if not self._seen_whole and (self._file is not None or self.end_lsn):
            self._seen_whole = True
            self._find_damage(apply)
        if self._file is not None and self.first_lsn not in self._files():
            raise ReleasedError(self._file.path)  # the bytes read may belong to another file

    def rest(self) -> None:
        """Close the file: the writer reads its log to the end once."""
        self._file = None

    def _is_there(self, position: int, header: FrameHeader) -> bool:
        """Return whether a frame is still in place: a writer removes a half-written group."""
        assert self._file is not None
        with contextlib.suppress(FormatError):
            data = self._file.pread(HEADER_BYTES, position)
            return decode_header(data, seed=self.seed) == header
        return False

    def _files(self) -> list[int]:
        names = self._fs.listdir(self.directory)
        return [lsn for name in names if (lsn := parse_numbered(name)) is not None]

    def _begin(self, lsns: list[int]) -> None:
        """Open the file that contains the place to start from."""
        start = self._start_lsn
        first = max((lsn for lsn in lsns if lsn <= start), default=lsns[0])
        self._file = self._open(first)
        self.first_lsn, self.position = first, max(start - first, 0)
        path = self._file.path
        if self.first_lsn > start:
            self.damages.append(
                Damage(path, 0, 0, f"the log files before it, from lsn {start} on, are missing")
            )
        elif self._file.size() < self.position:
            reason = f"the file ends at {self._file.size()}, but was durable up to {self.position}"
            self.damages.append(Damage(path, self._file.size(), self.position, reason))

    def _open(self, lsn: int) -> File:
        """Open a file that was listed; a concurrent writer may have released it since."""
        path = log_file_path(self.directory, lsn)
        try:
            return self._fs.open(path, "read")
        except FileNotFoundError as error:
            raise ReleasedError(path) from error

    def torn_tail(self) -> TornTail | None:
        """Describe the bytes after the last frame of the newest file, unless they are zeros."""
        if self._file is None:
            return None
        size = self._file.size()
        position = self.position
        while position < size:
            chunk = self._file.pread(_CHUNK_BYTES, position)
            if chunk.count(0) != len(chunk):
                is_past = position > self.position or not any(chunk[:ALIGNMENT])
                return TornTail(self._file.path, self.position, size - self.position, is_past)
            position += len(chunk)
        return None

    def _scan(self, apply: Apply) -> None:
        """Apply valid frames; stop at the first that is not, for whatever reason."""
        assert self._file is not None
        try:
            for position, header, body in frames(self._file, self.seed, self.position):
                end = position + HEADER_BYTES + header.body_length
                try:
                    apply(self.directory, self.first_lsn, position, header, body)
                except CorruptionError as error:
                    # Its checksums are right, so no crash tore it: it must not be cut off.
                    self.damages.append(Damage(self._file.path, position, end, str(error)))
                self.position = end
                self._newest = position, header
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(
                f"{self._file.path} at position {self.position}: {error}"
            ) from error
        except FormatError:
            pass

    def _leave(self, apply: Apply, next_lsn: int) -> None:
        """Continue with the next file, whose name gives the end of this one."""
        assert self._file is not None
        end = next_lsn - self.first_lsn
        self._scan(apply)  # the writer may have completed the file since it was last read
        while self.position < end:
            start = self.position
            found = find_frame(self._file, self.seed, start + ALIGNMENT)
            self._add_damage(start, -1 if found is None or found[0] >= end else found[0])
            if found is None or found[0] >= end:
                return
            self.position = found[0]
            self._scan(apply)
        if self.position > end:
            raise CorruptionError(
                f"{self._file.path} has frames up to position {self.position}, but the next file "
                f"starts at {end}: the log files do not belong together"
            )

    def _find_damage(self, apply: Apply) -> None:
        """Look for evidence that the log went on past the end of the newest file."""
        if self._file is None:
            if not self.damages:
                reason = f"its log files, which went up to lsn {self.end_lsn}, are missing"
                self.damages.append(Damage(self.directory, 0, 0, reason))
            return
        self._look_past_end(apply)
        self._look_at_start()
        end = self.end_lsn - self.first_lsn
        if self.position < end:
            self._scan(apply)  # a concurrent writer may have added it just now
        if self.position < end:
            reason = f"the log ends here, and was durable up to lsn {self.end_lsn}"
            self.damages.append(Damage(self._file.path, self.position, end, reason))
            self.position = end

    def _look_at_start(self) -> None:
        """Record a newest file with a wrong beginning, of which nothing was read."""
        assert self._file is not None
        if self._newest is not None or self.damages:
            return
        with contextlib.suppress(FormatError):
            decode_header(self._file.pread(HEADER_BYTES, 0), seed=self.seed)
            return
        if is_whole_elsewhere(self._file):
            reason = "it is a log file of another store, shard or place"
            end = max(self._file.size() // ALIGNMENT * ALIGNMENT, self.position)
            self.damages.append(Damage(self._file.path, 0, end, reason))
            self.position = end
        elif self.position and not self._has_frame(self.position):
            reason = f"it does not begin with a frame, and was durable up to {self.position}"
            self.damages.append(Damage(self._file.path, 0, self.position, reason))

    def _has_frame(self, end: int) -> bool:
        """Return whether there is a frame of this file before a position."""
        assert self._file is not None
        found = find_frame(self._file, self.seed, 0)
        return found is not None and found[0] < end

    def _look_past_end(self, apply: Apply) -> None:
        """Look past the end of the newest file for frames that were written after it."""
        assert self._file is not None
        start = search = self.position
        while found := find_frame(self._file, self.seed, search + ALIGNMENT):
            position, header = found
            if position - header.unsynced * ALIGNMENT <= start:
                search = position
                continue
            # Everything before this frame was durable when it was written. A concurrent writer may
            # have added the missing frames just now, so scan once more.
            self._scan(apply)
            if self.position == start:
                self._add_damage(start, position)
                self.position = position
                self._scan(apply)
            start = search = self.position

    def _add_damage(self, start: int, end: int) -> None:
        assert self._file is not None
        reason = "a frame is missing"
        try:
            header = decode_header(self._file.pread(HEADER_BYTES, start), seed=self.seed)
            check_body(header, self._file.pread(header.body_length, start + HEADER_BYTES))
        except FormatError as error:
            reason = str(error)
        self.damages.append(Damage(self._file.path, start, end, reason))

"""The open segments of a store: maps and files, as few as are in use.

Owns: maps of sealed segments, files of open ones, and the threads that read the cold store.

Pages that a reader touches count as this process' memory although they are the disk's. When more
than `resident_bytes` were touched they are given back, all at once: that costs 0.3 us a page (5 ms
for 64 MiB read at random), and a reader that needs one again finds it where it was, in the page
cache.

Concurrency: any thread. The lock is held for the book-keeping alone, never while a file is read.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from stratalog.errors import (
    ColdStoreError,
    CorruptionError,
    FormatError,
    OutOfMemoryError,
    StorageError,
    TooManyFilesError,
    UnsupportedVersionError,
)
from stratalog.format.codec import EXPANDED_BYTES_MAX
from stratalog.format.manifest import Placed
from stratalog.format.names import (
    incoming_path,
    old_cold_name,
    parse_cold_name,
    segment_name,
    topic_path,
)
from stratalog.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    UNBOUND,
    Index,
    SegmentFooter,
    State,
    Summary,
    decode_segment_header,
    place_index,
)
from stratalog.fs import File, FileSystem, NotMappedError, forget_pages, populate
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.fs.open_files import OpenFiles
from stratalog.fs.os_errors import os_error, storage_error
from stratalog.log.reader import read_failed
from stratalog.metrics import Histogram
from stratalog.segments.cold_reader import ColdReader
from stratalog.segments.segment import (
    Fetch,
    Loaded,
    Segment,
    check_segment_header,
    index_end,
    is_foreign,
    read_footer,
    read_index,
    scan_index,
)

logger = logging.getLogger("stratalog.segments")

_SEGMENTS_MAX = 128
_RESIDENT_BYTES_MAX = 64 << 20
_COLD_READ_BYTES = 8 << 20
_COLD_PIECES = 4
# While there are appends a batch of 512 KiB is read every seven milliseconds: 75 MB/s. Eight scans
# beside fsync appends then make their p99 1.4 to 1.5 times as long; with a rest of 1 ms it was 1.8.
_REST_SECONDS = 0.007
_ACTIVE_SECONDS = 0.1


class SegmentPool:
    """Opens segments, and closes those that were not used for a while."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        resident_bytes_max: int = _RESIDENT_BYTES_MAX,
        identity: bytes = UNBOUND,
        files: OpenFiles | None = None,
    ) -> None:
        self.fs = fs
        self.files = OpenFiles() if files is None else files
        self.root = root
        self.identity = identity
        """The store's identity; segments of another store are not read."""
        self.is_verified = True
        """Whether bodies are checked against their checksums when they are read."""
        self.expanded_bytes_max = EXPANDED_BYTES_MAX
        """Largest batch that is decompressed."""
        self.cold: ColdStore | None = None
        self.cold_location = ""
        """Location of the cold segments, as far as the log knows."""
        self._lock = threading.Lock()
        self._loaded: OrderedDict[Segment, Loaded] = OrderedDict()
        self.resident_bytes_max = resident_bytes_max
        self._resident_bytes = 0
        self._reader = ColdReader()
        self.times = Histogram()
        """How long it took to read a batch, from segments or from the log."""
        self.records_read = 0
        self.cold_gate = ColdGate()

    def segment(self, topic_id: int, summary: Summary, name: str = "") -> Segment:
        """Build a segment of a topic, wherever it is; `name` is its name in the cold store."""
        if summary.state == State.COLD:
            path = name or old_cold_name(topic_id, summary.first_offset)
        else:
            path = self.path(topic_id, summary.first_offset, summary.state)
        return Segment(self, topic_id, path, summary)

    def staged(self, placed: Placed) -> Segment:
        """Build an adopted segment that is still where it was staged."""
        path = incoming_path(self.root, f"{placed.staged.name}.seg")
        return Segment(self, placed.footer.topic_id, path, placed.summary(), placed)

    def path(self, topic_id: int, first: int, state: int) -> str:
        """Return the path of a segment's local file."""
        suffix = ".open" if state == State.OPEN else ".seg"
        return os.path.join(topic_path(self.root, topic_id), segment_name(first, suffix))

    def load(self, segment: Segment) -> Loaded:
        """Open a segment; raises `FileNotFoundError` if it was moved meanwhile."""
        try:
            if segment.is_cold:
                loaded = self._load_cold(segment)
            elif segment.is_open:
                loaded = self._load_open(segment)
            else:
                loaded = self._load_sealed(segment)
        except FormatError as error:
            raise type(error)(f"{segment.path}: {error}") from error
        with self._lock:
            self._loaded[segment] = loaded
            self._drop_oldest()
        return loaded

    def _drop_oldest(self) -> None:
        """Close segments that were opened first, unless they were used since the last call."""
        while len(self._loaded) > _SEGMENTS_MAX:
            segment, loaded = self._loaded.popitem(last=False)
            if segment.is_used:
                segment.is_used = False
                self._loaded[segment] = loaded
            else:
                segment.forget()
                self.files.drop(segment)

    def forget(self, segment: Segment) -> None:
        """Drop a segment that is no longer part of its topic."""
        with self._lock:
            self._loaded.pop(segment, None)
        segment.forget()
        self.files.drop(segment)

    def summarise(self, topic_id: int, first: int) -> Summary:
        """Summarise a sealed segment found on disk; raises a `FormatError` if it is damaged."""
        file = self.fs.open(self.path(topic_id, first, State.SEALED), "read")
        try:
            size = file.size()

            def fetch(position: int, length: int) -> bytes:
                return file.pread(length, position)

            created_at = check_segment_header(fetch, topic_id, first, self.identity)
            return summary_of(read_footer(fetch, size, topic_id, first), created_at, size)
        except FormatError as error:
            raise type(error)(f"{file.path}: {error}") from error
        finally:
            file.close()

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            loaded, self._loaded = list(self._loaded), OrderedDict()
        for segment in loaded:
            segment.forget()
        self._reader.close()
        self.files.clear()
        if self.cold is not None:
            self.cold.close()

    def note(self, length: int) -> None:
        """Count bytes of maps that were touched."""
        with self._lock:
            self._resident_bytes += length
            if self._resident_bytes < self.resident_bytes_max:
                return
            self._resident_bytes = 0
            loaded = list(self._loaded.values())
        for one in loaded:
            one.release()

    # --- the three ways to read -----------------------------------------------------------

    def _open_sealed(self, segment: Segment) -> File:
        try:
            return self.fs.open(segment.path, "read")
        except FileNotFoundError:
            if segment.placed is None:
                raise
            # An adopted segment that is in place before the chain is updated.
            place = self.path(segment.topic_id, segment.first, State.SEALED)
            return self.fs.open(place, "read")

    def _make_room(self) -> bool:
        """Drop maps that are not in use; returns whether there is room for one more."""
        while not self.files.has_room_for_map():
            with self._lock:
                mapped = next((s for s, one in self._loaded.items() if one.is_mapped), None)
                if mapped is None:
                    return False  # readers hold them all
                del self._loaded[mapped]
            mapped.forget()
        return True

    def _load_sealed(self, segment: Segment) -> Loaded:
        file = self.files.opened(self._open_sealed, segment)
        try:
            view = file.mmap() if self._make_room() else None
        except NotMappedError:
            return self._load_ranges(segment, file)
        except (OutOfMemoryError, TooManyFilesError):
            view = None
        if view is None:
            return self._load_by_position(segment, file)
        file.close()
        self.files.add_map(view)

        def fetch(position: int, length: int) -> memoryview:
            try:
                populate(view, position, min(length, len(view) - position))
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    raise storage_error(error, "read", segment.path) from error
                raise self._unreadable(segment, position, length, error) from error
            return view[position : position + length]

        self._check_owner(fetch)
        index = self._index(segment, fetch, len(view))
        return Loaded(segment, index, fetch, self.note, lambda: forget_pages(view), view)

    def _unreadable(
        self, segment: Segment, position: int, length: int, error: OSError
    ) -> CorruptionError | StorageError:
        """Build the error for a range of a map that is not there; the file gives the reason."""
        try:
            file = self.fs.open(segment.path, "read")
            try:
                found = len(file.pread(length, position))
            finally:
                file.close()
        except OSError as failure:
            return read_failed(segment.path, position, failure)
        reason = f"the file was cut short: {found} of {length} bytes are there"
        if found == length:
            reason = f"the file was replaced or cut while it was read ({error})"
        return CorruptionError(
            f"{segment.path} at position {position}: {reason}. Restore the file from a copy, or "
            "run `stratalog repair`."
        )

    def _check_owner(self, fetch: Fetch) -> None:
        """Raise if a segment belongs to another store; one with a damaged header may be ours."""
        try:
            header = decode_segment_header(bytes(fetch(0, HEADER_BYTES)))
        except UnsupportedVersionError:
            raise
        except FormatError:
            return  # the footer and the batches have checksums of their own
        if is_foreign(header, self.identity):
            raise CorruptionError("segment of another store")

    def _load_by_position(self, segment: Segment, file: File) -> Loaded:
        """Load a sealed segment that cannot be mapped now: read on demand, opened for each read."""
        size = file.size()
        end = file.pread(FOOTER_BYTES, max(0, size - FOOTER_BYTES))

        def again() -> File:
            file = self._open_sealed(segment)
            if (file.size(), file.pread(FOOTER_BYTES, max(0, size - FOOTER_BYTES))) != (size, end):
                raise os_error(errno.ENOENT, "open", segment.path)  # rewritten: look again
            return file

        fetch = self._fetch(segment, file, again, size)
        self._check_owner(fetch)
        return Loaded(segment, self._index(segment, fetch, size), fetch, self.note)

    def _fetch(
        self, segment: Segment, file: File, again: Callable[[], File], end: int
    ) -> Callable[[int, int], bytes]:
        """Read ranges of a file below `end`, which may be closed and reopened at any time."""
        self.files.add(segment, file)

        def fetch(position: int, length: int) -> bytes:
            found = self.files.get(segment)
            try:
                if found is None:
                    found = self.files.opened(again)
                    # A segment that was dropped meanwhile is open for this read alone.
                    if segment in self._loaded:
                        self.files.add(segment, found)
                return found.pread(min(length, end - position), position)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise read_failed(segment.path, position, error) from error

        return fetch

    def _load_ranges(self, segment: Segment, file: File) -> Loaded:
        """Load a sealed segment whose file is remote: read on demand, a few megabytes at a time."""

        def remote(position: int, length: int) -> bytes:
            return file.pread(length, position)

        index = self._index(segment, remote, file.size())
        fetch = _ReadAhead(remote, index_end(index), self.note)
        return Loaded(segment, index, fetch, self.note, fetch.release)

    def _load_open(self, segment: Segment) -> Loaded:
        """Load an open segment, or one that was renamed before the topic's chain was updated.

        Then its batches are where they were; if it was rewritten since, it is not found.
        """
        sealed_path = self.path(segment.topic_id, segment.first, State.SEALED)
        end = segment.summary.bytes

        def find() -> File:
            try:
                return self.fs.open(segment.path, "read")
            except FileNotFoundError:
                return self.fs.open(sealed_path, "read")

        def again() -> File:
            file = find()
            if file.path == sealed_path:
                batches = scan_index(_ranges(file, end), segment.topic_id, end, segment.first)
                if not np.array_equal(batches, index):
                    raise os_error(errno.ENOENT, "open", segment.path)  # rewritten: look again
            return file

        file = self.files.opened(find)
        fetch = self._fetch(segment, file, again, end)
        check_segment_header(fetch, segment.topic_id, segment.first, self.identity)
        index = scan_index(fetch, segment.topic_id, end, segment.first)
        found = index_end(index)
        if file.path == sealed_path:
            records = int(index["count"].sum(dtype=np.uint64))
            if found != end or records != segment.summary.records:
                raise os_error(errno.ENOENT, "open", segment.path)
        elif found != end:
            raise CorruptionError(f"damaged at position {found}: {end} bytes of it were durable")
        return Loaded(segment, index, fetch, self.note)

    def find_cold(self) -> ColdStore | None:
        """Return the cold store of the options, or else the one in the log."""
        if self.cold is None and self.cold_location:
            self.cold = open_cold(self.cold_location, self.fs)
        return self.cold

    def _load_cold(self, segment: Segment) -> Loaded:
        cold = self.find_cold()
        if cold is None:
            raise ColdStoreError(
                f"segment {segment.path} is in a cold store that is not known here: open the store "
                "with cold=... to read it; everything newer can be read"
            )
        size = segment.summary.bytes

        def remote(position: int, length: int) -> bytes:
            what = f"{segment.path} in {cold.location}"
            return self._reader.read(lambda: cold.read(segment.path, position, length), what)

        footer = read_footer(remote, size, segment.topic_id, segment.first)
        # An old name has no owner: the contents have to show it.
        created_at = segment.summary.created_at
        if parse_cold_name(segment.path) is None:
            created_at = check_segment_header(remote, segment.topic_id, segment.first)
        found = summary_of(footer, created_at, size)
        if found._replace(state=State.COLD) != segment.summary:
            raise CorruptionError(
                f"the object in {cold.location} is another segment than the one that was moved "
                f"there: it has {found.records} records up to offset {found.end_offset - 1}, begun "
                f"at {found.created_at}. Check which other store uses that place"
            )
        index = read_index(remote, footer)
        fetch = _ReadAhead(remote, footer.index_position, self.note)
        return Loaded(segment, index, fetch, self.note, fetch.release, gate=self.cold_gate)

    def _index(self, segment: Segment, fetch: Fetch, size: int) -> Index:
        try:
            footer = None if segment.placed is None else segment.placed.footer
            if footer is None:
                footer = read_footer(fetch, size, segment.topic_id, segment.first)
            elif size != segment.summary.bytes:
                raise CorruptionError(f"{size} bytes, {segment.summary.bytes} were adopted")
            return read_index(fetch, footer)
        except UnsupportedVersionError:
            raise  # whole, and of an unknown version
        except FormatError as error:
            # The batches are what matters, and each has its own checksums.
            check_segment_header(fetch, segment.topic_id, segment.first, self.identity)
            index = scan_index(fetch, segment.topic_id, size, segment.first)
            index = place_index(index, 0, segment.summary.min_timestamp)
            # After a header that is damaged as well, nothing was found; that does not mean an empty
            # segment.
            if int(index["count"].sum(dtype=np.uint64)) != segment.summary.records:
                found = int(index["base_offset"][-1] + index["count"][-1]) if len(index) else None
                raise CorruptionError(
                    f"{error}, and its index cannot be made again: no batch at position "
                    f"{index_end(index)} (topic {segment.topic_id}, offsets "
                    f"{found or segment.first} to {segment.end - 1})"
                ) from error
            logger.warning(
                "%s: %s; its index was made again from its batches, `stratalog repair` does so "
                "for good", segment.path, error,
                extra={"file": segment.path, "error": str(error)},
            )  # fmt: skip
            return index


class ColdGate:
    """A gate for cold readers: one by one, and slowly while there are appends.

    An append that comes back from the disk needs the interpreter, and waits up to 5 ms for each
    thread that wants it too. So however many scan, one or two of them are awake at a time, and
    none while the one at the gate rests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits = 0
        self._committed_at = -_ACTIVE_SECONDS
        self.commits: Callable[[], int] = lambda: 0
        """Counts commits; a rising number means that the store is being written."""

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        try:
            commits, now = self.commits(), time.monotonic()
            if commits != self._commits:
                self._commits, self._committed_at = commits, now
            if now - self._committed_at < _ACTIVE_SECONDS:
                time.sleep(_REST_SECONDS)
        finally:
            self._lock.release()


class _ReadAhead:
    """Ranges of a cold segment, a few megabytes at a time; the last pieces are kept.

    Several pieces, because readers at different places of a segment would otherwise evict each
    other's. Readers that want the same piece wait for the first of them.
    """

    def __init__(self, remote: Fetch, end: int, note: Callable[[int], None]) -> None:
        self._remote = remote
        self._end = end
        self._note = note
        self._lock = threading.Lock()
        self.release()

    def release(self) -> None:
        """Drop all pieces."""
        self._pieces: tuple[tuple[int, memoryview], ...] = ()

    def __call__(self, position: int, length: int) -> memoryview:
        found = self._find(position, length)
        if found is None:
            with self._lock:
                found = self._find(position, length)
                if found is None:
                    found = self._read(position, length)
        return found

    def _find(self, position: int, length: int) -> memoryview | None:
        for start, data in self._pieces:
            if start <= position and position + length <= start + len(data):
                return data[position - start : position - start + length]
        return None

    def _read(self, position: int, length: int) -> memoryview:
        wanted = max(length, min(_COLD_READ_BYTES, self._end - position))
        data = memoryview(self._remote(position, wanted))
        self._note(wanted)  # first: it may release everything
        self._pieces = ((position, data), *self._pieces[: _COLD_PIECES - 1])
        return data[:length]


def _ranges(file: File, end: int) -> Fetch:
    """Read ranges of a file below `end`."""
    return lambda position, length: file.pread(min(length, end - position), position)


def summary_of(footer: SegmentFooter, created_at: int, size: int) -> Summary:
    """Summarise a sealed segment."""
    return Summary(
        footer.first_offset, footer.end_offset, footer.records, size, footer.min_timestamp,
        footer.max_timestamp, footer.expires_at, created_at, State.SEALED,
    )  # fmt: skip

"""The open segments of a store: maps and files, as few as are in use.

Owns: maps of sealed segments, files of open ones, and the threads that read the cold store.

Pages that a reader touches count as this process' memory although they are the disk's. When more
than `resident_bytes` were touched they are given back, all at once: that costs 0.3 us a page (5 ms
for 64 MiB read at random), and whoever needs one again finds it where it was, in the page cache.

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
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from stratalog.errors import (
    ColdStoreError,
    CorruptionError,
    FormatError,
    UnsupportedVersionError,
)
from stratalog.format.manifest import Placed
from stratalog.format.names import cold_name, incoming_path, segment_name, topic_path
from stratalog.format.segment import Index, SegmentFooter, State, Summary, place_index
from stratalog.fs import File, FileSystem, NotMappedError, forget_pages
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.log.reader import read_failed
from stratalog.segments.segment import (
    Fetch,
    Loaded,
    Segment,
    check_segment_header,
    index_end,
    read_footer,
    read_index,
    scan_index,
)

logger = logging.getLogger("stratalog")

_SEGMENTS_MAX = 128
_RESIDENT_BYTES_MAX = 64 << 20
# Cold reads are slow and their number does not make them faster; two keep a connection busy.
_COLD_THREADS = 2
_COLD_READ_BYTES = 8 << 20
_COLD_PIECES = 4
# While there are appends a batch of 512 KiB is read every seven milliseconds: 75 MB/s. Eight scans
# beside fsync appends then make their p99 1.4 to 1.5 times as long; with a rest of 1 ms it was 1.8.
_REST_SECONDS = 0.007
_ACTIVE_SECONDS = 0.1


class SegmentPool:
    """Opens segments, and closes those that were not used for a while."""

    def __init__(
        self, fs: FileSystem, root: str, resident_bytes_max: int = _RESIDENT_BYTES_MAX
    ) -> None:
        self.fs = fs
        self.root = root
        self.is_verified = True
        """Whether bodies are checked against their checksums when they are read."""
        self.cold: ColdStore | None = None
        self.cold_location = ""
        """Where the cold segments are, as far as the log knows."""
        self._lock = threading.Lock()
        self._loaded: OrderedDict[Segment, Loaded] = OrderedDict()
        self.resident_bytes_max = resident_bytes_max
        self._resident_bytes = 0
        self._executor: ThreadPoolExecutor | None = None
        self.cold_gate = ColdGate()

    def segment(self, topic_id: int, summary: Summary) -> Segment:
        """A segment of a topic, wherever it is."""
        if summary.state == State.COLD:
            path = cold_name(topic_id, summary.first_offset)
        else:
            path = self.path(topic_id, summary.first_offset, summary.state)
        return Segment(self, topic_id, path, summary)

    def staged(self, placed: Placed) -> Segment:
        """A segment that was adopted, and still is where it was staged."""
        path = incoming_path(self.root, f"{placed.staged.name}.seg")
        return Segment(self, placed.footer.topic_id, path, placed.summary(), placed)

    def path(self, topic_id: int, first: int, state: int) -> str:
        """The local file of a segment."""
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
            while len(self._loaded) > _SEGMENTS_MAX:
                self._drop_one()
        return loaded

    def _drop_one(self) -> None:
        """Close the segment that was opened first, unless it was used since it was last asked."""
        segment, loaded = self._loaded.popitem(last=False)
        if segment.is_used:
            segment.is_used = False
            self._loaded[segment] = loaded
        else:
            segment.forget()

    def forget(self, segment: Segment) -> None:
        """A segment is no longer part of its topic."""
        with self._lock:
            self._loaded.pop(segment, None)
        segment.forget()

    def summarise(self, topic_id: int, first: int) -> Summary:
        """What a sealed segment found on disk holds; raises a `FormatError` if it is damaged."""
        file = self.fs.open(self.path(topic_id, first, State.SEALED), "read")
        try:
            size = file.size()

            def fetch(position: int, length: int) -> bytes:
                return file.pread(length, position)

            created_at = check_segment_header(fetch, topic_id, first)
            return summary_of(read_footer(fetch, size, topic_id, first), created_at, size)
        except FormatError as error:
            raise type(error)(f"{file.path}: {error}") from error
        finally:
            file.close()

    def close(self) -> None:
        """Let everything go."""
        with self._lock:
            loaded, self._loaded = list(self._loaded), OrderedDict()
            executor, self._executor = self._executor, None
        for segment in loaded:
            segment.forget()
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        if self.cold is not None:
            self.cold.close()

    def note(self, length: int) -> None:
        """So many bytes of maps were touched."""
        with self._lock:
            self._resident_bytes += length
            if self._resident_bytes < self.resident_bytes_max:
                return
            self._resident_bytes = 0
            loaded = list(self._loaded.values())
        for one in loaded:
            one.release()

    # --- the three ways to read -----------------------------------------------------------

    def _load_sealed(self, segment: Segment) -> Loaded:
        try:
            file = self.fs.open(segment.path, "read")
        except FileNotFoundError:
            if segment.placed is None:
                raise
            # One that was adopted, and was put in its place before the chain has been told.
            place = self.path(segment.topic_id, segment.first, State.SEALED)
            file = self.fs.open(place, "read")
        try:
            view = file.mmap()
        except NotMappedError:
            return self._load_ranges(segment, file)
        file.close()

        def fetch(position: int, length: int) -> memoryview:
            return view[position : position + length]

        index = self._index(segment, fetch, len(view))
        return Loaded(segment, index, fetch, self.note, lambda: forget_pages(view), view)

    def _load_ranges(self, segment: Segment, file: File) -> Loaded:
        """A sealed one whose file is far away: read as it is needed, a few megabytes at a time."""

        def remote(position: int, length: int) -> bytes:
            return file.pread(length, position)

        index = self._index(segment, remote, file.size())
        fetch = _ReadAhead(remote, index_end(index), self.note)
        return Loaded(segment, index, fetch, self.note, fetch.release)

    def _load_open(self, segment: Segment) -> Loaded:
        """One that grows, or has got its lasting name before the topic's chain has been told.

        Then its batches are where they were; if it was rewritten since, it is not found.
        """
        sealed_path = self.path(segment.topic_id, segment.first, State.SEALED)
        try:
            file = self.fs.open(segment.path, "read")
        except FileNotFoundError:
            file = self.fs.open(sealed_path, "read")
        end = segment.summary.bytes

        def fetch(position: int, length: int) -> bytes:
            try:
                return file.pread(min(length, end - position), position)
            except OSError as error:
                raise read_failed(file.path, position, error) from error

        check_segment_header(fetch, segment.topic_id, segment.first)
        index = scan_index(fetch, segment.topic_id, end, segment.first)
        found = index_end(index)
        if file.path == sealed_path:
            records = int(index["count"].sum(dtype=np.uint64))
            if found != end or records != segment.summary.records:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), segment.path)
        elif found != end:
            raise CorruptionError(f"damaged at position {found}: {end} bytes of it were durable")
        return Loaded(segment, index, fetch, self.note)

    def find_cold(self) -> ColdStore | None:
        """The cold store that was given, or else the one that the log knows of."""
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
            return self._apart(lambda: cold.read(segment.path, position, length))

        footer = read_footer(remote, size, segment.topic_id, segment.first)
        index = read_index(remote, footer)
        fetch = _ReadAhead(remote, footer.index_position, self.note)
        return Loaded(segment, index, fetch, self.note, fetch.release, gate=self.cold_gate)

    def _apart(self, action: Callable[[], bytes]) -> bytes:
        """Do something in the threads that are there for the cold store."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_COLD_THREADS, "stratalog-cold")
            executor = self._executor
        return executor.submit(action).result()

    def _index(self, segment: Segment, fetch: Fetch, size: int) -> Index:
        try:
            footer = None if segment.placed is None else segment.placed.footer
            if footer is None:
                footer = read_footer(fetch, size, segment.topic_id, segment.first)
            elif size != segment.summary.bytes:
                raise CorruptionError(f"{size} bytes, {segment.summary.bytes} were adopted")
            return read_index(fetch, footer)
        except UnsupportedVersionError:
            raise  # whole, and not ours to judge
        except FormatError as error:
            # The batches are what matters, and each has its own checksums.
            check_segment_header(fetch, segment.topic_id, segment.first)
            index = scan_index(fetch, segment.topic_id, size, segment.first)
            index = place_index(index, 0, segment.summary.min_timestamp)
            # Behind a header that is damaged too, nothing was found: that is not nothing there.
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
            )  # fmt: skip
            return index


class ColdGate:
    """Lets those who read what is cold through one by one, and slowly while there are appends.

    An append that comes back from the disk needs the interpreter, and waits up to 5 ms for each
    thread that wants it too. So however many scan, one or two of them are awake at a time, and
    none while the one at the gate rests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits = 0
        self._committed_at = -_ACTIVE_SECONDS
        self.commits: Callable[[], int] = lambda: 0
        """How many commits there were; a number that rises is a store that is being written."""

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

    Several, because readers at different places of a segment would otherwise take each other's
    away. Those who want the same piece wait for the first of them.
    """

    def __init__(self, remote: Fetch, end: int, note: Callable[[int], None]) -> None:
        self._remote = remote
        self._end = end
        self._note = note
        self._lock = threading.Lock()
        self.release()

    def release(self) -> None:
        """Keep nothing."""
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


def summary_of(footer: SegmentFooter, created_at: int, size: int) -> Summary:
    """A sealed segment in short."""
    return Summary(
        footer.first_offset, footer.end_offset, footer.records, size, footer.min_timestamp,
        footer.max_timestamp, footer.expires_at, created_at, State.SEALED,
    )  # fmt: skip

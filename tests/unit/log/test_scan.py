"""Scanning beside a live writer: what comes while one looks is not damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

from stratalog.errors import UnsupportedVersionError
from stratalog.format.control import FLOOR
from stratalog.format.frame import (
    HEADER_BYTES,
    FrameHeader,
    FrameType,
    body_checksum,
    decode_header,
    encode_header,
    log_seed,
)
from stratalog.fs import PosixFileSystem
from stratalog.log.scan import ShardScanner


class LateFile:
    """A file of which the first read sees only the beginning: the rest is written after it."""

    def __init__(self, inner: Any, visible: int) -> None:
        self._inner = inner
        self._visible: int | None = visible
        self.path = inner.path

    def pread(self, length: int, position: int) -> bytes:
        data: bytes = self._inner.pread(length, position)
        if self._visible is not None:
            data = data[: max(0, self._visible - position)].ljust(len(data), b"\0")
            self._visible = None
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class LateFs(PosixFileSystem):
    """Opens files as `LateFile`."""

    def __init__(self, visible: int) -> None:
        self._visible = visible

    def open(self, path: str, mode: Any) -> Any:
        return LateFile(super().open(path, mode), self._visible)


def test_frames_written_during_a_scan_are_not_taken_for_damage(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """A reader looked, found the end, and only then the writer added several durable frames.

    The last of them says that everything before it was durable, and the first was not there when
    it was looked for: a reader beside a live writer took that for damage.
    """
    with open_store(shards=1) as store:
        ends = []
        for number in range(6):
            store.topic("orders").append(b"order %d" % number)
            assert store._log is not None
            ends.append(store._log.shards[0].files.position)
    for visible in ends:
        offsets: list[int] = []

        def apply(_: str, lsn: int, at: int, header: FrameHeader, body: bytes) -> None:
            if header.count:
                offsets.append(header.base_offset)  # noqa: B023

        directory = str(tmp_path / "data" / "log" / "shard-00")
        scanner = ShardScanner(LateFs(visible), directory, 0, store._replay.reader.identity)
        scanner.advance(apply)
        assert scanner.damages == []
        scanner.advance(apply)
        assert offsets == list(range(6))


def _add_frame(open_store: OpenStore, root: Path, type: int, body: bytes) -> tuple[Path, int]:
    """Put a frame of this kind before the last of a log; nothing of the two was known durable."""
    with open_store(shards=1) as store:
        topic = store.topic("orders")
        topic.append(b"before")
        assert store._log is not None
        start = store._log.shards[0].files.position
        topic.append(b"after")
        end = store._log.shards[0].files.position
    path = next((root / "data" / "log" / "shard-00").glob("*.log"))
    data, seed = path.read_bytes(), log_seed(store._replay.reader.identity, 0, int(path.stem))
    checksum = body_checksum(body)
    frame = encode_header(type, 0, len(body), 0, 1, 0, 0, 0, checksum, seed, 1000) + body
    last = bytearray(data[start:end])
    fields = decode_header(bytes(last), seed=seed)._replace(unsynced=1000)
    last[:HEADER_BYTES] = encode_header(**fields._asdict(), seed=seed)
    path.write_bytes(data[:start] + frame + bytes(last) + bytes(4096))
    return path, start


def test_a_frame_of_a_later_release_is_not_cut_off(open_store: OpenStore, tmp_path: Path) -> None:
    """Whole, of a known version, and of a type this release does nothing with: it must not open.

    It was taken for a torn tail, and cut off with every record after it.
    """
    path, start = _add_frame(open_store, tmp_path, max(FrameType) + 1, bytes(8))
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(UnsupportedVersionError, match=f"{path} at position {start}.*upgrade"):
            open_store(read_only=read_only)
    assert path.read_bytes() == before


def test_a_frame_that_says_what_cannot_be_is_damage_and_not_cut_off(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Its checksums are right, so a crash did not tear it; what is after it is read."""
    path, start = _add_frame(open_store, tmp_path, FrameType.FLOOR, FLOOR.pack(0, 99))
    before = path.read_bytes()
    with open_store() as store:
        stats = store.stats()
        assert stats.torn_bytes == 0
        assert stats.damage is not None
        assert f"{path} from position {start} to" in stats.damage
        assert "reason 99" in stats.damage
        assert store.topic("orders").read_values() == [b"before", b"after"]
    assert path.read_bytes() == before
